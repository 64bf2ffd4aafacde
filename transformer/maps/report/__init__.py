"""The page of a run: its data, the page itself, and its server."""
