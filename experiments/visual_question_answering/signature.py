"""What a model that answers questions about images takes and returns."""

from transformer.models.task_interface import signature

# `tokens` are those of a question, the first `lengths` of them real; a logit for each of `vocabularies["classes"]`.
VISUAL_QUESTION_ANSWERING = signature("image", "tokens", "lengths", output="class")
