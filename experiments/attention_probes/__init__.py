"""Synthetic corpora that each probe one use of attention: coreference, agreement, retrieval and others."""
