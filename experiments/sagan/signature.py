"""What a generator of images and its critic take and return."""

from transformer.models.task_interface import signature

# From `noise` [B, features] images like `image`, by two players: `forward` makes them, `score` tells them apart.
IMAGE_GENERATION = signature("noise", "image", output="images")
