"""Characters known again from one or a few drawings: SNAIL (Mishra et al. 2018)."""
