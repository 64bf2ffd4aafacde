"""One loop for every way of decoding: step the model, let a chooser pick tokens, re-order the cache."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.models.contract import Cache, Inputs, Model, Variables


class Tokens(NamedTuple):
    """The special token numbers that decoding must know."""

    pad: int
    begin: int
    end: int


class Rollout(NamedTuple):
    """What decoding returns, best hypothesis first; `tokens` ends with `end` where it fits, then padding."""

    tokens: Int[Array, "B N T"]
    scores: Float[Array, "B N"]


class Chooser(Protocol):
    """How the next token of every row is chosen."""

    @property
    def beams(self) -> int:
        """Rows an example."""

    def start(self, examples: int, length: int, tokens: Tokens) -> Any:
        """The chooser's state before the first step."""

    def choose(
        self, state: Any, log_probability_RxV: Array, step: Array, tokens: Tokens
    ) -> tuple[Any, Array, Array | None]:
        """The next state, each row's token, and each row's parent row (None: the row itself)."""

    def done(self, state: Any, step: Array) -> Bool[Array, ""]:
        """Whether no further step can change the result."""

    def finish(self, state: Any, tokens: Tokens) -> Rollout:
        """The result of the last state."""


def generate(
    model: Model,
    variables: Variables,
    inputs: Inputs,
    *,
    chooser: Chooser,
    length: int,
    tokens: Tokens,
) -> Rollout:
    """Decode at most `length` tokens for every example in one loop that stops when all are done.

    Jit it with `model`, `chooser`, `length` and `tokens` static.
    """
    cache, first_R = model.init_cache(variables, inputs, beams=chooser.beams, length=length)
    examples = first_R.shape[0] // chooser.beams

    def advance(carry: tuple) -> tuple:
        step, tokens_R, cache, state = carry
        logits_RxV, cache = model.step(variables, cache, tokens_R)
        log_probability_RxV = jax.nn.log_softmax(logits_RxV.at[:, jnp.array(tokens[:2])].set(-jnp.inf))
        state, tokens_R, parents_R = chooser.choose(state, log_probability_RxV, step, tokens)
        if parents_R is not None:
            cache = Cache(
                jax.tree.map(lambda leaf: leaf[:, parents_R], cache.layers),
                jax.tree.map(lambda leaf: leaf[parents_R], cache.rows),
                cache.examples,
            )
        return step + 1, tokens_R, cache, state

    def going(carry: tuple) -> Array:
        step, _, _, state = carry
        return (step < length) & ~chooser.done(state, step)

    start = (jnp.int32(0), first_R, cache, chooser.start(examples, length, tokens))
    *_, state = jax.lax.while_loop(going, advance, start)
    return chooser.finish(state, tokens)
