"""Training: state, step, loop and sinks."""
