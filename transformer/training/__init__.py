"""Training: state, step, loop and writers."""
