"""Speech recognition of spoken digits: Listen, Attend and Spell (Chan et al. 2016) and a Speech-Transformer."""
