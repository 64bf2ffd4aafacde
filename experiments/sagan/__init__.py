"""Images whose two halves must match, by SAGAN (Zhang et al. 2019)."""
