"""Captions of drawn scenes by a decoder that looks at them word by word (Xu et al. 2015)."""
