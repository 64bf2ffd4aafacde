"""Strings written along curves, read by attention over rows and columns (Li et al. 2019)."""
