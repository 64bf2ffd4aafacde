"""Corpora that ask one thing of attention."""
