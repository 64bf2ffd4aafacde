"""Questions about images, answered in hops or by glimpses."""
