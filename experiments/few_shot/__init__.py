"""Few-shot classification of handwritten characters with SNAIL (Mishra et al. 2018)."""
