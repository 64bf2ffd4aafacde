"""Strings of spoken digits: Listen, Attend and Spell (Chan et al. 2016), and a Transformer."""
