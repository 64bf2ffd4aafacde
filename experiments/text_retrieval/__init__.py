"""Contrastive learning of text embeddings: a dual encoder retrieves the translation of a sentence."""
