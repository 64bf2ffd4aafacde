"""Functions of the logits themselves, between scaling and what positions and a bias add."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.argument_checks import check_positive


@runtime_checkable
class LogitModification(Protocol):
    """A function of each logit and its place, with the arguments of FlexAttention (Dong et al. 2024, section 3).

    It must be elementwise, in operations of `jax.numpy`, and differentiable. A function of arrays is a pytree, such as
    a `jax.tree_util.Partial`. Any other must be hashable, as every module-level function and frozen dataclass is: a
    call with another function is another program.
    """

    def __call__(
        self,
        logits: Float[Array, "B H Q K"],
        batch: Int[Array, "B 1 1 1"],
        head: Int[Array, "1 H 1 1"],
        query: Int[Array, "#B 1 Q 1"],
        key: Int[Array, "#B 1 #Q K"],
        /,
    ) -> Float[Array, "B H Q K"]:
        """Return the modified logits.

        Args:
            logits: The scaled logits, before the position bias, the bias and the mask.
            batch: The example of each logit.
            head: Its head.
            query: The position of its query.
            key: The position of its key.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Softcap:
    """cap tanh(logit / cap), which keeps every logit between -cap and cap (Gemma Team 2024, section 2).

    Attributes:
        cap: The bound.

    Raises:
        ValueError: If `cap` is not finite and above 0.
    """

    cap: float

    def __post_init__(self) -> None:
        check_positive("cap", self.cap)

    def __call__(self, logits: Float[Array, "*B"], *_: Array) -> Float[Array, "*B"]:
        """Return the bounded logits."""
        return self.cap * jnp.tanh(logits / self.cap)
