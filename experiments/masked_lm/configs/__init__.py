"""Configs of the project `masked_lm`: each file's `get_config` is one experiment."""
