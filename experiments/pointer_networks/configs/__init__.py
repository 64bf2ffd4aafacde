"""Configs of the project `pointer_networks`: each file's `get_config` is one experiment."""
