"""Configs of the project `summarization`: each file's `get_config` is one experiment."""
