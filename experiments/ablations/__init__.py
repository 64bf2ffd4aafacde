"""Controlled comparisons: each file defines a base config and the overrides of its arms."""
