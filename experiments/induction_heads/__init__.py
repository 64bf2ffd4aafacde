"""The onset of induction heads on random symbols."""
