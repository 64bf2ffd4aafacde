"""Sampling from the model's distribution: temperature, top-k and nucleus."""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Above, Config, Count, Range, UserError
from transformer.decoding.generate import Rollout, Tokens
from transformer.decoding.greedy import Hypotheses


class _State(NamedTuple):
    rows: Hypotheses
    keys: Key[Array, " R"]


@dataclasses.dataclass(frozen=True)
class Sampling(Config):
    """y_t ~ softmax(log p / temperature) over the `top_k` likeliest tokens, of those over the nucleus.

    top_k = 0 keeps all tokens (Fan et al. 2018 introduce the cut). The nucleus is the smallest set of the likeliest
    tokens whose probability, renormalized after the cut to top_k, reaches `top_p`: the token that crosses it is kept
    (Holtzman et al. 2020, section 3.1). Of equally likely tokens at a cut the first are kept. `beams` samples are
    drawn for every example; a sample's score is its log-probability under the distribution drawn from.

    The draws of one row depend on the key, the example's place in the batch, the sample's number and the step alone.

    Raises:
        UserError: For a temperature that is not above 0, top_k below 0, top_p outside (0, 1], and no sample.
    """

    temperature: float = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Above(0.0), Range(0.0, 1.0)] = 1.0
    beams: Annotated[int, Range(1, note=": it is the number of samples an example")] = 1

    def _check(self) -> None:
        # Accelerators flush smaller numbers to 0.
        if not np.finfo(np.float32).tiny <= self.temperature <= np.finfo(np.float32).max:
            raise UserError(f"temperature={self.temperature} must be above 0 and finite; greedy decoding is its limit")

    def start(self, examples: int, length: int, tokens: Tokens, key: Key[Array, ""] | None) -> _State:
        """A key for every row.

        Raises:
            ValueError: If no key is given.
        """
        if key is None:
            raise ValueError("key=None: sampling draws by a key; give generate(..., key=jax.random.key(seed))")
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        keys_BxN = jax.vmap(fold, (0, None))(fold(key, jnp.arange(examples)), jnp.arange(self.beams))
        return _State(Hypotheses.empty(examples * self.beams, length, tokens), keys_BxN.reshape(-1))

    def choose(
        self,
        state: _State,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: Tokens,
    ) -> tuple[_State, Int[Array, " R"], None]:
        kept_RxK, index_RxK = self.kept(log_probability_RxV)
        keys_R = jax.vmap(jax.random.fold_in, (0, None))(state.keys, step)
        place_R = jax.vmap(jax.random.categorical)(keys_R, kept_RxK)[:, None]
        gained_R = jnp.take_along_axis(kept_RxK, place_R, axis=1)[:, 0]
        drawn_R = place_R[:, 0] if index_RxK is None else jnp.take_along_axis(index_RxK, place_R, axis=1)[:, 0]
        rows, next_R = state.rows.append(drawn_R, gained_R, ends_RxV, step, tokens)
        return _State(rows, state.keys), next_R, None

    def kept(self, log_probability_RxV: Float[Array, "R V"]) -> tuple[Float[Array, "R K"], Int[Array, "R K"] | None]:
        """The log-probabilities to draw from, -inf for cut tokens, and their token numbers (None: all in order)."""
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
        return jax.nn.log_softmax(scaled), index_RxK

    def done(self, state: _State, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.all(state.rows.ended)

    def finish(self, state: _State, tokens: Tokens) -> Rollout:
        return state.rows.rollout(self.beams)
