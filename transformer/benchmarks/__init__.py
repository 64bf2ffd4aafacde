"""Benchmarks: training steps, decoding, overhead of the loop and of maps, attention backends, layer types."""
