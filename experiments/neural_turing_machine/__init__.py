"""Algorithms learned by a Neural Turing Machine (Graves et al. 2014)."""
