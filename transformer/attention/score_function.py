"""What every score is: a function of queries and keys that is prepared for the keys first."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.blocks import Block, Keys, Logits, Queries

Prepared = Float[Array, "B K _ _"]
Shapes = dict[str, tuple[int, ...]]


class ScoreFunction(Block):
    """One score, and what is to be known of it.

    `product`: it is an inner product of a vector of the query's and one of the key's, without trained parameters,
    which kernels that work in blocks can compute; `dot`: of the query and the key themselves. `raw`: keys need no
    preparation. `scaled`: it has a scale. `hidden`: a hidden layer stands between a query and its logit. `matrices`:
    of which sides each head's vectors are multiplied with a matrix.
    """

    product = dot = raw = scaled = hidden = False
    matrices: tuple[str, ...] = ()

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        """The shapes that the parameters must have for queries and keys of these shapes."""
        return {}

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        """Refuse parameters that do not fit queries and keys of these shapes; `keys` is the name of the argument."""
        for name, needed in self.shapes(q, k).items():
            shape = getattr(self, name).shape
            if shape != needed:
                raise ValueError(f"params.score.{name} has shape {shape}; q {q} and {keys} {k} need {needed}")

    def key_side(self, depth: int) -> tuple[str, bool] | None:
        """The field that meets the keys, and whether it fits keys of this depth; None where no field does."""
        return None

    def query(self, q_BxQxHxD: Queries) -> Queries:
        """The queries as their product with the prepared keys takes them."""
        return q_BxQxHxD

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        """All of the score that depends on the keys alone."""
        return k_BxKxGxC

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        """The score of each of `query` with each of `prepare`, before it is scaled."""
        return grouped_products(q_BxQxHxD, prepared)

    def scale(self, depth: int, given: float | None) -> float:
        """What the logits are multiplied with."""
        return 1.0


def grouped_products(q_BxQxHxD: Float[Array, "B Q H D"], k_BxKxGxD: Float[Array, "B K G D"]) -> Logits:
    """Q . k in at least float32, where each of the G key heads serves H / G neighbouring query heads."""
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    batch, queries, heads, depth = q_BxQxHxD.shape
    keys, groups = k_BxKxGxD.shape[1:3]
    if heads == groups:
        return jnp.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, k_BxKxGxD, preferred_element_type=wide)
    grouped = q_BxQxHxD.reshape(batch, queries, groups, heads // groups, depth)
    products = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k_BxKxGxD, preferred_element_type=wide)
    return products.reshape(batch, heads, queries, keys)


def repeat_heads(x_BxKxGxD: Float[Array, "B K G D"], heads: int) -> Float[Array, "B K H D"]:
    """Each of the G heads, for the H / G query heads that it serves."""
    return jnp.repeat(x_BxKxGxD, heads // x_BxKxGxD.shape[2], axis=2)
