"""Listen, Attend and Walk: instructions in, actions in a maze out (Mei et al. 2016)."""
