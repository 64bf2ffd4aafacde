"""Translation by Transformers, recurrence and convolutions, with attention and without."""
