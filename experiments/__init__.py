"""Experiments: each file's `get_config` is one run; an ablation is a difference from its base."""
