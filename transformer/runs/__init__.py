"""Run directories: their files by name, checkpoints, records, and the processes that share them."""
