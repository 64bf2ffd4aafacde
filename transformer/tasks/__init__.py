"""Tasks: what a problem is - data, objectives, evaluations, probe."""
