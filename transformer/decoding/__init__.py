"""Decoding over any family's cache."""
