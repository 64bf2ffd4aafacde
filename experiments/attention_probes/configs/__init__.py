"""Configs of the project `attention_probes`: each file's `get_config` is one experiment."""
