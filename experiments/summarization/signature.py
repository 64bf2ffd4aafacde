"""What a translator that copies source words takes and returns."""

from transformer.models.task_interface import signature

# The same with `copied` [B, S], the index by which the target copies each source token. Indices from
# `vocabularies["source"]` on are out-of-vocabulary words, numbered anew in each example; `target` may contain them, and
# there is a logit for each of the `vocabularies["joint"]` indices of both kinds.
TRANSLATION_WITH_COPYING = signature("source", "copied", "target", output="target tokens and copies")
