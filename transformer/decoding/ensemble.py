"""Several trained models as one, whose probabilities are the mean of theirs."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.models.model import Aux, Cache, Inputs, Model, PyTree, Variables


@dataclasses.dataclass(frozen=True)
class Ensemble(Model):
    """p(token) = (1 / N) sum_n p_n(token): models of one vocabulary, of any families, that read the same inputs.

    `variables` and caches hold those of all members, in their order. It is for reading trained runs: it has no maps and
    is not trained. Logits are log-probabilities.
    """

    members: tuple[Model, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Model]) -> "Ensemble":
        """The ensemble of these models; its greatest length is the least of theirs."""
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
        """The log-probabilities of `forward`; also of `hidden`, which `logits` then leaves as they are.

        Raises:
            ValueError: In training, and for another method.
        """
        if train or method not in ("forward", "hidden"):
            raise ValueError(f"an ensemble scores tokens outside of training: it has no {method} with train={train}")
        outputs = [
            member.apply(of_member, inputs, train=False)[0]
            for member, of_member in zip(self.members, each_of(variables), strict=True)
        ]
        return _mean(outputs), Aux({}, {}, variables.state)

    def logits(self, variables: Variables, hidden: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """What `apply` gave."""
        return hidden

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """The caches of all members, which begin with the same tokens."""
        caches, tokens = zip(
            *(
                member.init_cache(of_member, inputs, beams=beams, length=length)
                for member, of_member in zip(self.members, each_of(variables), strict=True)
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
        """One step of every member on the same tokens."""
        logits, caches, _ = zip(
            *(
                member.step(of_member, Cache(*of_cache), tokens_R, key=key)
                for member, of_member, of_cache in zip(
                    self.members, each_of(variables), zip(*cache, strict=True), strict=True
                )
            ),
            strict=True,
        )
        return _mean(logits), Cache(*zip(*caches, strict=True)), Aux({}, {}, variables.state)


def joined(variables: Sequence[Variables]) -> Variables:
    """The variables of the members as those of their ensemble."""
    return Variables(tuple(each.params for each in variables), tuple(each.state for each in variables))


def each_of(variables: Variables) -> list[Variables]:
    """The inverse of `joined`."""
    return [Variables(*each) for each in zip(*variables, strict=True)]


def _mean(logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
    """The logarithm of the mean of softmax(logits), in at least float32."""
    wide = [each.astype(jnp.promote_types(each.dtype, jnp.float32)) for each in logits]
    stacked = jnp.stack([jax.nn.log_softmax(each) for each in wide])
    return jax.nn.logsumexp(stacked, axis=0) - jnp.log(len(logits))
