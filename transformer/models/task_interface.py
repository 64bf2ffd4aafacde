"""TaskInterface: the inputs, vocabularies and outputs that a task requires of a model, known before it is built."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from transformer.config import UserError


class Modality(enum.Enum):
    """What an input consists of.

    Attributes:
        TOKENS: Indices into a vocabulary.
        IMAGE: Pixels.
        AUDIO: Audio samples.
        POINTS: Coordinates of points.
        ACTIONS: Actions of an agent.
        POSITIONS: Indices into a sequence.
    """

    TOKENS = "tokens"
    IMAGE = "image"
    AUDIO = "audio"
    POINTS = "points"
    ACTIONS = "actions"
    POSITIONS = "positions"


class InputSpec(NamedTuple):
    """The specification of an input.

    Attributes:
        shape: Its shape in the largest batch, [examples, ...].
        dtype: Its type.
        modality: What it consists of.
    """

    shape: tuple[int, ...]
    dtype: Any = jnp.int32
    modality: Modality = Modality.TOKENS

    @property
    def positions(self) -> int | None:
        """The number of positions of an example; None for single values, images and audio, which a model cuts up."""
        if self.modality in (Modality.IMAGE, Modality.AUDIO) or len(self.shape) < 2:
            return None
        return self.shape[1]


class Signature(NamedTuple):
    """The names of a model's inputs and of its output, by which tasks and families are matched.

    Attributes:
        inputs: Names of the inputs.
        output: What the model outputs, such as "target tokens".
    """

    inputs: frozenset[str]
    output: str

    def __str__(self) -> str:
        return f"{' and '.join(sorted(self.inputs))} -> {self.output}"


def signature(*inputs: str, output: str) -> Signature:
    """Return the signature of these inputs and this output."""
    return Signature(frozenset(inputs), output)


# The signatures of the library's tasks; a task of one's own may have another.
TRANSLATION = signature("source", "target", output="target tokens")
LANGUAGE_MODELING = signature("tokens", output="next tokens")
MASKED_LANGUAGE_MODELING = signature("tokens", output="masked tokens")
# Pairs of texts: `types` are the token types, 0 for the first text and 1 for the second; `lengths` count both.
MASKED_LANGUAGE_MODELING_OF_PAIRS = signature("tokens", "types", "lengths", output="masked tokens")
# The same with next-sentence prediction: two logits in extras["next_sentence"], the first for "it follows".
BERT_PRETRAINING = signature("tokens", "types", "lengths", output="masked tokens and next sentence")
# `order` is the rank of every position in the factorization order; predicted are the tokens at `predicted` [B, P].
PERMUTATION_LANGUAGE_MODELING = signature("tokens", "order", "predicted", output="predicted tokens")
# The first `lengths` tokens of a text are real; a logit for each of `TaskInterface.vocabularies["classes"]` classes.
TEXT_CLASSIFICATION = signature("tokens", "lengths", output="class")
# The same with token types, of which there are `vocabularies["types"]`: 0 for the first text and 1 for the second; 2,
# where there is one, for the last token, whose state is classified.
TEXT_CLASSIFICATION_WITH_TYPES = signature("tokens", "types", "lengths", output="class")
# A logit for each of `TaskInterface.vocabularies["classes"]` classes at every position [B, T, C].
TOKEN_CLASSIFICATION = signature("tokens", "lengths", output="class of every token")
# The same with token types.
TOKEN_CLASSIFICATION_WITH_TYPES = signature("tokens", "types", "lengths", output="class of every token")
# A question and a context in one sequence; two logits at every position [B, T, 2]: whether the answer begins there, and
# whether it ends there.
EXTRACTIVE_QUESTION_ANSWERING = signature("tokens", "lengths", output="start and end of the answer")
# The same with token types, 0 for the first text and 1 for the second.
EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES = signature("tokens", "types", "lengths", output="start and end of the answer")
# As TEXT_CLASSIFICATION, by a language model: `hidden` and `logits` predict the next token, as for LANGUAGE_MODELING;
# the logits of the classes are in the extras of `hidden` as "classes", and `forward` returns them.
# `vocabularies["next tokens"]` is present if the next tokens are predicted as well.
TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING = signature("tokens", "lengths", output="class and next tokens")
# Vectors of numbers in their order; `TaskInterface.vocabularies["numbers"]` real numbers at every step, of it and the
# past.
VECTOR_REGRESSION = signature("vectors", output="numbers")
# Images [B, height, width, channels], as a rule from -1 to 1; a logit for each of `vocabularies["classes"]`.
IMAGE_CLASSIFICATION = signature("image", output="class")
# Images of an episode [B, T, height, width, channels], and `shown` [B, T], the class of each plus 1 (0: not told); a
# logit for each of `vocabularies["classes"]` at every step.
FEW_SHOT_CLASSIFICATION = signature("images", "shown", output="class at every step")
# `target` is the caption with the begin token in front; `vocabularies["target"]` logits at every step.
IMAGE_CAPTIONING = signature("image", "target", output="target tokens")


@dataclasses.dataclass(frozen=True)
class TaskInterface:
    """What a task requires of a model, known before the model is built.

    Attributes:
        inputs: The inputs of the largest batch, by name.
        vocabularies: Sizes by name: of tokens, classes, or of `labels` that are neither.
        pad_id: The padding token; None if the task has none.
        bos_id: The begin token; None if the task has none.
        eos_id: The end token; None if the task has none.
        output: The output that the task needs, as in `Signature`; None if any model will do.
        max_decoded_length: The largest length of a prompt with the tokens generated after it.
        class_names: The names of the classes in their order, by which a run's outputs are matched with another's; of a
            single output that is no class, what it is. Empty if they have none.
    """

    inputs: Mapping[str, InputSpec]
    vocabularies: Mapping[str, int]
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    output: str | None = None
    max_decoded_length: int = 0
    class_names: tuple[str, ...] = ()

    @property
    def signature(self) -> Signature | None:
        """The signature that the model's family must support; None if any will do."""
        return None if self.output is None else Signature(frozenset(self.inputs), self.output)


def predicts_next_tokens(vocabularies: Mapping[str, int]) -> bool:
    """Return whether a task with these vocabularies predicts next tokens, alone or as well as classes."""
    return "classes" not in vocabularies or "next tokens" in vocabularies


def check_choice(is_choice: bool, interface: TaskInterface) -> None:
    """Check that a task whose model has the head of multiple choice asks for one logit of each text.

    Raises:
        UserError: If it asks for several.
    """
    if is_choice and interface.output is not None and interface.vocabularies.get("classes", 1) != 1:
        raise UserError(
            "config.model.head=choice has one logit of each text, but the task has "
            f"{interface.vocabularies['classes']} classes: say config.model.head=classes, or config.task.problem=choice"
        )


def check_head(
    head: enum.Enum, possible: Sequence[enum.Enum], interface: TaskInterface, without_classes: enum.Enum
) -> None:
    """Check that a model has a head that its task needs, and the task the classes that the head needs.

    Args:
        head: The model's head.
        possible: The heads that have the task's output, the usual one first.
        interface: The interface of the task.
        without_classes: The family's usual head that needs no classes.

    Raises:
        UserError: If the head is none of `possible`, or needs classes that the task has not.
    """
    if head not in possible:
        raise UserError(
            f'config.model.head={head.value} does not output "{interface.output}", which the task needs: say '
            f"config.model.head={possible[0].value}"
        )
    if head.value in ("classes", "token_classes") and "classes" not in interface.vocabularies:
        raise UserError(
            f"config.model.head={head.value} needs a task with classes, as config.task.name=fine_tuning: "
            f"otherwise say config.model.head={without_classes.value}"
        )


def check_max_length(max_length: int, interface: TaskInterface) -> None:
    """Check that the sequences of a task fit the positions of a model.

    Raises:
        UserError: If they do not; gives the input, its length and the keys that could change it.
    """
    for name, spec in interface.inputs.items():
        if spec.positions is not None and spec.positions > max_length:
            raise UserError(
                f"the task's longest {name} has {spec.positions} positions, more than "
                f"config.model.max_length={max_length}; "
                "shorten it (config.task.bucket_lengths or config.task.context_length) or raise config.model.max_length"
            )
    if interface.max_decoded_length > max_length:
        raise UserError(
            f"the task's prompts with what follows have up to {interface.max_decoded_length} tokens, more than "
            f"config.model.max_length={max_length}; lower config.task.max_new_tokens, shorten config.task.prompts, or "
            "raise it"
        )
