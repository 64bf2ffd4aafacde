"""Summaries by a pointer-generator with coverage (See et al. 2017)."""
