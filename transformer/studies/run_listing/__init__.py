"""The listing of all runs under a folder: their states, metrics and differences, as a table and as one page."""
