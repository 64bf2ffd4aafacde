"""Which tokens of a text a masked language model must predict, and what it is shown in their place."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.draws import drawn

# Of the tokens to predict: shown as the mask token, shown as a random token; the rest is shown as it is.
SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1


class Masked(NamedTuple):
    """What the model sees, and where it must predict."""

    tokens: Int[Array, "B T"]
    predicted: Bool[Array, "B T"]


def mask_tokens(
    tokens_BxT: Int[Array, "B T"],
    eligible_BxT: Bool[Array, "B T"],
    word_BxT: Int[Array, "B T"],
    key: Key[Array, ""],
    *,
    share: float,
    mask: int,
    ordinary_N: Int[Array, " N"],
) -> Masked:
    """Choose the `share` of each row's eligible tokens, and hide them 80 / 10 / 10 (Devlin et al. 2019, section 3.1).

    Whole words are chosen, in an order drawn by `key`, as long as they fit the share: `word_BxT` numbers the words
    of a row from 0; with a word a token the share is met to the token. The first word of the order is always chosen.
    Of the chosen tokens 80 % are replaced by `mask`, 10 % by one of the `ordinary` tokens; 10 % stay.
    """
    choosing, showing, drawing = jax.random.split(key, 3)
    predicted_BxT = jax.vmap(_choose, (0, 0, 0, None))(
        eligible_BxT, word_BxT, drawn(jax.random.uniform, choosing, tokens_BxT.shape), share
    )
    fate_BxT = drawn(jax.random.uniform, showing, tokens_BxT.shape)
    number = partial(jax.random.randint, minval=0, maxval=ordinary_N.shape[0])
    random_BxT = jnp.take(ordinary_N, drawn(number, drawing, tokens_BxT.shape))
    shown_BxT = jnp.where(fate_BxT < SHOWN_AS_MASK + SHOWN_AS_RANDOM, random_BxT, tokens_BxT)
    shown_BxT = jnp.where(fate_BxT < SHOWN_AS_MASK, mask, shown_BxT)
    return Masked(jnp.where(predicted_BxT, shown_BxT, tokens_BxT).astype(tokens_BxT.dtype), predicted_BxT)


def mask_examples(
    tokens_BxT: Int[Array, "B T"],
    eligible_BxT: Bool[Array, "B T"],
    word_BxT: Int[Array, "B T"],
    index_B: Int[Array, " B"],
    hide: Callable[..., Masked],
) -> Masked:
    """`hide` for every row by a key that is made of the example's number alone, so that it always hides the same."""

    def row(tokens_T: Array, eligible_T: Array, word_T: Array, index: Array) -> Masked:
        key = jax.random.fold_in(jax.random.key(0), index.astype(jnp.uint32))
        return hide(tokens_T[None], eligible_T[None], word_T[None], key)

    return jax.tree.map(lambda x: x[:, 0], jax.vmap(row)(tokens_BxT, eligible_BxT, word_BxT, index_B))


def words_of_row(starts_BxT: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """The number of the word that each token belongs to, given which tokens begin one."""
    return jnp.maximum(jnp.cumsum(starts_BxT, axis=1) - 1, 0)


def _choose(
    eligible_T: Bool[Array, " T"], word_T: Int[Array, " T"], luck_T: Float[Array, " T"], share: float
) -> Bool[Array, " T"]:
    """The tokens of one row whose words come first in the order of `luck` and fit the share."""
    size_W = jax.ops.segment_sum(eligible_T.astype(jnp.int32), word_T, num_segments=word_T.shape[0])
    order_W = jnp.argsort(jnp.where(size_W > 0, luck_T, jnp.inf))
    taken_W = jnp.cumsum(size_W[order_W])
    budget = jnp.round(share * jnp.sum(eligible_T)).astype(jnp.int32)
    fits_W = (taken_W <= jnp.maximum(budget, size_W[order_W[0]])) & (size_W[order_W] > 0)
    chosen_W = jnp.zeros_like(fits_W).at[order_W].set(fits_W)
    return chosen_W[word_T] & eligible_T
