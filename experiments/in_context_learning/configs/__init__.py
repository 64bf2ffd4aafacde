"""Configs of the project `in_context_learning`: each file's `get_config` is one experiment."""
