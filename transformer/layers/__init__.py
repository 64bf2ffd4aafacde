"""Thin shells that hold parameters around pure functions."""
