"""Pre-training a language model, and what is made of it."""
