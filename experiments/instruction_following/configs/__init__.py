"""Configs of the project `instruction_following`: each file's `get_config` is one experiment."""
