"""Abstractive summarization with a pointer-generator and coverage (See et al. 2017)."""
