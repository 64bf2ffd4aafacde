"""Bandits and small Markov decision processes that are learned while one acts in them."""
