"""Ablations: arms, their runs, and the statistics of their differences."""
