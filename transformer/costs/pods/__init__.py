"""Compiling experiments for the topology of a pod, without its devices, and searching for meshes that fit."""
