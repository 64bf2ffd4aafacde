"""BERT, and the parts of its pre-training."""
