"""What a Q-network takes and returns."""

from transformer.models.task_interface import signature

# What a robot sees: gray and depth images [B, steps, height, width, 1] from -1 to 1, the first `lengths` steps real,
# and `actions`, each what was done before the image of its step plus 1 (0: nothing yet). A value for each of
# `vocabularies["actions"]` at every step. A family that serves it takes single steps as well, by its methods `begin`
# and `act`: model.py has them.
ACTION_VALUES = signature("gray", "depth", "actions", "lengths", output="action values")
