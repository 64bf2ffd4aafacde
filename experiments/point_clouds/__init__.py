"""Digits as sets of points, read by blocks of self-attention (Lee et al. 2019)."""
