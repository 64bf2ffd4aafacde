"""Writers of a run: they record its metrics, samples, head statistics and attention maps."""
