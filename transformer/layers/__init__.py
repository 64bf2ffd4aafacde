"""Layers: modules that hold the parameters of pure functions."""
