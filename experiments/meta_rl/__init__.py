"""Meta reinforcement learning of bandits and small Markov decision processes."""
