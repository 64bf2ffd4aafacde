"""Measurements of this machine: attention backends, and layers of several types."""
