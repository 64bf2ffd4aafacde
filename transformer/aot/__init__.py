"""Ahead-of-time compilation for the topology of a pod, and a search for meshes that fit."""
