"""Configs of the project `dialogue`: each file's `get_config` is one experiment."""
