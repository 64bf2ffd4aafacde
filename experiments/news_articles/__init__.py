"""Articles from a title, in miniature."""
