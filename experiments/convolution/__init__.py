"""Convolutional sequence models."""
