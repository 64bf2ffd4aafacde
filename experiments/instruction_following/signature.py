"""What a follower of instructions takes and returns."""

from transformer.models.task_interface import signature

# An instruction `source`, and `target`, the actions behind a begin token, in an environment that is a table: of each of
# its poses the features `observations` [B, poses, features] and, for each of `vocabularies["target"]` tokens, where it
# leads, `transitions` [B, poses, tokens]; `start` [B] is the first pose. A logit for each token at every step.
INSTRUCTION_FOLLOWING = signature("source", "target", "observations", "transitions", "start", output="actions")
