"""Sampling from the model's distribution with temperature, top-k, nucleus (top-p), min-p and typical sets."""

import dataclasses
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Config, Fraction, NonNegativeInt, PositiveFraction, Range, UserError
from transformer.decoding.generation import DecodedSequences, SpecialTokens
from transformer.decoding.greedy import Hypotheses


class _State(NamedTuple):
    rows: Hypotheses
    keys: Key[Array, " R"]


@dataclasses.dataclass(frozen=True)
class Sampling(Config):
    """Sampling y_t ~ softmax(log p / temperature) from the tokens that top-k, top-p, min-p and typical-p keep, in turn.

    The nucleus is the smallest set of the most probable tokens whose probability, renormalized after top-k, reaches
    `top_p`, including the token that crosses it (Holtzman et al. 2020, section 3.1); top-k is from Fan et al. 2018.
    Min-p keeps the tokens of at least `min_p` times the probability of the best one (Nguyen et al. 2025, section 3).
    The typical set has the tokens whose information is nearest to the entropy, as many as reach `typical_p` (Meister et
    al. 2023, equation 11). Ties at a cut of the first two keep the first tokens. A sample's score is its
    log-probability under the distribution that it is sampled from. The samples of a row depend only on the key, the
    example's index in the batch, the sample's index and the step.

    Attributes:
        temperature: The temperature, above 0.
        top_k: How many tokens to keep; 0 for all.
        top_p: The probability of the nucleus; 1 for all.
        min_p: The least probability, as a part of the greatest; 0 for all.
        typical_p: The probability of the typical set; 1 for all.
        num_beams: How many samples to draw per example.

    Raises:
        UserError: If `temperature` is not above 0 and finite, `top_k` is below 0, `top_p` or `typical_p` is
            outside (0, 1], `min_p` is outside [0, 1], or `num_beams` is below 1.
    """

    temperature: float = 1.0
    top_k: NonNegativeInt = 0
    top_p: PositiveFraction = 1.0
    min_p: Fraction = 0.0
    typical_p: PositiveFraction = 1.0
    num_beams: Annotated[int, Range(1, note=": it is the number of samples an example")] = 1

    limits_log_probabilities: ClassVar[bool] = False

    def _check(self) -> None:
        # Accelerators flush smaller numbers to 0.
        if not np.finfo(np.float32).tiny <= self.temperature <= np.finfo(np.float32).max:
            raise UserError(f"temperature={self.temperature} must be above 0 and finite; greedy decoding is its limit")

    def start(self, examples: int, length: int, tokens: SpecialTokens, key: Key[Array, ""] | None) -> _State:
        """Return the state with a random key for every row.

        Raises:
            ValueError: If there is no key.
        """
        if key is None:
            raise ValueError("key=None: sampling draws by a key; give generate(..., key=jax.random.key(seed))")
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        keys_BxN = jax.vmap(fold, (0, None))(fold(key, jnp.arange(examples)), jnp.arange(self.num_beams))
        return _State(Hypotheses.empty(examples * self.num_beams, length, tokens), keys_BxN.reshape(-1))

    def choose(
        self,
        state: _State,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple[_State, Int[Array, " R"], None]:
        kept_RxK, index_RxK = self.truncate(log_probability_RxV)
        keys_R = jax.vmap(jax.random.fold_in, (0, None))(state.keys, step)
        place_R = jax.vmap(jax.random.categorical)(keys_R, kept_RxK)[:, None]
        gained_R = jnp.take_along_axis(kept_RxK, place_R, axis=1)[:, 0]
        drawn_R = place_R[:, 0] if index_RxK is None else jnp.take_along_axis(index_RxK, place_R, axis=1)[:, 0]
        rows, next_R = state.rows.append(drawn_R, gained_R, ends_RxV, step, tokens)
        return _State(rows, state.keys), next_R, None

    def truncate(
        self, log_probability_RxV: Float[Array, "R V"]
    ) -> tuple[Float[Array, "R K"], Int[Array, "R K"] | None]:
        """Apply temperature, top-k, top-p, min-p and typical-p.

        Args:
            log_probability_RxV: The log-probabilities of all tokens.

        Returns:
            The log-probabilities to sample from, -inf for tokens that are cut off, and the tokens that they belong to
            (None: all tokens in order).
        """
        best_Rx1 = jnp.max(log_probability_RxV, axis=-1, keepdims=True)
        # Relative to the best, so that a small temperature does not turn it into -inf.
        scaled = (log_probability_RxV - best_Rx1) / self.temperature
        vocabulary, index_RxK = scaled.shape[-1], None
        if 0 < self.top_k < vocabulary or self.top_p < 1:
            scaled, index_RxK = jax.lax.top_k(scaled, min(self.top_k or vocabulary, vocabulary))
        if self.top_p < 1:
            probability_RxK = jax.nn.softmax(scaled)
            before_RxK = jnp.cumsum(probability_RxK, axis=-1) - probability_RxK
            scaled = jnp.where(before_RxK < self.top_p, scaled, -jnp.inf)
        if self.min_p > 0:
            least_Rx1 = jnp.max(scaled, axis=-1, keepdims=True) + jnp.log(self.min_p)
            scaled = jnp.where(scaled >= least_Rx1, scaled, -jnp.inf)
        if self.typical_p < 1:
            scaled = jnp.where(_is_typical(jax.nn.log_softmax(scaled), self.typical_p), scaled, -jnp.inf)
        return jax.nn.log_softmax(scaled), index_RxK

    def done(self, state: _State, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.all(state.rows.ended)

    def finish(self, state: _State, tokens: SpecialTokens) -> DecodedSequences:
        return state.rows.to_decoded_sequences(self.num_beams)


def _is_typical(log_probability_RxK: Float[Array, "R K"], mass: float) -> Bool[Array, "R K"]:
    """Return the tokens whose information differs least from the entropy and whose probability reaches the mass.

    As in transformers, a token as far from the entropy as the last one of the set is in it too.
    """
    probability_RxK = jnp.exp(log_probability_RxK)
    information_RxK = -log_probability_RxK
    entropy_Rx1 = jnp.sum(jnp.where(probability_RxK > 0, probability_RxK * information_RxK, 0), axis=-1, keepdims=True)
    distance_RxK = jnp.abs(information_RxK - entropy_Rx1)
    order_RxK = jnp.argsort(distance_RxK, axis=-1, stable=True)
    reached_RxK = jnp.cumsum(jnp.take_along_axis(probability_RxK, order_RxK, axis=-1), axis=-1)
    last_Rx1 = jnp.minimum(jnp.sum(reached_RxK < mass, axis=-1, keepdims=True), distance_RxK.shape[-1] - 1)
    limit_Rx1 = jnp.take_along_axis(distance_RxK, jnp.take_along_axis(order_RxK, last_Rx1, axis=-1), axis=-1)
    return distance_RxK <= limit_Rx1
