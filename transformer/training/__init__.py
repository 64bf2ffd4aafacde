"""Training: state, step, loop, and what a run keeps."""
