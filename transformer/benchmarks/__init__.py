"""Benchmarks: the loop against its bare step, and the cost of maps."""
