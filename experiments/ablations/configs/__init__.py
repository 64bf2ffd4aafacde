"""Configs of the project `ablations`: each file's `get_config` is one experiment."""
