"""What an experiment needs on a pod that nobody has booked: compiled for its topology, and searched for what fits."""
