"""The programs of benchmarks: each module runs with its settings as JSON and prints its measurements as JSON."""
