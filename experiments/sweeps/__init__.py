"""Sweeps: configs with a get_sweep() beside their get_config()."""
