"""Summaries of articles whose facts are known."""
