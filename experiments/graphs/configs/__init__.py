"""Configs of the project `graphs`: each file's `get_config` is one experiment."""
