"""Configs of the project `captioning`: each file's `get_config` is one experiment."""
