"""Writers: the sinks to which a run's numbers, samples and maps go."""
