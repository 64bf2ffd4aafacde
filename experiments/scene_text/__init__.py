"""Scene text recognition with 2D attention: Show, Attend and Read (Li et al. 2019)."""
