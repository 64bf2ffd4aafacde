"""Answers of a synthetic help desk to its users' questions."""
