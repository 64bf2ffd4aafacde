"""A model whose hypotheses a language model weighs as well: shallow fusion."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.decoding.ensemble import each_of
from transformer.models.model import Aux, Cache, Inputs, Model, PyTree, Variables


@dataclasses.dataclass(frozen=True)
class Fused(Model):
    """s(y | x) = log p(y | x) + weight log p_L(y), step by step (Gulcehre et al. 2015, section 4.1).

    Chan et al. 2016 (equation 16) rank what a search without a language model ends with, by log p(y | x) / |y| in place
    of log p(y | x); here the search itself is led by the sum, as in later recognizers.
    `language` is a model that continues tokens; `tokens` has the number that it knows each of the listener's tokens by,
    that of the begin token being what it reads first. `variables` and caches hold those of both, the listener's first.
    Steps give s itself, which is no log-probability, and which decoding must not norm. Everything but
    decoding is the listener's own.
    """

    listener: Model = None  # type: ignore[assignment]
    language: Model = None  # type: ignore[assignment]
    tokens: tuple[int, ...] = ()
    weight: float = 0.0

    @classmethod
    def of(cls, listener: Model, language: Model, tokens: tuple[int, ...], weight: float) -> "Fused":
        """Both as one, with the listener's sites."""
        return cls(listener.functional, listener.sites, listener.max_length, listener, language, tokens, weight)

    def apply(self, variables: Variables, inputs: Inputs, **options: Any) -> tuple[PyTree, Aux]:
        """The listener's: known targets are scored without the language model."""
        return self.listener.apply(each_of(variables)[0], inputs, **options)

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Both caches; the language model has read the begin token alone."""
        of_listener, of_language = each_of(variables)
        cache, first_R = self.listener.init_cache(of_listener, inputs, beams=beams, length=length)
        prompt_Bx1 = jnp.take(jnp.asarray(self.tokens), first_R[::beams])[:, None]
        theirs, _ = self.language.init_cache(of_language, {"tokens": prompt_Bx1}, beams=beams, length=length)
        return Cache(*zip(cache, theirs, strict=True)), first_R

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """One step of both on the same tokens: s of each token, and the listener's maps."""
        (of_listener, of_language), numbers_V = each_of(variables), jnp.asarray(self.tokens)
        mine, theirs = (Cache(*each) for each in zip(*cache, strict=True))
        logits_RxV, mine, aux = self.listener.step(of_listener, mine, tokens_R, key=key, capture=capture)
        read_R = jnp.take(numbers_V, tokens_R)
        logits_RxW, theirs, _ = self.language.step(of_language, theirs, read_R)
        likely_RxV = jax.nn.log_softmax(logits_RxW)[:, numbers_V]
        # Rows of the listener's table that are no token have no name either; they are never generated.
        likely_RxV = jnp.pad(likely_RxV, ((0, 0), (0, logits_RxV.shape[1] - len(self.tokens))))
        scores_RxV = jax.nn.log_softmax(logits_RxV) + self.weight * likely_RxV
        return scores_RxV, Cache(*zip(mine, theirs, strict=True)), aux._replace(state=variables.state)
