"""Experiments: each config file's `get_config` describes one run; an ablation's arms are changes to a base config."""
