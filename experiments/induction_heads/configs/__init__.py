"""Configs of the project `induction_heads`: each file's `get_config` is one experiment."""
