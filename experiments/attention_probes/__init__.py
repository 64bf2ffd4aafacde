"""Texts that ask one thing of attention each: coreference, agreement, retrieval and others."""
