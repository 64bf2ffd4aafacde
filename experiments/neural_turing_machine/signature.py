"""What a model of bit sequences takes and returns."""

from transformer.models.task_interface import signature

# Vectors of numbers, a sequence's first `lengths` of them real; `TaskInterface.vocabularies["bits"]` logits at every
# step.
BIT_SEQUENCE_PREDICTION = signature("vectors", "lengths", output="bits")
