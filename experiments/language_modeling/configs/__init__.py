"""Configs of the project `language_modeling`: each file's `get_config` is one experiment."""
