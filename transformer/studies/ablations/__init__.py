"""Ablations: arms, their runs, and what may be said of their differences."""
