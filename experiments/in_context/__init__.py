"""Learning in context: from examples in the prompt, by no gradient."""
