"""Decoding with any model family's cache: greedy search, beam search and sampling."""
