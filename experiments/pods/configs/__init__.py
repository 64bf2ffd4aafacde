"""Configs of the project `pods`: each file's `get_config` is one experiment."""
