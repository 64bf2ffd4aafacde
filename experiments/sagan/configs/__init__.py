"""Configs of the project `sagan`: each file's `get_config` is one experiment."""
