"""Configs of the project `speech`: each file's `get_config` is one experiment."""
