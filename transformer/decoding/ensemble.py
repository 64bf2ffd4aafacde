"""An ensemble of trained models that averages their probabilities."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.models.model import Aux, Cache, Inputs, Model, PyTree, Variables


@dataclasses.dataclass(frozen=True)
class Ensemble(Model):
    """An ensemble p(token) = (1 / N) sum_n p_n(token), of models with the same vocabulary and inputs.

    The members may be of different families. Variables and caches hold those of all members, in their order. An
    ensemble decodes and scores only: it cannot be trained and has no attention maps. Its logits are log-probabilities.

    Attributes:
        members: The models.
    """

    members: tuple[Model, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Model]) -> "Ensemble":
        """Build the ensemble of these models; its `max_length` is the smallest of theirs."""
        lengths = [member.max_length for member in members if member.max_length is not None]
        return cls(members[0].functional, (), min(lengths, default=None), tuple(members))

    def apply(
        self,
        variables: Variables,
        inputs: Inputs,
        *,
        method: str = "forward",
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[PyTree, Aux]:
        """Return the log-probabilities, for `forward` and for `hidden` (whose outputs `logits` returns unchanged).

        Args:
            variables: The variables from `join_variables`.
            inputs: The inputs by name.
            method: "forward" or "hidden".
            train: Must be False.
            key: Ignored.
            capture: Ignored.

        Returns:
            The log-probabilities, in float32 or wider, and auxiliary results without maps.

        Raises:
            ValueError: If `train` is set, or for another method.
        """
        if train or method not in ("forward", "hidden"):
            raise ValueError(f"an ensemble scores tokens outside of training: it has no {method} with train={train}")
        outputs = [
            member.apply(member_variables, inputs, train=False)[0]
            for member, member_variables in zip(self.members, split_variables(variables), strict=True)
        ]
        return _log_mean_probabilities(outputs), Aux({}, {}, variables.state)

    def logits(self, variables: Variables, hidden: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """Return the outputs of `apply` unchanged: they are log-probabilities."""
        return hidden

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Return the caches of all members, and their common first tokens."""
        caches, tokens = zip(
            *(
                member.init_cache(member_variables, inputs, num_beams=num_beams, length=length)
                for member, member_variables in zip(self.members, split_variables(variables), strict=True)
            ),
            strict=True,
        )
        return Cache(*zip(*caches, strict=True)), tokens[0]

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Step every member on the same tokens; return the log-probabilities, the next caches, and no maps."""
        logits, caches, _ = zip(
            *(
                member.step(member_variables, Cache(*member_cache), tokens_R, key=key)
                for member, member_variables, member_cache in zip(
                    self.members, split_variables(variables), zip(*cache, strict=True), strict=True
                )
            ),
            strict=True,
        )
        return _log_mean_probabilities(logits), Cache(*zip(*caches, strict=True)), Aux({}, {}, variables.state)


def join_variables(variables: Sequence[Variables]) -> Variables:
    """Join the variables of the members to those of their ensemble."""
    return Variables(tuple(member.params for member in variables), tuple(member.state for member in variables))


def split_variables(variables: Variables) -> list[Variables]:
    """Split the variables of an ensemble into those of its members."""
    return [Variables(*fields) for fields in zip(*variables, strict=True)]


def _log_mean_probabilities(logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
    """Return the logarithm of the mean of softmax(logits), in float32 or wider."""
    wide = [member_logits.astype(jnp.promote_types(member_logits.dtype, jnp.float32)) for member_logits in logits]
    stacked = jnp.stack([jax.nn.log_softmax(member_logits) for member_logits in wide])
    return jax.nn.logsumexp(stacked, axis=0) - jnp.log(len(logits))
