"""Questions to a help desk and their answers."""
