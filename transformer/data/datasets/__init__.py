"""Data sets: TFDS builders that need no TensorFlow, and one way to open any translation set."""
