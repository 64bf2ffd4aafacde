"""Ablations: their arms and runs, and statistics of the differences between arms."""
