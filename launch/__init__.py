"""The commands, `python -m launch.X`: flags and messages only; what they do is in `transformer`."""
