"""Benchmarks: programs of this project and of peers, timed in alternation."""
