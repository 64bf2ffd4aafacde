"""Shallow fusion: a model whose decoding adds the score of a language model."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.decoding.ensemble import split_variables
from transformer.models.model import Aux, Cache, Inputs, Model, PyTree, Variables


@dataclasses.dataclass(frozen=True)
class ShallowFusion(Model):
    """Shallow fusion, s(y | x) = log p(y | x) + weight log p_LM(y), at every step (Gulcehre et al. 2015, section 4.1).

    Chan et al. 2016 (equation 16) rerank finished hypotheses by log p(y | x) / |y| plus the language model's score;
    here the search itself follows the sum, as in later speech recognizers. Variables and caches hold those of both
    models, the main model's first. `step` returns s, which is not a log-probability and must not be normalized.
    Everything but decoding is the main model's.

    Attributes:
        main_model: The model whose outputs are decoded.
        language_model: A model that continues tokens.
        token_map: The language model's index of each token of the main model; that of the begin token is what it
            reads first.
        weight: The weight of the language model.
    """

    main_model: Model = None  # type: ignore[assignment]
    language_model: Model = None  # type: ignore[assignment]
    token_map: tuple[int, ...] = ()
    weight: float = 0.0

    @classmethod
    def of(cls, main_model: Model, language_model: Model, token_map: tuple[int, ...], weight: float) -> "ShallowFusion":
        """Combine both models; sites and `max_length` are the main model's.

        Args:
            main_model: The model whose outputs are decoded.
            language_model: A model that continues tokens.
            token_map: The language model's index of each token of the main model.
            weight: The weight of the language model.

        Returns:
            The combined model; its variables are those of `join_variables`.
        """
        return cls(
            main_model.functional,
            main_model.sites,
            main_model.max_length,
            main_model,
            language_model,
            token_map,
            weight,
        )

    def apply(self, variables: Variables, inputs: Inputs, **options: Any) -> tuple[PyTree, Aux]:
        """Apply the main model only: known targets are scored without the language model."""
        return self.main_model.apply(split_variables(variables)[0], inputs, **options)

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Return both caches; the language model has read the begin token."""
        main_variables, language_variables = split_variables(variables)
        cache, first_R = self.main_model.init_cache(main_variables, inputs, num_beams=num_beams, length=length)
        prompt_Bx1 = jnp.take(jnp.asarray(self.token_map), first_R[::num_beams])[:, None]
        language_cache, _ = self.language_model.init_cache(
            language_variables, {"tokens": prompt_Bx1}, num_beams=num_beams, length=length
        )
        return Cache(*zip(cache, language_cache, strict=True)), first_R

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Step both models on the same tokens; return s of every token, and the main model's maps."""
        (main_variables, language_variables), token_map_V = split_variables(variables), jnp.asarray(self.token_map)
        main_cache, language_cache = (Cache(*fields) for fields in zip(*cache, strict=True))
        logits_RxV, main_cache, aux = self.main_model.step(
            main_variables, main_cache, tokens_R, key=key, capture=capture
        )
        read_R = jnp.take(token_map_V, tokens_R)
        logits_RxW, language_cache, _ = self.language_model.step(language_variables, language_cache, read_R)
        language_RxV = jax.nn.log_softmax(logits_RxW)[:, token_map_V]
        # Rows of the main model's vocabulary beyond its tokens; they are never generated.
        language_RxV = jnp.pad(language_RxV, ((0, 0), (0, logits_RxV.shape[1] - len(self.token_map))))
        scores_RxV = jax.nn.log_softmax(logits_RxV) + self.weight * language_RxV
        return scores_RxV, Cache(*zip(main_cache, language_cache, strict=True)), aux._replace(state=variables.state)
