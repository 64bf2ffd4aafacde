"""Configs of the project `point_clouds`: each file's `get_config` is one experiment."""
