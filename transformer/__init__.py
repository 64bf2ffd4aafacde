"""Headwise: attention research in JAX, one loop for every model, with per-head maps from every run."""
