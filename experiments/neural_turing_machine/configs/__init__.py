"""Configs of the project `neural_turing_machine`: each file's `get_config` is one experiment."""
