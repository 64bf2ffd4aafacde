"""Benchmarks: the loop against its bare step, the cost of maps, and the backends of attention."""
