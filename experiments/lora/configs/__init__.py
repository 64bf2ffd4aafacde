"""Configs of the project `lora`: each file's `get_config` is one experiment."""
