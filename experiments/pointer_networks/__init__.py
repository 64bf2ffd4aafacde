"""Convex hulls, triangulations and tours by pointer networks (Vinyals et al. 2015)."""
