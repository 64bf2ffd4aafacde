"""What attention refuses: bad input is told at trace time, by the argument's name and both shapes or the value.

The cases run in one process of their own, `python -m tests.attention.test_attend_checks`: here the types of every
signature are checked before our own words are reached.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention import statistics
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask, local_monotonic, local_predictive
from transformer.attention.positions import T5, AttentionPosition, Disentangled, Rotary, Shaw, TransformerXL
from transformer.attention.scores import Additive, Concat, Cosine, General, Location, Mlp, Score, SquaredDistance

Q_SHAPE, K_SHAPE = (2, 5, 4, 8), (2, 7, 2, 8)
LOGITS = (2, 4, 5, 7)
BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)


class Case(NamedTuple):
    """A call that must end with an error, and what its message must say."""

    call: Callable[[], Any]
    says: tuple[str, ...]
    error: type[Exception] = ValueError


def floats(*shape: int) -> jax.Array:
    # Not jnp.asarray, which compiles a program for each shape: most cases are made when the file is read.
    return jax.device_put(np.ones(shape, np.float32))


def whole(*shape: int) -> jax.Array:
    return jax.device_put(np.ones(shape, np.int32))


def truth(*shape: int) -> jax.Array:
    return jax.device_put(np.ones(shape, bool))


def traced(
    q: tuple[int, ...] = Q_SHAPE,
    k: tuple[int, ...] = K_SHAPE,
    v: tuple[int, ...] | None = None,
    mask: Callable[[], Mask] = Mask,
    bias: jax.Array | None = None,
    params: AttentionParameters | None = None,
    capture: Capture | None = None,
    **spec: Any,
) -> Any:
    """attend() on shapes alone, under jit, compiled by nobody."""

    @jax.jit
    def call(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        chosen = AttentionSpec(**spec)
        return attend(q, k, v, spec=chosen, mask=mask(), bias=bias, params=params, capture=capture)

    return jax.eval_shape(call, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (q, k, k if v is None else v)))


def masked(**facts: Any) -> Any:
    return traced(mask=partial(Mask, **facts))


def scored(score: Score, parts: Any) -> Any:
    # Parts that do not fit together are made here, where no test's own check of shapes refuses them first.
    parts = parts() if isinstance(parts, partial) else parts
    return traced(score=score, params=AttentionParameters(score=parts))


def placed(
    position: AttentionPosition, kind: Callable[..., Any] | None, *shapes: tuple[int, ...], **options: Any
) -> Any:
    parts = None if kind is None else kind(*(floats(*shape) for shape in shapes), **options)
    return traced(position=position, params=AttentionParameters(position=parts))


def captured(backend: Backend = Backend.AUTO, **wanted: Any) -> Any:
    return traced(backend=backend, capture=Capture(("here",), **wanted))


def shapes_of_arrays() -> dict[str, Case]:
    return {
        "q_of_three_axes": Case(
            partial(traced, q=(2, 5, 8)), ("q has shape (2, 5, 8)", "[batch, length, heads, depth]")
        ),
        "k_of_three_axes": Case(
            partial(traced, k=(2, 7, 8)), ("k has shape (2, 7, 8)", "[batch, length, heads, depth]")
        ),
        "v_of_two_axes": Case(partial(traced, v=(2, 7)), ("v has shape (2, 7)", "[batch, length, heads, depth]")),
        "batch_of_k": Case(
            partial(traced, k=(3, 7, 2, 8)), (f"q {Q_SHAPE}", "k (3, 7, 2, 8)", "v (3, 7, 2, 8)", "batch")
        ),
        "batch_of_v": Case(partial(traced, v=(1, 7, 2, 8)), (f"k {K_SHAPE}", "v (1, 7, 2, 8)", "batch")),
        "length_of_v": Case(partial(traced, v=(2, 6, 2, 8)), (f"k {K_SHAPE}", "v (2, 6, 2, 8)", "length")),
        "heads_of_v": Case(partial(traced, v=(2, 7, 4, 8)), (f"k {K_SHAPE}", "v (2, 7, 4, 8)", "heads")),
        "heads_that_do_not_divide": Case(
            partial(traced, k=(2, 7, 3, 8)), (f"q {Q_SHAPE}", "3 heads of k (2, 7, 3, 8)")
        ),
        "more_heads_than_queries": Case(partial(traced, k=(2, 7, 8, 8)), (f"q {Q_SHAPE}", "8 heads of k (2, 7, 8, 8)")),
        "no_key_head": Case(partial(traced, k=(2, 7, 0, 8)), ("k has shape (2, 7, 0, 8)", "no size may be 0")),
        "no_key": Case(partial(traced, k=(2, 0, 2, 8)), ("k has shape (2, 0, 2, 8)", "no size may be 0")),
        "depth": Case(partial(traced, k=(2, 7, 2, 6)), (f"q {Q_SHAPE}", "k (2, 7, 2, 6)", "differ in depth")),
        "bias_of_another_length": Case(partial(traced, bias=floats(1, 4, 5, 6)), ("bias", "(1, 4, 5, 6)", str(LOGITS))),
        "bias_of_two_axes": Case(
            partial(traced, bias=floats(5, 7)), ("bias has shape (5, 7), 2 axes", str(LOGITS), "x[None, None]")
        ),
        "odd_depth_of_rotary": Case(
            partial(traced, q=(2, 5, 4, 7), k=(2, 7, 2, 7), position=AttentionPosition.ROTARY), ("depth 7 is odd",)
        ),
    }


def masks() -> dict[str, Case]:
    sides = "need ((2, 5), (2, 7))"
    wrong: list[tuple[str, Any, str]] = [
        ("query_offset", whole(3), "need (2,)"),
        ("query_lengths", whole(1), "need (2,)"),
        ("key_lengths", whole(3), "need (2,)"),
        ("key_lengths", whole(2, 1), "need (2,)"),
        ("segments", (whole(2, 5), whole(2, 5)), sides),
        ("segments", (whole(2, 7), whole(2, 7)), sides),
        ("segments", whole(2, 5), sides),
        ("order", (whole(1, 5), whole(1, 7)), sides),
        ("allowed", truth(2, 1, 5, 6), f"logits {LOGITS}"),
        ("allowed", truth(1, 1, 7, 7), f"logits {LOGITS}"),
        ("allowed", truth(2, 2, 5, 7), f"logits {LOGITS}"),
        ("allowed", truth(5, 7), f"{LOGITS}, each whole or 1"),
    ]
    cases = {}
    for name, value, needed in wrong:
        shape = tuple(part.shape for part in value) if isinstance(value, tuple) else value.shape
        cases[f"{name}_{shape}"] = Case(partial(masked, **{name: value}), (f"mask.{name} has shape {shape}", needed))
    cases["function_of_three"] = Case(
        partial(masked, function=lambda batch, query, key: query >= key),
        ("mask.function is called with (batch, head, query, key)", "too many positional arguments"),
        TypeError,
    )
    cases["function_of_numbers"] = Case(
        partial(masked, function=lambda batch, head, query, key: 1.0 * (query - key)),
        ("mask.function returns numbers of type float32", "booleans"),
        TypeError,
    )
    for window in ((-1, 2), (2, -1), (math.nan, 2), (1.5, 2), 5, (1, 2, 3)):
        cases[f"window_{window}"] = Case(partial(masked, window=window), (f"mask.window={window}", "at least 0"))
    for half_width in (0, -1):
        says = (f"mask.window=({half_width}, {half_width})",)
        if half_width:
            monotonic = partial(traced, mask=partial(local_monotonic, half_width))
            cases[f"local_monotonic_{half_width}"] = Case(monotonic, says)
        predictive = partial(local_predictive, floats(2, 4, 5), half_width)
        cases[f"local_predictive_{half_width}"] = Case(partial(traced, mask=predictive), says)
    of_key_heads = partial(traced, mask=partial(local_predictive, floats(2, 2, 5), 3))
    cases["center_of_the_key_heads"] = Case(of_key_heads, ("mask.center has shape (2, 2, 5)", "need (2, 4, 5)"))
    cases["prefix_of_another_batch"] = Case(
        partial(masked, prefix=whole(3), causal=True), ("mask.prefix has shape (3,)", "need (2,)")
    )
    cases["prefix_alone"] = Case(partial(masked, prefix=whole(2)), ("mask.prefix", "without mask.causal"))
    cases["center_alone"] = Case(partial(masked, center=floats(2, 4, 5)), ("mask.center", "without mask.window"))
    return cases


def numbers() -> dict[str, Case]:
    def sharpened(value: Any) -> Any:
        return scored(Score.COSINE, Cosine(value))

    takers: dict[str, Callable[[Any], Any]] = {
        "scale": lambda value: AttentionSpec(scale=value),
        "temperature": lambda value: AttentionSpec(temperature=value),
        "sharpening": sharpened,
        "bandwidth": lambda value: scored(Score.SQUARED_DISTANCE, SquaredDistance(value)),
        "base": Rotary,
    }
    cases = {}
    for value in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        for name, take in takers.items():
            cases[f"{name}_{value}"] = Case(partial(take, value), (f"{name}={value} ", "finite and above 0"))
        sharpening = np.ones((2, 4, 5), np.float32)
        sharpening[1, 3, 2] = value
        one_of_many = jnp.asarray(sharpening)
        cases[f"one_sharpening_{value}"] = Case(partial(sharpened, one_of_many), ("sharpening=[[[", f"{value:.0f}"))
    for score in (Score.DOT, Score.COSINE, Score.GENERAL):
        says = ("scale=0.5", f"score is {score.value}")
        cases[f"scale_of_{score.value}"] = Case(partial(AttentionSpec, score, scale=0.5), says)
    return cases


FITTING: dict[Score, Any] = {
    Score.GENERAL: General(floats(4, 8, 8)),
    Score.ADDITIVE: Additive(floats(4, 8, 3), floats(4, 8, 3), floats(4, 3)),
    Score.CONCAT: Concat(floats(4, 16, 3), floats(4, 3)),
    Score.MLP: Mlp(floats(4, 16, 3), floats(4, 3), floats(4, 3)),
    Score.LOCATION: Location(floats(4, 8, 9)),
    Score.COSINE: Cosine(floats(2, 4, 5)),
    Score.SQUARED_DISTANCE: SquaredDistance(floats(2, 4, 5)),
}


def scores() -> dict[str, Case]:
    wrong = [
        (Score.GENERAL, "weight_HxDxC", (4, 8, 7), (4, 8, 8)),
        (Score.GENERAL, "weight_HxDxC", (2, 8, 8), (4, 8, 8)),
        (Score.GENERAL, "weight_HxDxC", (8, 8), (4, 8, 8)),
        (Score.ADDITIVE, "keys_HxCxA", (4, 8, 2), (4, 8, 3)),
        (Score.ADDITIVE, "queries_HxDxA", (4, 7, 3), (4, 8, 3)),
        (Score.ADDITIVE, "score_HxA", (1, 3), (4, 3)),
        (Score.CONCAT, "weight_HxIxA", (4, 15, 3), (4, 16, 3)),
        (Score.CONCAT, "score_HxA", (1, 3), (4, 3)),
        (Score.CONCAT, "score_HxA", (2, 3), (4, 3)),
        (Score.MLP, "weight_HxIxA", (4, 8, 3), (4, 16, 3)),
        (Score.MLP, "bias_HxA", (1, 3), (4, 3)),
        (Score.MLP, "score_HxA", (2, 3), (4, 3)),
        (Score.LOCATION, "weight_HxDxN", (4, 8, 6), (4, 8, 7)),
        (Score.LOCATION, "weight_HxDxN", (4, 7, 9), (4, 8, 9)),
        (Score.COSINE, "sharpening", (2, 4, 6), (2, 4, 5)),
        (Score.COSINE, "sharpening", (2, 2, 5), (2, 4, 5)),
        (Score.COSINE, "sharpening", (4, 4, 5), (2, 4, 5)),
        (Score.COSINE, "sharpening", (4, 5), (2, 4, 5)),
        (Score.SQUARED_DISTANCE, "bandwidth", (2, 4, 6), (2, 4, 5)),
    ]
    cases = {}
    for score, name, shape, needed in wrong:
        parts = partial(dataclasses.replace, FITTING[score], **{name: floats(*shape)})
        says = (f"params.score.{name} has shape {shape}", str(needed))
        cases[f"{score.value}_{name}_{shape}"] = Case(partial(scored, score, parts), says)
    one = ((1, 5, 4, 8), (1, 7, 2, 8))
    many = AttentionParameters(Cosine(floats(3, 4, 5)))
    says = ("params.score.sharpening has shape (3, 4, 5)", "(1, 4, 5)")
    cases["sharpening_of_a_larger_batch"] = Case(partial(traced, *one, score=Score.COSINE, params=many), says)
    for score, parts, needed, found in (
        *((score, None, f"{type(FITTING[score]).__name__}(...)", "nothing") for score in list(FITTING)[:-2]),
        (Score.GENERAL, Cosine(), "General(...)", "Cosine"),
        (Score.COSINE, FITTING[Score.MLP], "Cosine(...)", "Mlp"),
        (Score.DOT, FITTING[Score.GENERAL], "no parameters", "General"),
        (Score.SCALED_DOT, Cosine(), "no parameters", "Cosine"),
    ):
        says = (f"score={score.value} takes", needed, f"params.score is {found}")
        cases[f"{score.value}_with_{found}"] = Case(partial(scored, score, parts), says, TypeError)
    return cases


def positions() -> dict[str, Case]:
    xl = TransformerXL
    wrong: list[tuple[AttentionPosition, Any, tuple[tuple[int, ...], ...], str, str]] = [
        (AttentionPosition.T5, T5, ((8, 2),), "table_PxH has shape (8, 2)", "for 4 heads"),
        (AttentionPosition.T5, T5, ((2, 4),), "table_PxH has shape (2, 4)", "buckets"),
        (AttentionPosition.T5, partial(T5, bidirectional=False), ((1, 4),), "table_PxH has shape (1, 4)", "buckets"),
        (AttentionPosition.T5, partial(T5, max_distance=2), ((8, 4),), "max_distance=2", "buckets"),
        (AttentionPosition.SHAW, Shaw, ((4, 8),), "keys_PxD has shape (4, 8)", "(2 clip + 1, 8)"),
        (AttentionPosition.SHAW, Shaw, ((5, 7),), "keys_PxD has shape (5, 7)", "(2 clip + 1, 8)"),
        (AttentionPosition.SHAW, Shaw, ((5, 8), (4, 8)), "values_PxD has shape (4, 8)", "(2 clip + 1, 8)"),
        (AttentionPosition.SHAW, Shaw, ((5, 8), (5, 7)), "values_PxD has shape (5, 7)", "(2 clip + 1, 8)"),
        (
            AttentionPosition.TRANSFORMER_XL,
            xl,
            ((6, 2, 8), (4, 8), (4, 8)),
            "weight_ExHxD has shape (6, 2, 8)",
            "(6, 4, 8)",
        ),
        (AttentionPosition.TRANSFORMER_XL, xl, ((5, 4, 8), (4, 8), (4, 8)), "weight_ExHxD has shape (5, 4, 8)", "even"),
        (AttentionPosition.TRANSFORMER_XL, xl, ((6, 4, 8), (2, 8), (4, 8)), "content_HxD has shape (2, 8)", "(4, 8)"),
        (AttentionPosition.TRANSFORMER_XL, xl, ((6, 4, 8), (4, 8), (4, 7)), "position_HxD has shape (4, 7)", "(4, 8)"),
    ]
    terms, farthest = AttentionPosition.DISENTANGLED, partial(Disentangled, max_distance=3)
    wrong += [
        (terms, Disentangled, ((8, 4, 7), (8, 4, 8)), "keys_PxGxD has shape (8, 4, 7)", "(8, 4, 8)"),
        (terms, Disentangled, ((8, 3, 8), (8, 4, 8)), "keys_PxGxD has shape (8, 3, 8)", "(8, 4, 8)"),
        (terms, Disentangled, ((8, 4, 8), (6, 4, 8)), "queries_PxHxD has shape (6, 4, 8)", "(8, 4, 8)"),
        (terms, Disentangled, ((7, 4, 8), (7, 4, 8)), "keys_PxGxD has shape (7, 4, 8)", "the rows even"),
        (terms, farthest, ((8, 4, 8), (8, 4, 8)), "max_distance=3 must be above 3", "a multiple of 4"),
    ]
    edges = "edge_types_BxQxK has shape "
    for types, shapes, found, needed in (
        ((2, 5, 6), ((3, 8),), edges + "(2, 5, 6)", "the last size must be 7"),
        ((3, 5, 7), ((3, 8),), edges + "(3, 5, 7)", "(2 or 1, 5, keys)"),
        ((2, 7, 7), ((3, 8),), edges + "(2, 7, 7)", "(2 or 1, 5, keys)"),
        ((5, 7), ((3, 8),), edges + "(5, 7)", "(2 or 1, 5, keys)"),
        ((2, 5, 7), ((4, 7),), "keys_PxD has shape (4, 7)", "(types of edges, 8)"),
        ((2, 5, 7), ((4, 8), (3, 8)), "keys_PxD and values_PxD have [3, 4] types of edges", "as many"),
    ):
        shaw = partial(Shaw, edge_types_BxQxK=whole(*types))
        wrong.append((AttentionPosition.SHAW, shaw, shapes, found, needed))
    cases = {}
    for position, kind, shapes, found, needed in wrong:
        says = (f"params.position.{found}", needed)
        cases[f"{position.value} {found}"] = Case(partial(placed, position, kind, *shapes), says)
    for position, kind, needed, found in (
        (AttentionPosition.T5, None, "T5(...)", "nothing"),
        (AttentionPosition.SHAW, None, "Shaw(...)", "nothing"),
        (AttentionPosition.TRANSFORMER_XL, None, "TransformerXL(...)", "nothing"),
        (AttentionPosition.DISENTANGLED, None, "Disentangled(...)", "nothing"),
        (AttentionPosition.T5, Rotary, "T5(...)", "Rotary"),
        (AttentionPosition.ALIBI, Rotary, "Alibi(...)", "Rotary"),
        (AttentionPosition.NONE, Rotary, "no parameters", "Rotary"),
    ):
        says = (f"position={position.value} takes", needed, f"params.position is {found}")
        cases[f"{position.value}_with_{found}"] = Case(partial(placed, position, kind), says, TypeError)
    wide = partial(placed, AttentionPosition.ROTARY_HALVES, T5, (8, 4))
    cases["rotary_with_T5"] = Case(wide, ("position=rotary_halves takes", "Rotary(...)", "is T5"), TypeError)
    return cases


def captures() -> dict[str, Case]:
    cases = {}
    for backend in BACKENDS:
        for name, chosen, last in (("rows", (0, 5), 4), ("rows", (-1,), 4), ("heads", (0, 4), 3), ("heads", (-1,), 3)):
            says = (f"capture.{name}={chosen} names [{chosen[-1]}]", f"0 ... {last}")
            call = partial(captured, backend, **{name: chosen})
            cases[f"{name}_{chosen}_{backend.value}"] = Case(call, says)
    twice = (statistics.ENTROPY, statistics.DISTANCE, statistics.ENTROPY)
    cases["one_name_twice"] = Case(partial(captured, statistics=twice), ("['entropy', 'distance', 'entropy']", "twice"))
    third = (statistics.segment_mass(3),)
    cases["segment_of_no_segments"] = Case(partial(captured, statistics=third), ("segment_3", "mask.segments"))
    for period in (1, 0, -2):
        cases[f"induction_{period}"] = Case(
            partial(statistics.induction_mass, period), (f"period={period} ", "at least 2")
        )
    for start, stop in ((3, 3), (4, 2), (-1, 2)):
        says = (f"span({start}, {stop})", "0 <= start < stop")
        cases[f"span_{start}_{stop}"] = Case(partial(statistics.span_mass, start, stop), says)
    return cases


CASES = shapes_of_arrays() | masks() | numbers() | scores() | positions() | captures()

# What lies just on the right side of those refusals.
ACCEPTED: dict[str, Callable[[], Any]] = {
    "one_key_head": partial(traced, k=(2, 7, 1, 8)),
    "values_of_another_depth": partial(traced, v=(2, 7, 2, 3)),
    "a_bias_that_broadcasts": partial(traced, bias=floats(1, 4, 1, 7)),
    "a_dense_mask_that_broadcasts": partial(masked, allowed=truth(2, 1, 1, 7)),
    "a_window_to_one_side": partial(masked, window=(0, 1)),
    "every_fact": partial(
        masked,
        causal=True,
        window=(2, 0),
        segments=(whole(2, 5), whole(2, 7)),
        order=(whole(2, 5), whole(2, 7)),
        center=floats(2, 4, 5),
        **dict.fromkeys(("query_offset", "query_lengths", "key_lengths", "prefix"), whole(2)),
    ),
    "keys_of_another_depth": partial(
        traced, k=(2, 7, 2, 6), score=Score.GENERAL, params=AttentionParameters(General(floats(4, 8, 6)))
    ),
    "cosine_of_no_parts": partial(scored, Score.COSINE, None),
    "a_sharpening_of_each_head": partial(scored, Score.COSINE, Cosine(floats(1, 4, 1))),
    "a_sharpening_that_nobody_knows": lambda: jax.eval_shape(
        lambda beta: scored(Score.COSINE, Cosine(-beta)), floats(2, 4, 5)
    ),
    "rotary": partial(placed, AttentionPosition.ROTARY, partial(Rotary, 500.0)),
    "rotary_of_no_parts": partial(placed, AttentionPosition.ROTARY, None),
    "t5": partial(placed, AttentionPosition.T5, T5, (4, 4)),
    "shaw": partial(placed, AttentionPosition.SHAW, Shaw, (5, 8), (5, 8)),
    "shaw_of_four_types_of_edges": partial(
        placed, AttentionPosition.SHAW, partial(Shaw, edge_types_BxQxK=whole(1, 5, 7)), (4, 8), (4, 8)
    ),
    "transformer_xl": partial(placed, AttentionPosition.TRANSFORMER_XL, TransformerXL, (6, 4, 8), (4, 8), (4, 8)),
    "disentangled": partial(placed, AttentionPosition.DISENTANGLED, Disentangled, (8, 2, 8), (8, 4, 8)),
    "the_last_row_and_head": partial(captured, rows=(4, 0), heads=(3,)),
    "the_shortest_period": partial(statistics.induction_mass, 2),
    "a_span_of_one_key": partial(statistics.span_mass, 0, 1),
    **{f"{score.value}_of_its_parts": partial(scored, score, parts) for score, parts in FITTING.items()},
}


def outcome(call: Callable[[], Any]) -> tuple[str, str] | None:
    """The type and the message of the error with which a call ends, if it does."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def outcomes_of(module: str, root: Path) -> dict[str, tuple[str, str] | None]:
    """How every case of a module ends where nothing but our own checks looks at it."""
    command = [sys.executable, "-m", f"tests.attention.{module}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def fault(case: Case, found: tuple[str, str] | None) -> str | None:
    """What is wrong with how a case ended; None where it was refused in one line that says what it must."""
    if found is None:
        return "accepted"
    kind, message = found
    missing = [part for part in case.says if part not in message]
    return None if not missing and kind == case.error.__name__ else f"{kind}: {message} lacks {missing}"


@pytest.fixture(scope="module")
def outcomes(root: Path) -> dict[str, tuple[str, str] | None]:
    return outcomes_of("test_attend_checks", root)


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(outcomes: dict[str, Any], name: str) -> None:
    assert fault(CASES[name], outcomes[name]) is None


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_fits_is_accepted(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name] is None


if __name__ == "__main__":
    calls = {name: case.call for name, case in CASES.items()} | ACCEPTED
    print(json.dumps({name: outcome(call) for name, call in calls.items()}))
