"""Translation by Transformers, recurrent networks and convolutions, with and without attention."""
