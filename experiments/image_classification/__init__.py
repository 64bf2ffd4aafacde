"""Images classified by a vision Transformer, and by convolutions beside it."""
