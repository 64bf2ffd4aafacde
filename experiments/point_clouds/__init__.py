"""Classification of digits as point sets by self-attention (Set Transformer, Lee et al. 2019)."""
