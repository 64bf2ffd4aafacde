"""One loop for every way of decoding: step the model, let a chooser pick tokens, re-order the cache."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, Captured
from transformer.decoding.constraints import Constraints, Prompt
from transformer.decoding.shallow_fusion import Fused
from transformer.layers.beam_rows import repeat_rows
from transformer.models.model import Inputs, Model, Variables

# A position that was never attended to counts as if it had been by this much: the penalty stays finite.
LEAST_COVERAGE = 1e-6
# The number of the model's stream within a rollout's key; choosers draw from others.
_MODEL_STREAM = 2**32 - 1


class Tokens(NamedTuple):
    """The special token numbers that decoding must know; None for one that the vocabulary does not have.

    `known`: how many tokens there are, of a model whose table has rows beyond them, which are never generated.
    """

    pad: int | None = None
    begin: int | None = None
    end: int | None = None
    known: int | None = None

    @property
    def never(self) -> list[int]:
        """Tokens that are never generated: padding and begin, unless begin is also the end, as in GPT-2."""
        return [token for token in (self.pad, self.begin) if token is not None and token != self.end]

    @property
    def fill(self) -> int:
        """The token behind the end of a rollout: padding, else the end token, else token 0."""
        return next((token for token in (self.pad, self.end) if token is not None), 0)


class Rollout(NamedTuple):
    """The result of decoding: the best hypothesis first; samples in the order in which they are drawn.

    `tokens` holds `lengths` tokens, including the one that ended it, if any; `Tokens.fill` follows.
    """

    tokens: Int[Array, "B N T"]
    scores: Float[Array, "B N"]
    lengths: Int[Array, "B N"]


class Chooser(Protocol):
    """How the next token of every row is chosen."""

    @property
    def beams(self) -> int:
        """Rows an example."""

    def start(self, examples: int, length: int, tokens: Tokens, key: Key[Array, ""] | None) -> Any:
        """The chooser's state before the first step."""

    def choose(
        self,
        state: Any,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: Tokens,
    ) -> tuple[Any, Int[Array, " R"], Int[Array, " R"] | None]:
        """The next state, each row's token, and each row's parent row (None: the row itself).

        `ends_RxV` says which tokens would end a row.
        """

    def done(self, state: Any, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether no further step can change the result."""

    def finish(self, state: Any, tokens: Tokens) -> Rollout:
        """The result of the last state."""


class Covering(Chooser, Protocol):
    """A chooser of hypotheses that can have a penalty beside their probability."""

    def penalized(self, state: Any, penalty_R: Float[Array, " R"]) -> Any:
        """The state whose hypotheses have these penalties if they end at the next choice."""


class Coverage(NamedTuple):
    """cp(X; Y) = `weight` sum_i log(min(sum_j p_ij, 1)) (Wu et al. 2016, equation 14), at most 0.

    p_ij is the weight of position i of the source at step j, of all layers and heads of the `sites` the mean; i counts
    the real positions.
    """

    weight: float
    sites: tuple[str, ...]
    real_BxS: Bool[Array, "B S"]

    @property
    def capture(self) -> Capture:
        """What is asked of every step."""
        return Capture(self.sites)

    def initial(self, beams: int) -> Float[Array, "R S"]:
        """What hypotheses have attended to before their first step, `beams` of them for each example."""
        return jnp.zeros((len(self.real_BxS) * beams, self.real_BxS.shape[1]))

    def attended(self, maps: Mapping[str, Captured]) -> Float[Array, "R S"]:
        """The mean weight of each source position at one step."""
        each = []
        for site in self.sites:
            weights_LxRxHx1xS = maps[site].weights
            assert weights_LxRxHx1xS is not None
            each.append(jnp.mean(weights_LxRxHx1xS[:, :, :, 0], axis=(0, 2)))
        return jnp.mean(jnp.stack(each), axis=0)

    def penalty(self, attended_RxS: Float[Array, "R S"]) -> Float[Array, " R"]:
        """The penalty of hypotheses whose steps attended so much, summed, to each source position."""
        real_RxS = repeat_rows(self.real_BxS, len(attended_RxS) // len(self.real_BxS))
        covered_RxS = jnp.log(jnp.clip(attended_RxS, LEAST_COVERAGE, 1))
        return self.weight * jnp.sum(jnp.where(real_RxS, covered_RxS, 0), axis=1)


def generate(
    model: Model,
    variables: Variables,
    inputs: Inputs,
    *,
    chooser: Chooser,
    length: int,
    tokens: Tokens,
    key: Key[Array, ""] | None = None,
    prompt: Prompt | None = None,
    constraints: Constraints | None = None,
    coverage: Coverage | None = None,
) -> Rollout:
    """Decode at most `length` tokens for every example in one loop that stops when all are done.

    A step takes the model's logits, penalizes and forbids (`constraints`, then padding and begin), normalizes (but for
    a `Fused` model), and lets the chooser pick: scores are sums of these log-probabilities. A row ends with the end
    token or with the token that completes a stop string. `key` gives a stream of random numbers to the chooser and
    another to the model's steps; none of the library's families draws there, and hard attention reads its likeliest
    key. `prompt` holds the tokens that the inputs begin with; a repetition penalty counts them, and the rollout does
    not contain them. With `coverage` the steps return their attention, and the chooser, which must be `Covering`, ranks
    what has ended by its penalty as well.

    Jit it with `model`, `chooser`, `length` and `tokens` static.

    Raises:
        ValueError: For a forbidden token or a table of stop strings that does not fit the vocabulary, for a chooser
            that draws without a key, and for coverage with a chooser that ranks no hypotheses.
    """
    limits = Constraints() if constraints is None else constraints
    cache, first_R = model.init_cache(variables, inputs, beams=chooser.beams, length=length)
    rows = first_R.shape[0]
    vocabulary = jax.eval_shape(model.step, variables, cache, first_R)[0].shape[-1]
    of_model = None if key is None else jax.random.fold_in(key, _MODEL_STREAM)
    limits.check(vocabulary)
    end_V = np.arange(vocabulary) == tokens.end

    def advance(carry: tuple) -> tuple:
        step, tokens_R, cache, said, attended, state = carry
        step_key = None if of_model is None else jax.random.fold_in(of_model, step)
        asked = None if coverage is None else coverage.capture
        logits_RxV, cache, aux = model.step(variables, cache, tokens_R, key=step_key, capture=asked)
        if coverage is not None:
            attended = attended + coverage.attended(aux.maps)
            state = as_covering(chooser).penalized(state, coverage.penalty(attended))
        logits_RxV = limits.apply(logits_RxV, said)
        if tokens.never:
            logits_RxV = logits_RxV.at[:, jnp.array(tokens.never)].set(-jnp.inf)
        if tokens.known is not None:
            logits_RxV = logits_RxV.at[:, tokens.known :].set(-jnp.inf)
        ends_RxV = jnp.broadcast_to(end_V, logits_RxV.shape) | limits.ends(said)
        # What a language model has weighed are scores already.
        log_probability_RxV = logits_RxV if isinstance(model, Fused) else jax.nn.log_softmax(logits_RxV)
        state, tokens_R, parents_R = chooser.choose(state, log_probability_RxV, ends_RxV, step, tokens)
        if parents_R is not None:
            cache = cache._replace(
                layers=jax.tree.map(lambda leaf: leaf[:, parents_R], cache.layers),
                rows=jax.tree.map(lambda leaf: leaf[parents_R], cache.rows),
            )
            said, attended = jax.tree.map(lambda leaf: leaf[parents_R], (said, attended))
        return step + 1, tokens_R, cache, limits.advance(said, tokens_R), attended, state

    def going(carry: tuple) -> Array:
        step, *_, state = carry
        return (step < length) & ~chooser.done(state, step)

    said = limits.start(rows, vocabulary, prompt)
    chosen = chooser.start(rows // chooser.beams, length, tokens, key)
    attended = None if coverage is None else coverage.initial(chooser.beams)
    *_, state = jax.lax.while_loop(going, advance, (jnp.int32(0), first_R, cache, said, attended, chosen))
    return chooser.finish(state, tokens)


def as_covering(chooser: Chooser) -> Covering:
    """The chooser, if it can rank hypotheses by a penalty."""
    if not hasattr(chooser, "penalized"):
        raise ValueError(f"coverage needs a chooser that ranks hypotheses, a beam search: this is {chooser}")
    return cast(Covering, chooser)
