"""Attention maps of a run: the store they are kept in, and the page they are looked at on."""
