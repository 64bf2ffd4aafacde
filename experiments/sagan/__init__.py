"""SAGAN: a GAN with self-attention whose images must show the same digit twice (Zhang et al. 2019)."""
