"""Configs of the project `meta_rl`: each file's `get_config` is one experiment."""
