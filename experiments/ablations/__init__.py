"""Controlled comparisons: each file is a base and the differences of its arms."""
