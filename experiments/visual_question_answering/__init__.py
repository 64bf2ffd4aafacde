"""Visual question answering with multi-hop and stacked attention."""
