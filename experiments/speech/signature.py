"""What a speech recognizer takes and returns."""

from transformer.models.task_interface import signature

# Samples [B, N], 8000 a second, of each sound the first `lengths`; `target` is what is said in it with the begin token
# in front; `vocabularies["joint"]` logits at every step.
SPEECH_RECOGNITION = signature("sound", "lengths", "target", output="target tokens")
