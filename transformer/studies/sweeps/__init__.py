"""Sweeps over configs: their space, search, trials and workers."""
