"""Configs of the project `scene_text`: each file's `get_config` is one experiment."""
