"""Configs of the project `kernel_regression`: each file's `get_config` is one experiment."""
