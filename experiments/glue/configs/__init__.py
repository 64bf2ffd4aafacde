"""Configs of the project `glue`: each file's `get_config` is one experiment."""
