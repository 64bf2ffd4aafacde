"""What a pointer network takes and returns."""

from transformer.models.task_interface import signature

# POINTER_END begins, ends and pads a sequence of pointers; point j has the number j + 1.
POINTER_END = 0
POINTER_PREDICTION = signature("points", "lengths", "target", output="pointers")
