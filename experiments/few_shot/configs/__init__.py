"""Configs of the project `few_shot`: each file's `get_config` is one experiment."""
