"""The examples of FlexAttention and of attention-gym, as calls of `attend`, against their definition.

A function below is what a user writes. What is held against it is another text of the same definition: a rule of plain
numbers, or facts of a mask that say the same without a function.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from tests.oracles.peer_attention import Arrays, Rule, check, random_arrays
from transformer.attention import (
    AttentionParameters,
    AttentionPosition,
    AttentionSpec,
    Backend,
    Mask,
    Softcap,
    attend,
)
from transformer.attention.blockwise import LogitScaling, LogitTerms, attend_blockwise
from transformer.attention.indexed_function import index_function
from transformer.attention.masks import with_indexed_function

BATCH, HEADS, GROUPS, LENGTH, DEPTH = 2, 4, 2, 12, 8
SLOPES = np.float32([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = np.int32([[0] * 5 + [1] * 3 + [2] * 4, [0] * 2 + [1] * 9 + [2]])
PREFIXES = np.int32([3, 7])
# The first token of each image and the one behind its last; of the second example one image is empty.
IMAGES = np.int32([[[2, 5], [7, 10]], [[0, 4], [6, 6]]])
ANCESTORS = (-1, 0, 0, 1, 1, 2)
PAGES = np.int32([[2, 0, 1, -1], [1, 3, -1, 0]])


def both(*rules: Callable[..., Any]) -> Callable[..., Any]:
    """What FlexAttention's `and_masks` makes of mask functions."""
    return _Combined(rules, every=True)


def either(*rules: Callable[..., Any]) -> Callable[..., Any]:
    """What FlexAttention's `or_masks` makes of mask functions."""
    return _Combined(rules, every=False)


@dataclasses.dataclass(frozen=True)
class _Combined:
    rules: tuple[Callable[..., Any], ...]
    every: bool

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        visible = [rule(batch, head, query, key) for rule in self.rules]
        together = visible[0]
        for one in visible[1:]:
            together = together & one if self.every else together | one
        return together


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key <= query


def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query - key <= 3


def among_the_first_two(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key < 2


def dilated(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (jnp.abs(query - key) <= 4) & (jnp.abs(query - key) % 2 == 0)


def global_and_local(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (jnp.abs(query - key) <= 1) | (query < 2) | (key < 2)


def chunked(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query // 4 == key // 4) & (key <= query)


def block_causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key // 3 <= query // 3


def every_second_head_looks_back(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (head % 2 == 1) | (key <= query)


def window_doubles_by_head(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return jnp.abs(query - key) < 2**head


@dataclasses.dataclass(frozen=True)
class Neighborhood:
    """NATTEN of a canvas of rows of `width`: a square of `2 reach + 1` that is moved inside at the edges."""

    height: int
    width: int
    reach: int
    tile: int = 1

    def place(self, index: Any) -> tuple[Any, Any]:
        """Row and column of a token whose canvas is stored tile by tile."""
        tile, inside = index // self.tile**2, index % self.tile**2
        tiles = self.width // self.tile
        return tile // tiles * self.tile + inside // self.tile, tile % tiles * self.tile + inside % self.tile

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        visible: Any = True
        sizes = (self.height, self.width)
        for size, query_place, key_place in zip(sizes, self.place(query), self.place(key), strict=True):
            center = jnp.clip(query_place, self.reach, size - 1 - self.reach)
            visible = visible & (jnp.abs(center - key_place) <= self.reach)
        return visible


def neighborhood_rule(height: int, width: int, reach: int, tile: int = 1) -> Rule:
    """The same by the list of the tokens in storage."""
    places = [
        (row + r, column + c)
        for row in range(0, height, tile)
        for column in range(0, width, tile)
        for r in range(tile)
        for c in range(tile)
    ]

    def window_around(place: int, size: int) -> range:
        first = min(max(place - reach, 0), size - 1 - 2 * reach)
        return range(first, first + 2 * reach + 1)

    def sees(b: int, h: int, i: int, j: int) -> bool:
        (row, column), (key_row, key_column) = places[i], places[j]
        return key_row in window_around(row, height) and key_column in window_around(column, width)

    return Rule(sees)


def spatial_head(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Sparse VideoGen: 3 tokens of a prompt, then 3 frames of 3 tokens, of which a query sees its own and the next."""
    return (query < 3) | (key < 3) | (jnp.abs(query - key) < 4)


def temporal_head(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query < 3) | (key < 3) | ((query - 3) % 3 == (key - 3) % 3)


def same_document(documents_BxN: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return documents_BxN[batch, query] == documents_BxN[batch, key]


def within_document(documents_BxN: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A window of positions that begin anew in each document, and a prefix of each that all of it sees."""
    starts_BxN = jnp.argmax(documents_BxN[:, :, None] == documents_BxN[:, None], axis=-1)
    inside = key - starts_BxN[batch, key]
    return (documents_BxN[batch, query] == documents_BxN[batch, key]) & ((key <= query) | (inside < 2))


def prefix_or_causal(prefix_B: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (key < prefix_B[batch]) | (key <= query)


def transfusion(images_BxIx2: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Causal, but an image sees all of itself (Zhou et al. 2024)."""
    visible = key <= query
    for image in range(images_BxIx2.shape[1]):
        first, end = images_BxIx2[batch, image, 0], images_BxIx2[batch, image, 1]
        visible = visible | ((query >= first) & (query < end) & (key >= first) & (key < end))
    return visible


def transfusion_of_heads(images_BxIx2: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return transfusion(images_BxIx2, batch, head, query, key) & (head < 3)


def flamingo(intervals_IxE: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Text sees the four tokens of each image that belongs to it (Alayrac et al. 2022)."""
    image = key // 4
    return (query >= intervals_IxE[image, 0]) & (query < intervals_IxE[image, 1])


def tree_of_drafts(is_ancestor_QxQ: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Drafts of speculative decoding: a token sees the six before all drafts and its own ancestors."""
    return (key < 6) | ((query >= 6) & is_ancestor_QxQ[jnp.maximum(query - 6, 0), jnp.maximum(key - 6, 0)])


def paged(rule: Callable[..., Any], pages_BxP: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A rule of logical positions, where key pages of three tokens lie somewhere: -1 is a page that is free."""
    page = pages_BxP[batch, key // 3]
    return (page >= 0) & rule(batch, head, query, page * 3 + key % 3)


def times_two(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return 2 * logits


def squared(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits * logits


def silu(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return jax.nn.silu(logits)


def relative(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits + 0.1 * (query - key)


def relative_and_causal(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return jnp.where(key <= query, logits + 0.1 * (query - key), -jnp.inf)


def constant_alibi(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits + (key - query) * 2.0 ** (-(head + 1) * 8 / HEADS)


def by_example(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits * (1 + batch) + 0.1 * head


def tanh_then_causal(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return jnp.where(key <= query, 1.5 * jnp.tanh(logits / 1.5), -jnp.inf)


def scaled_by_head(scale_H: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits * jax.nn.sigmoid(scale_H[head])


def from_table(table_HxR: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    """A learned bias of each distance, as of Shaw's and T5's."""
    return logits + table_HxR[head, jnp.clip(query - key, -3, 3) + 3]


def from_tokens(query_bias_N: Any, key_bias_N: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits + query_bias_N[query] * key_bias_N[key]


def latent_rotary(q_BxQxHxD: Any, k_BxKxD: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    """The rotary part of multi-head latent attention, of features besides (DeepSeek-AI 2024, section 2.1.3)."""
    return logits + 0.3 * jnp.sum(q_BxQxHxD[batch, query, head] * k_BxKxD[batch, key], axis=-1)


def distance_in_bfloat16(bias_H: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits - bias_H[head].astype(logits.dtype) * jnp.abs(query - key)


class Example(NamedTuple):
    """One example: `rule`, and what makes `attend` compute it; `table` names its trained array and that one's shape."""

    rule: Rule
    mask: Mask = Mask()
    modification: Any = None
    table: dict[str, tuple[int, ...]] = {}  # noqa: RUF012
    queries: int = LENGTH
    position: AttentionPosition = AttentionPosition.NONE


def mask_rule(sees: Callable[[int, int, int, int], Any]) -> Rule:
    return Rule(sees=lambda *place: bool(sees(*place)))


def changed(logit: Callable[..., Any], sees: Callable[[int, int, int, int], Any] = lambda b, h, i, j: True) -> Rule:
    return Rule(lambda *place: bool(sees(*place)), lambda *arguments: float(logit(*arguments)))


def logical(b: int, j: int) -> int:
    """The position of a token that lies at j in the pages of an example; -1 where the page is free."""
    page = int(PAGES[b, j // 3])
    return page * 3 + j % 3 if page >= 0 else -1


def is_ancestor(i: int, j: int) -> bool:
    while i != j and i >= 0:
        i = ANCESTORS[i]
    return i == j


def example_cases() -> dict[str, Example]:
    tree = np.array([[is_ancestor(i, j) for j in range(6)] for i in range(6)])
    intervals = np.int32([[0, 7], [1, 7], [7, 12]])
    chosen: dict[str, Example] = {
        # Masks of attention-gym, by facts where there are some.
        "no mask": Example(mask_rule(lambda b, h, i, j: True)),
        "causal": Example(mask_rule(lambda b, h, i, j: i >= j), Mask(causal=True)),
        "causal by a function": Example(mask_rule(lambda b, h, i, j: i >= j), Mask(function=causal)),
        "sliding window": Example(mask_rule(lambda b, h, i, j: 0 <= i - j <= 3), Mask(causal=True, window=(3, 0))),
        "sliding window by and": Example(
            mask_rule(lambda b, h, i, j: 0 <= i - j <= 3), Mask(function=both(causal, near))
        ),
        "sliding window of both sides": Example(mask_rule(lambda b, h, i, j: abs(i - j) <= 2), Mask(window=(2, 2))),
        "window and sinks by or": Example(
            mask_rule(lambda b, h, i, j: j <= i and (i - j <= 3 or j < 2)),
            Mask(causal=True, function=either(near, among_the_first_two)),
        ),
        "prefix": Example(
            mask_rule(lambda b, h, i, j: j < PREFIXES[b] or j <= i), Mask(causal=True, prefix=jax.device_put(PREFIXES))
        ),
        "prefix by a function": Example(
            mask_rule(lambda b, h, i, j: j < PREFIXES[b] or j <= i), Mask(function=Partial(prefix_or_causal, PREFIXES))
        ),
        "documents": Example(
            mask_rule(lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j]),
            Mask(segments=(jax.device_put(DOCUMENTS), jax.device_put(DOCUMENTS))),
        ),
        "documents by a function, causal": Example(
            mask_rule(lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j] and j <= i),
            Mask(causal=True, function=Partial(same_document, DOCUMENTS)),
        ),
        "documents with a prefix each": Example(
            mask_rule(
                lambda b, h, i, j: (
                    DOCUMENTS[b, i] == DOCUMENTS[b, j] and (j <= i or j - list(DOCUMENTS[b]).index(DOCUMENTS[b, j]) < 2)
                )
            ),
            Mask(function=Partial(within_document, DOCUMENTS)),
        ),
        "rows in one row": Example(mask_rule(lambda b, h, i, j: i // 4 == j // 4 and j <= i), Mask(function=chunked)),
        "blocks in order": Example(mask_rule(lambda b, h, i, j: j - j % 3 <= i), Mask(function=block_causal)),
        "dilated window": Example(mask_rule(lambda b, h, i, j: i - j in (-4, -2, 0, 2, 4)), Mask(function=dilated)),
        "global and local": Example(
            mask_rule(lambda b, h, i, j: i - j in (-1, 0, 1) or min(i, j) < 2), Mask(function=global_and_local)
        ),
        "natten": Example(neighborhood_rule(3, 4, 1), Mask(function=Neighborhood(3, 4, 1))),
        "natten in tiles": Example(neighborhood_rule(4, 4, 1, 2), Mask(function=Neighborhood(4, 4, 1, 2)), queries=16),
        "spatial head": Example(
            mask_rule(lambda b, h, i, j: min(i, j) < 3 or i - j in range(-3, 4)), Mask(function=spatial_head)
        ),
        "temporal head": Example(
            mask_rule(lambda b, h, i, j: min(i, j) < 3 or (i - j) % 3 == 0), Mask(function=temporal_head)
        ),
        "flamingo": Example(
            mask_rule(lambda b, h, i, j: i in range(*intervals[j // 4])), Mask(function=Partial(flamingo, intervals))
        ),
        "transfusion": Example(
            mask_rule(
                lambda b, h, i, j: j <= i or any(i in range(*span) and j in range(*span) for span in IMAGES[b].tolist())
            ),
            Mask(function=Partial(transfusion, IMAGES)),
        ),
        "tree of drafts": Example(
            mask_rule(lambda b, h, i, j: j < 6 or (i >= 6 and is_ancestor(i - 6, j - 6))),
            Mask(function=Partial(tree_of_drafts, tree)),
        ),
        "pages": Example(
            mask_rule(lambda b, h, i, j: 0 <= logical(b, j) <= i), Mask(function=Partial(Partial(paged, causal), PAGES))
        ),
        "queries behind an offset": Example(
            mask_rule(lambda b, h, i, j: j <= i + (-4, 3)[b]),
            Mask(function=causal, query_offset=jax.device_put(np.int32([-4, 3]))),
        ),
        "heads of two kinds": Example(
            mask_rule(lambda b, h, i, j: h % 2 == 1 or j <= i), Mask(function=every_second_head_looks_back)
        ),
        "a window for each head": Example(
            mask_rule(lambda b, h, i, j: abs(i - j) < (1, 2, 4, 8)[h]), Mask(function=window_doubles_by_head)
        ),
        "a window for each head, as facts": Example(
            mask_rule(lambda b, h, i, j: abs(i - j) < (1, 2, 4, 8)[h]),
            Mask(head_windows=tuple(jax.device_put(np.int32([0, 1, 3, 7])) for _ in range(2))),
        ),
        # Modifications of the score.
        "times two": Example(changed(lambda s, *_: s + s), modification=times_two),
        "squared": Example(changed(lambda s, *_: s**2), modification=squared),
        "silu": Example(changed(lambda s, *_: s / (1 + np.exp(-s))), modification=silu),
        "relative": Example(changed(lambda s, b, h, i, j, _: s + (i - j) / 10), modification=relative),
        "relative and causal": Example(
            changed(lambda s, b, h, i, j, _: s + (i - j) / 10, lambda b, h, i, j: j <= i),
            modification=relative_and_causal,
        ),
        "softcap": Example(changed(lambda s, *_: 1.5 * np.tanh(s / 1.5)), modification=Softcap(1.5)),
        "softcap, then causal": Example(
            changed(lambda s, *_: 1.5 * np.tanh(s / 1.5), lambda b, h, i, j: j <= i), modification=tanh_then_causal
        ),
        "alibi": Example(
            changed(lambda s, b, h, i, j, _: s - abs(i - j) * 0.25 ** (h + 1), lambda b, h, i, j: j <= i),
            Mask(causal=True),
            position=AttentionPosition.ALIBI,
        ),
        "alibi by a function": Example(
            changed(lambda s, b, h, i, j, _: s - (i - j) * 0.25 ** (h + 1), lambda b, h, i, j: j <= i),
            Mask(causal=True),
            constant_alibi,
        ),
        "by example": Example(changed(lambda s, b, h, i, j, _: s * (1 + b) + h / 10), modification=by_example),
        "a gate of each head": Example(
            changed(lambda s, b, h, i, j, x: s / (1 + np.exp(-x["scale_H"][h]))),
            modification=scaled_by_head,
            table={"scale_H": (HEADS,)},
        ),
        "a learned bias of distances": Example(
            changed(lambda s, b, h, i, j, x: s + x["table_HxR"][h, min(max(i - j, -3), 3) + 3]),
            modification=from_table,
            table={"table_HxR": (HEADS, 7)},
        ),
        "a learned bias of tokens": Example(
            changed(lambda s, b, h, i, j, x: s + x["query_bias_N"][i] * x["key_bias_N"][j]),
            modification=from_tokens,
            table={"query_bias_N": (LENGTH,), "key_bias_N": (LENGTH,)},
        ),
        "latent attention": Example(
            changed(lambda s, b, h, i, j, x: s + 0.3 * x["q_BxQxHxD"][b, i, h] @ x["k_BxKxD"][b, j]),
            modification=latent_rotary,
            table={"q_BxQxHxD": (BATCH, LENGTH, HEADS, 4), "k_BxKxD": (BATCH, LENGTH, 4)},
        ),
        "a table and a function": Example(
            changed(lambda s, b, h, i, j, x: s - x["bias_H"][h] * abs(i - j), lambda b, h, i, j: i >= j),
            Mask(function=causal),
            distance_in_bfloat16,
            {"bias_H": (HEADS,)},
        ),
    }
    return chosen


CASES = example_cases()


def cells() -> list[Any]:
    """Every example on both backends. Always run: each on one of them, those with trained arrays on both."""
    chosen = []
    for place, (name, example) in enumerate(CASES.items()):
        for index, backend in enumerate((Backend.EINSUM, Backend.BLOCKWISE)):
            often = example.queries <= LENGTH and (bool(example.table) or place % 2 == index)
            marks = () if often else (pytest.mark.slow,)
            chosen.append(pytest.param(name, backend, marks=marks, id=f"{name}, {backend.value}"))
    return chosen


def test_functions_in_small_blocks() -> None:
    """Three blocks of queries and of keys, of which an image, a document's end and a head of its own leave some out."""
    arrays = random_arrays(BATCH, LENGTH, LENGTH, HEADS, GROUPS, DEPTH, DEPTH)
    arrays["table_HxR"] = np.random.default_rng(4).normal(size=(HEADS, 7)).astype(np.float32)
    both_masks = Partial(transfusion_of_heads, IMAGES)

    @jax.jit
    def call(x: Arrays) -> jax.Array:
        terms = LogitTerms(
            with_indexed_function(Mask(function=both_masks), BATCH, HEADS),
            modification=index_function(Partial(from_table, x["table_HxR"]), BATCH, HEADS),
        )
        return attend_blockwise(x["q"], x["k"], x["v"], terms, LogitScaling(DEPTH**-0.5), 5)[0]

    rule = changed(
        lambda s, b, h, i, j, x: s + x["table_HxR"][h, min(max(i - j, -3), 3) + 3],
        lambda b, h, i, j: (
            h < 3 and (j <= i or any(i in range(*span) and j in range(*span) for span in IMAGES[b].tolist()))
        ),
    )
    check(call, rule, arrays)


@pytest.mark.parametrize(("name", "backend"), cells())
def test_it_is_as_its_authors_define_it(name: str, backend: Backend) -> None:
    example = CASES[name]
    keys = max(example.queries, LENGTH)
    arrays = random_arrays(BATCH, example.queries, keys, HEADS, GROUPS, DEPTH, DEPTH)
    random = np.random.default_rng(3)
    arrays |= {table: random.normal(size=shape).astype(np.float32) for table, shape in example.table.items()}
    spec = AttentionSpec(
        position=example.position,
        logit_modification=None if example.table else example.modification,
        backend=backend,
    )

    def call(x: Arrays) -> jax.Array:
        trained = Partial(example.modification, *(x[table] for table in example.table)) if example.table else None
        params = AttentionParameters(logit_modification=trained)
        return attend(x["q"], x["k"], x["v"], spec=spec, mask=example.mask, params=params)[0]

    with jax.disable_jit():
        check(call, example.rule, arrays)
