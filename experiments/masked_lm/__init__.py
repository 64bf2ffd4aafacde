"""BERT, and ablations of its pre-training."""
