"""A run as it lies in its directory: its files by name, its checkpoints and records, and the processes that share it."""
