"""Studies of many runs: sweeps, ablations with paired statistics, and scaling laws."""
