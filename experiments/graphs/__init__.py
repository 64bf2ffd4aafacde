"""Attention over the typed edges of graphs: how far a node is from another, along the edges of one type."""
