"""Experiments on sound."""
