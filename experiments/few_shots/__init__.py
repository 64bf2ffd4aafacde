"""Learning from a few examples, and by trial, within an episode."""
