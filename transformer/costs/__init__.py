"""What a model costs before it runs: parameters, floating-point operations, bytes, time."""
