"""Configs of the project `text_retrieval`: each file's `get_config` is one experiment."""
