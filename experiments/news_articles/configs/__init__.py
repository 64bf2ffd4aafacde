"""Configs of news articles."""
