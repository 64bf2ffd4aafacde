"""Configs of the project `handshake_rl`: each file's `get_config` is one experiment."""
