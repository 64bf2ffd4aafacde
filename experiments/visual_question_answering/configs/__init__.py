"""Configs of the project `visual_question_answering`: each file's `get_config` is one experiment."""
