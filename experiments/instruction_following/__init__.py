"""Instruction following in mazes: Listen, Attend and Walk (Mei et al. 2016)."""
