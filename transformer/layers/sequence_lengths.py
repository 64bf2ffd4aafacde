"""Lengths and padding. Padding has a token of its own and only follows the end of a row."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer.config import UserError


def check_num_positions(count: int, max_length: int | None, sequence: str) -> None:
    """Check that a sequence has no more positions than a model, while it is traced.

    Args:
        count: The number of its positions, padding included.
        max_length: The model's number of positions; None for no limit.
        sequence: What it is, for the message.

    Raises:
        UserError: If it has more: a table of learned positions would give NaN.
    """
    if max_length is not None and count > max_length:
        raise UserError(
            f"{sequence} has {count} positions, more than the model's {max_length}: shorten it, or raise "
            "config.model.max_length"
        )


class Prompts(NamedTuple):
    """Prompts that are to be continued.

    Attributes:
        tokens_BxP: The tokens, right-padded.
        last_B: The position of each prompt's last token.
    """

    tokens_BxP: Int[Array, "B P"]
    last_B: Int[Array, " B"]

    def last_tokens(self) -> Int[Array, " B"]:
        """The last token of each prompt."""
        return jnp.take_along_axis(self.tokens_BxP, self.last_B[:, None], axis=1)[:, 0]

    def check_room(self, length: int, max_length: int) -> None:
        """Check that `length` tokens can follow the prompts; the last of them is generated but not read.

        Raises:
            UserError: If the model has too few positions.
        """
        width = self.tokens_BxP.shape[1]
        sequence = f"a prompt of {width} tokens with the {length} to be generated, but for the last,"
        check_num_positions(width + length - 1, max_length, sequence)


def read_prompts(inputs: Mapping[str, jax.Array | np.ndarray]) -> Prompts:
    """Read the inputs `tokens` [B, P] and, for prompts of unequal lengths, `lengths` [B].

    Raises:
        UserError: If a prompt has no token to begin with; of `lengths` that are traced this is not known.
    """
    tokens_BxP = jnp.asarray(inputs["tokens"])
    examples, width = tokens_BxP.shape
    lengths_B = inputs.get("lengths", np.full(examples, width, np.int32))
    if width == 0 or (not isinstance(lengths_B, jax.core.Tracer) and np.any(np.asarray(lengths_B) < 1)):
        raise UserError("a prompt has no token: begin it with the begin token, or with the end token if there is none")
    return Prompts(tokens_BxP, jnp.asarray(lengths_B) - 1)


def real_lengths(tokens_BxT: Int[Array, "B T"], pad: int) -> Int[Array, " B"]:
    """Count the tokens of each row that are not padding."""
    return jnp.sum(tokens_BxT != pad, axis=1)


def target_lengths(target_BxT: Int[Array, "B T"], source_lengths_B: Int[Array, " B"], pad: int) -> Int[Array, " B"]:
    """The lengths of a decoder's inputs: targets after their begin token.

    The begin token always counts, because it may be the padding token itself (Marian, T5). A row without a source only
    fills the batch; its target has length 0.

    Args:
        target_BxT: The inputs, begin token first.
        source_lengths_B: The lengths of the sources.
        pad: The padding token.

    Returns:
        The length of each target.
    """
    return jnp.where(source_lengths_B > 0, 1 + jnp.sum(target_BxT[:, 1:] != pad, axis=1), 0)


def real_positions(lengths_B: Int[Array, " B"], count: int) -> Bool[Array, "B T"]:
    """Which of `count` positions come before the end of each row."""
    return jnp.arange(count, dtype=jnp.int32)[None] < lengths_B[:, None]
