"""What a classifier of point clouds takes and returns."""

from transformer.models.task_interface import signature

# Points [B, N, coordinates] in no order, the first `lengths` of them real; a logit for each class.
POINT_CLASSIFICATION = signature("points", "lengths", output="class")
