"""Rules and functions learned from the examples in a prompt."""
