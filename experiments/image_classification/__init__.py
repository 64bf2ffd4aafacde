"""Image classification by a vision Transformer, and by convolutions for comparison."""
