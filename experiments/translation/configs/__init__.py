"""Configs of the project `translation`: each file's `get_config` is one experiment."""
