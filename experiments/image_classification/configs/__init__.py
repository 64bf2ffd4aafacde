"""Configs of the project `image_classification`: each file's `get_config` is one experiment."""
