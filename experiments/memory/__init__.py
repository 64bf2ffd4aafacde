"""Experiments with an external memory: the Neural Turing Machine on the problems of its paper."""
