"""Head statistics against NumPy float64: every statistic, on every path that computes one."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention import statistics
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.capture import Capture, CapturedAttention, capture_from_queries_and_keys, capture_weights
from transformer.attention.masks import Mask
from transformer.attention.positions import T5, Alibi, AttentionPosition
from transformer.attention.scores import Score
from transformer.attention.statistics import (
    STATISTICS,
    ExpectationStatistic,
    KeyWeightStatistic,
    ReductionStatistic,
    Statistic,
    add_states,
    finish_first_array,
    grid_distance,
    induction_mass,
    segment_mass,
    span_mass,
)

# More queries than keys: the last queries have no key on their diagonal. A block of 8 divides neither length.
B, H, Q, K, D, BLOCK = 2, 4, 19, 13, 8, 8
PERIOD = 4
# A class token and three rows of four patches, under a name of its own beside the distance in positions.
COLUMNS, LEADING = 4, 1
GRID = dataclasses.replace(grid_distance(COLUMNS, LEADING), name="grid_distance")
# The first example repeats, and the second does not.
ONE_REPEATS = dataclasses.replace(induction_mass(PERIOD - 1, None), name="one_repeats")

# What a researcher would write: one statistic of each kind.
EVEN_KEYS = ExpectationStatistic("even_keys", lambda rows, key_K: (key_K % 2 == 0)[None].astype(jnp.float32))
MIRRORED = KeyWeightStatistic("mirrored", lambda rows: rows.keys - 1 - rows.position_BxQ)
CONCENTRATION = ReductionStatistic(
    "concentration", (0.0,), lambda block: (jnp.sum(block.weights_BxHxQxK**2, axis=-1),), add_states, finish_first_array
)
OWN = (EVEN_KEYS, MIRRORED, CONCENTRATION)
EVERY = (*STATISTICS.values(), induction_mass(PERIOD), ONE_REPEATS, GRID, span_mass(2, 9), *OWN)


class Case(NamedTuple):
    """One attention: the facts of its mask, key heads, what is added to the logits, and what divides them.

    Where `bias_hides`, the bias is minus infinity at random keys and at every key of some queries.
    """

    facts: Mapping[str, Any] = MappingProxyType({})
    groups: int = H
    bias: tuple[int, ...] | None = None
    position: AttentionPosition = AttentionPosition.NONE
    temperature: float = 1.0
    bias_hides: bool = False


SEGMENTS = (
    np.int32([[0] * 5 + [1] * 9 + [2] * 5, [1] * 2 + [0] * 12 + [3] * 5]),
    np.int32([[0] * 4 + [1] * 9, [1] * 6 + [0] * 7]),
)
BY_HEAD = np.random.default_rng(5).random((1, H, Q, K)) < 0.7
CASES = {
    "none": Case(),
    # Four queries of the first example are padding; the second example has no key at all.
    "causal_lengths": Case(
        {"causal": True, "query_lengths": np.int32([15, 19]), "key_lengths": np.int32([9, 0])}, temperature=0.6
    ),
    "segments": Case({"segments": SEGMENTS}),
    "window": Case({"window": (3, 1)}),
    "grouped_offset": Case({"causal": True, "query_offset": np.int32([4, -3])}, groups=2),
    "bias": Case(bias=(B, H, Q, K), temperature=1.7),
    "alibi": Case({"causal": True}, groups=1, position=AttentionPosition.ALIBI),
    "t5_and_dense": Case({"allowed": BY_HEAD}, bias=(1, H, 1, K), position=AttentionPosition.T5),
    "hiding_bias": Case({"causal": True}, bias=(B, H, Q, K), temperature=0.7, bias_hides=True),
}


def arrays(case: Case) -> dict[str, Any]:
    """Random inputs of a case, as float32 NumPy arrays."""
    normal = np.random.default_rng(7).normal
    shapes = {"q": (B, Q, H, D), "k": (B, K, case.groups, D), "v": (B, K, case.groups, D)}
    found: dict[str, Any] = {name: normal(size=shape, scale=1.5).astype(np.float32) for name, shape in shapes.items()}
    found["bias"] = None if case.bias is None else normal(size=case.bias, scale=2).astype(np.float32)
    if case.bias_hides:
        hidden = np.random.default_rng(8).random(case.bias) < 0.4
        hidden[:, :, ::5] = True
        found["bias"] = np.where(hidden, np.float32(-np.inf), found["bias"])
    found["table"] = normal(size=(8, H)).astype(np.float32) if case.position is AttentionPosition.T5 else None
    return found


class Answer(NamedTuple):
    """Logits, weights and whether a key is seen, `B H Q K`, and each query's position, `B Q`."""

    logits: np.ndarray
    weights: np.ndarray
    seen: np.ndarray
    positions: np.ndarray


def expected_map(case: Case, given: dict[str, Any]) -> Answer:
    """The softmax of the case in float64, one example and head at a time."""
    q, k = given["q"].astype(np.float64), given["k"].astype(np.float64)
    logits = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, H // case.groups, axis=2)) / np.sqrt(D)
    offset = case.facts.get("query_offset", np.zeros(B, int))
    positions = np.arange(Q) + offset[:, None]
    distance = np.arange(K) - positions[:, :, None]
    if case.position is AttentionPosition.ALIBI:
        slopes = 2.0 ** (-8 / H * np.arange(1, H + 1))
        logits = logits - slopes[:, None, None] * np.abs(distance)[:, None]
    if case.position is AttentionPosition.T5:
        logits = logits + np.moveaxis(given["table"].astype(np.float64)[small_buckets(distance)], -1, 1)
    if given["bias"] is not None:
        logits = logits + given["bias"].astype(np.float64)
    logits = logits / case.temperature
    seen = np.broadcast_to(expected_seen(case.facts, positions)[:, None], logits.shape)
    if "allowed" in case.facts:
        seen = seen & case.facts["allowed"]
    if case.bias_hides:
        seen = seen & (given["bias"] > -np.inf)
    weights = np.zeros_like(logits)
    for place in np.ndindex(B, H, Q):
        if seen[place].any():
            powers = np.exp(logits[place][seen[place]] - logits[place][seen[place]].max())
            weights[place][seen[place]] = powers / powers.sum()
    return Answer(logits, weights, seen, positions)


def small_buckets(distance: np.ndarray) -> np.ndarray:
    """T5's eight buckets, both directions, `max_distance` 100: distances 0, 1, from 2 and from 2 sqrt(50) = 14.1 on."""
    away = np.abs(distance)
    return np.where(distance > 0, 4, 0) + np.where(away < 2, away, np.where(away < 15, 2, 3))


def expected_seen(facts: Mapping[str, Any], positions: np.ndarray) -> np.ndarray:
    """Which key each query sees, `B Q K`, decided one place at a time."""
    seen = np.ones((B, Q, K), bool)
    for b, q, k in np.ndindex(seen.shape):
        before, after = facts.get("window", (Q + K, Q + K))
        hidden = [
            facts.get("causal", False) and k > positions[b, q],
            not -before <= k - positions[b, q] <= after,
            "query_lengths" in facts and q >= facts["query_lengths"][b],
            "key_lengths" in facts and k >= facts["key_lengths"][b],
            "segments" in facts and facts["segments"][0][b, q] != facts["segments"][1][b, k],
        ]
        seen[b, q, k] = not any(hidden)
    return seen


def chosen_keys(name: str, positions: np.ndarray, segments: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray | None:
    """The key that a mass looks at, `B Q`, -1 where there is none; None for what is no mass."""
    first = np.zeros_like(positions)
    if segments is not None:
        for place in np.ndindex(first.shape):
            same = np.flatnonzero(segments[1][place[0]] == segments[0][place])
            first[place] = same[0] if same.size else -1
    keys = {
        "first_token": first,
        "previous_token": positions - 1,
        "diagonal": positions,
        "induction": np.where(positions >= PERIOD, positions - PERIOD + 1, -1),
        "one_repeats": np.array(
            [np.where(positions[0] >= PERIOD - 1, positions[0] - PERIOD + 2, -1), -np.ones(Q)], int
        ),
        "mirrored": K - 1 - positions,
    }
    return keys.get(name)


def expected_rows(name: str, answer: Answer, segments: Any) -> tuple[np.ndarray, np.ndarray]:
    """The statistic of every row, `B H Q`, from the weights, and whether the row counts."""
    logits, weights, seen, positions = answer
    counts = seen.any(-1)
    keys = chosen_keys(name, positions, segments)
    if keys is not None:
        values = np.zeros(counts.shape)
        there = np.zeros(counts.shape, bool)
        for b, h, q in np.ndindex(counts.shape):
            if 0 <= keys[b, q] < K:
                values[b, h, q] = weights[b, h, q, keys[b, q]]
                there[b, h, q] = seen[b, h, q, keys[b, q]]
        return values, counts & there
    if name == "grid_distance":
        return expected_grid_distance(answer)
    key = np.arange(K)
    mean = np.sum(weights * key, axis=-1)
    away = np.abs(key - positions[:, None, :, None])
    formulas: dict[str, Callable[[], np.ndarray]] = {
        "entropy": lambda: -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=-1),
        "largest_weight": lambda: weights.max(-1),
        "largest_logit": lambda: np.where(seen, logits, -np.inf).max(-1),
        "distance": lambda: np.sum(weights * away, axis=-1),
        "diagonality": lambda: np.array(
            [
                [[centrality(*row) for row in zip(*head, strict=True)] for head in zip(*one, strict=True)]
                for one in zip(weights, seen, np.broadcast_to(away, weights.shape), strict=True)
            ]
        ),
        "spread": lambda: np.sqrt(np.sum(weights * (key - mean[..., None]) ** 2, axis=-1)),
        "key_position": lambda: mean,
        "span_2_9": lambda: weights[..., 2:9].sum(-1),
        "segment_1": lambda: np.sum(weights * (segments[1] == 1)[:, None, None], axis=-1),
        "even_keys": lambda: weights[..., ::2].sum(-1),
        "concentration": lambda: np.sum(weights**2, axis=-1),
    }
    return formulas[name](), counts


def centrality(weights_K: np.ndarray, seen_K: np.ndarray, away_K: np.ndarray) -> float:
    """How near one row lies to its diagonal."""
    farthest = away_K[seen_K].max(initial=0)
    return 1.0 if farthest == 0 else 1 - float(weights_K @ away_K) / farthest


def expected_grid_distance(answer: Answer) -> tuple[np.ndarray, np.ndarray]:
    """The distance on the grid, one patch to one patch at a time, and which rows have one."""
    values, counts = np.zeros((B, H, Q)), np.zeros((B, H, Q), bool)
    for b, h, q in np.ndindex(values.shape):
        here = answer.positions[b, q] - LEADING
        mass = answer.weights[b, h, q, LEADING:].sum()
        if here >= 0 and mass > 0:
            counts[b, h, q] = True
            for k in range(LEADING, K):
                (row, column), (other_row, other_column) = divmod(here, COLUMNS), divmod(k - LEADING, COLUMNS)
                patches = np.hypot(row - other_row, column - other_column)
                values[b, h, q] += answer.weights[b, h, q, k] / mass * patches
    return values, counts


def statistics_of(case: Case) -> tuple[Statistic, ...]:
    return (*EVERY, segment_mass(1)) if "segments" in case.facts else EVERY


def mask_of(case: Case) -> Mask:
    static = {name: fact for name, fact in case.facts.items() if name in ("causal", "window")}
    return Mask(**jax.device_put(dict(case.facts)) | static)


@jax.jit(static_argnames=("backend", "case_name"))
def found_by(given: dict[str, Any], mask: Mask, backend: str, case_name: str) -> CapturedAttention:
    """All statistics of a case by one path: attend() on a backend, or blocks that do not divide the lengths."""
    case = CASES[case_name]
    position = None if given["table"] is None else T5(given["table"], max_distance=100)
    capture = Capture(("here",), maps=False, statistics=statistics_of(case))
    if backend == "small_blocks":
        scheme = Alibi() if case.position is AttentionPosition.ALIBI else position
        terms = LogitTerms(mask, given["bias"], scheme)
        scaling = LogitScaling(D**-0.5, case.temperature)
        found = capture_from_queries_and_keys(
            given["q"], given["k"], capture, terms=terms, scaling=scaling, block=BLOCK
        )
    else:
        spec = AttentionSpec(position=case.position, temperature=case.temperature, backend=Backend(backend))
        params = AttentionParameters(position=position)
        inputs = (given["q"], given["k"], given["v"])
        _, attended = attend(*inputs, spec=spec, mask=mask, bias=given["bias"], params=params, capture=capture)
        found = attended.captured
    assert found is not None
    return found


@functools.cache
def expected(case_name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The sum and the count of each statistic of a case, by head."""
    case = CASES[case_name]
    answer = expected_map(case, arrays(case))
    found = {}
    for statistic in statistics_of(case):
        values, counts = expected_rows(statistic.name, answer, case.facts.get("segments"))
        found[statistic.name] = (np.sum(values, axis=(0, 2), where=counts), counts.sum(axis=(0, 2)))
    return found


# XLA's attention gives its log-sum-exp alone; all behind it is what is done in blocks.
BY_XLA = ("none", "causal_lengths", "alibi")
# Positions and a shape of their own; `make slow` takes the others in blocks as well.
IN_BLOCKS = ("t5_and_dense", "grouped_offset", "hiding_bias")


@pytest.mark.parametrize(
    ("case_name", "backend"),
    [
        *(
            pytest.param(name, "einsum", marks=pytest.mark.slow if number % 2 else ())
            for number, name in enumerate(CASES)
        ),
        *itertools.product(IN_BLOCKS, ("small_blocks",)),
        *(pytest.param(name, "small_blocks", marks=pytest.mark.slow) for name in CASES if name not in IN_BLOCKS),
        ("causal_lengths", "xla"),
        *(pytest.param(name, "xla", marks=pytest.mark.slow) for name in BY_XLA if name != "causal_lengths"),
    ],
)
def test_every_statistic_and_a_researchers_own_of_each_kind_is_the_oracles(case_name: str, backend: str) -> None:
    case = CASES[case_name]
    found = found_by(arrays(case), mask_of(case), backend, case_name)
    assert found.weights is None
    assert set(found.sums) == set(found.counts) == set(expected(case_name))
    for name, (total, count) in expected(case_name).items():
        np.testing.assert_array_equal(found.counts[name], count, err_msg=name)
        tolerance = 1e-5 * np.maximum(1, np.abs(total))
        np.testing.assert_array_less(np.abs(found.sums[name] - total), tolerance, err_msg=name)
        mean = np.where(count > 0, total / np.maximum(count, 1), 0)
        np.testing.assert_allclose(found.means()[name], mean, rtol=1e-5, atol=1e-5, err_msg=name)


@jax.jit
def by_weights(weights_BxHxQxK: jax.Array, mask: Mask) -> CapturedAttention:
    found = capture_weights(weights_BxHxQxK, Capture(("here",), maps=False, statistics=EVERY), mask=mask)
    assert found is not None
    return found


def test_weights_alone_give_every_statistic_their_logarithms_being_the_logits() -> None:
    case = CASES["window"]
    answer = expected_map(case, arrays(case))
    # As sparsemax leaves them: some keys that are seen have no weight.
    weights = np.where(answer.weights < 0.05, 0, answer.weights)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    assert (answer.seen & (weights == 0)).any()
    found = by_weights(weights.astype(np.float32), mask_of(case))
    logits = np.full_like(weights, -np.inf)
    np.log(weights, out=logits, where=weights > 0)
    for statistic in EVERY:
        name = statistic.name
        values, counts = expected_rows(name, answer._replace(logits=logits, weights=weights), None)
        total = np.sum(values, axis=(0, 2), where=counts)
        np.testing.assert_array_equal(found.counts[name], counts.sum(axis=(0, 2)), err_msg=name)
        np.testing.assert_allclose(found.sums[name], total, rtol=1e-5, atol=1e-5, err_msg=name)


@jax.jit(static_argnames=("path", "chosen"))
def of_products(
    q: Any, k: Any, mask: Mask, bias: Any = None, *, path: str, chosen: tuple[Statistic, ...]
) -> CapturedAttention:
    """The statistics of unscaled products of one example, `N D`, the same for every head of the bias."""
    heads = 1 if bias is None else bias.shape[1]
    q, k = (jnp.repeat(jnp.asarray(x, jnp.float32)[None, :, None], heads, axis=2) for x in (q, k))
    capture = Capture(("here",), maps=False, statistics=chosen)
    if path == "blockwise":
        found = capture_from_queries_and_keys(
            q, k, capture, terms=LogitTerms(mask, bias), scaling=LogitScaling(), block=512
        )
    else:
        spec = AttentionSpec(score=Score.DOT, backend=Backend.EINSUM)
        found = attend(q, k, jnp.zeros_like(k), spec=spec, mask=mask, bias=bias, capture=capture)[1].captured
    assert found is not None
    return found


PATHS = ("einsum", "blockwise")


@pytest.mark.parametrize("path", PATHS)
def test_spread_and_distance_are_exact_far_from_the_origin(path: str) -> None:
    # Squares of positions near 4,000 pass 2^23: in float32 the difference of their sums would be off by whole keys.
    widths_Hx1, center, query, keys = np.array([[0.3], [1.0], [5.0]]), 4000.3, 3990, 4096
    key = np.arange(keys)
    bias = (-((key - center) ** 2) / (2 * widths_Hx1**2)).astype(np.float32)
    weights = np.exp(bias.astype(np.float64))
    weights /= weights.sum(-1, keepdims=True)
    mean = weights @ key
    expected = {
        "spread": np.sqrt(np.sum(weights * (key - mean[:, None]) ** 2, axis=-1)),
        "distance": weights @ np.abs(key - query),
        "key_position": mean,
    }
    chosen = tuple(STATISTICS[name] for name in expected)
    mask = Mask(query_offset=jnp.int32([query]))
    found = of_products(np.zeros((1, 2)), np.zeros((keys, 2)), mask, bias[None, :, None], path=path, chosen=chosen)
    for name, values in expected.items():
        np.testing.assert_array_equal(found.counts[name], 1)
        np.testing.assert_allclose(found.sums[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("path", PATHS)
def test_entropy_is_log_n_of_n_equal_keys_and_zero_of_one(path: str) -> None:
    entropy = (STATISTICS["entropy"],)
    zeros = np.zeros((6, 2))
    uniform = of_products(zeros, zeros, Mask(causal=True), path=path, chosen=entropy)
    np.testing.assert_allclose(uniform.sums["entropy"], np.log(np.arange(1, 7)).sum(), rtol=1e-6)
    np.testing.assert_array_equal(uniform.counts["entropy"], 6)
    peaked = of_products(1000 * np.eye(6), np.eye(6), Mask(), path=path, chosen=entropy)
    np.testing.assert_array_equal(peaked.sums["entropy"], 0)


# What each planted head does, on a text of seven tokens that comes twice.
TEXT = np.tile(np.random.default_rng(0).permutation(7), 2)
PLANTED = ("induction", "previous_token", "first_token", "diagonal")


def planted_products() -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys whose products make each head of PLANTED: [1, N, H, N]."""
    places, first = np.eye(14), np.zeros((14, 14))
    tokens = np.eye(14)[TEXT]
    first[:, 0] = 1
    # Each key of the induction head tells the token before it: a query finds what followed the last time.
    queries = [tokens, np.roll(places, -1, axis=1), first, places]
    keys = [np.concatenate([first[:1] * 0, tokens[:-1]]), places, places, places]
    return 100 * np.stack(queries, axis=1)[None], np.stack(keys, axis=1)[None]


def planted_weights() -> np.ndarray:
    """The same heads as weights, [1, H, N, N]; what an induction head has nothing to copy for, it leaves to itself."""
    weights = np.zeros((1, 4, 14, 14))
    for q in range(14):
        for head, key in enumerate((q - 6 if q >= 7 else q, max(q - 1, 0), 0, q)):
            weights[0, head, q, key] = 1
    return weights


@pytest.mark.parametrize("path", ["einsum", "blockwise", "weights"])
def test_planted_heads_are_told_apart(path: str) -> None:
    chosen = (*STATISTICS.values(), induction_mass(7))
    capture = Capture(("here",), maps=False, statistics=chosen)
    mask = Mask(causal=True)

    @jax.jit
    def run(q: Any, k: Any, weights: Any) -> CapturedAttention | None:
        match path:
            case "einsum":
                spec = AttentionSpec(score=Score.DOT, backend=Backend.EINSUM)
                return attend(q, k, jnp.zeros_like(k), spec=spec, mask=mask, capture=capture)[1].captured
            case "blockwise":
                return capture_from_queries_and_keys(
                    q, k, capture, terms=LogitTerms(mask), scaling=LogitScaling(), block=5
                )
        return capture_weights(weights, capture, mask=mask)

    found = run(*(x.astype(np.float32) for x in (*planted_products(), planted_weights())))
    assert found is not None
    assert [int(found.counts[name][0]) for name in PLANTED] == [7, 13, 14, 14]
    means = np.array([found.means()[name] for name in PLANTED])
    np.testing.assert_allclose(np.diag(means), 1, rtol=0, atol=1e-6)
    # Beside its own, a head has the masses of the few rows in which two keys are the same one, or all are seen evenly.
    assert means[~np.eye(4, dtype=bool)].max() < (0.55 if path == "weights" else 0.3)
    np.testing.assert_allclose(found.means()["diagonality"][3], 1)


def test_an_induction_head_is_scored_by_the_period_of_each_example() -> None:
    q, k = planted_products()
    copies = [np.concatenate([x[:, :, :1]] * 3) for x in (q, k)]
    for periods, expected in (((7, 6, None), [7 + 8, 7 / 15]), ((7,), [21, 1])):
        capture = Capture(("here",), maps=False, statistics=(induction_mass(*periods),))
        of_copies = functools.partial(
            capture_from_queries_and_keys, terms=LogitTerms(Mask(causal=True)), scaling=LogitScaling(), block=5
        )
        found = jax.jit(of_copies, static_argnums=2)(*map(np.float32, copies), capture)
        assert found is not None
        assert found.counts["induction"][0] == expected[0]
        # With the wrong period the first row that counts has nothing to copy yet, and attends evenly to seven keys.
        wrong = 1 / 7 / 15 if len(periods) > 1 else 0
        np.testing.assert_allclose(found.means()["induction"][0], expected[1] + wrong, atol=1e-6)


@pytest.mark.parametrize("leading", [0, 2])
def test_on_a_grid_the_patch_below_is_as_near_as_the_one_beside(leading: int) -> None:
    # From the last of three by three patches: the one above, the one beside, and the opposite corner, 2 sqrt(2) away.
    weights = np.zeros((1, 1, leading + 9, leading + 9), np.float32)
    weights[0, 0, -1, leading + np.array([5, 7, 0])] = [0.1, 0.1, 0.2]
    weights[0, 0, -1, leading - 1] += 0.6
    if not leading:
        weights[0, 0, -1] = np.where(np.arange(9) == 8, 0.6, weights[0, 0, -1])
    last = Mask(allowed=jax.device_put(weights > 0))
    statistic = grid_distance(3, leading)
    assert statistic.name == "distance"
    capture = Capture(("here",), maps=False, statistics=(statistic,))
    found = jax.jit(lambda weights, mask: capture_weights(weights, capture, mask=mask))(weights, last)
    assert found is not None
    assert found.counts["distance"][0] == 1
    total = 0.2 + 0.2 * 2 * np.sqrt(2)
    np.testing.assert_allclose(found.sums["distance"][0], total / 0.4 if leading else total, rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_rows_and_masses_count_only_where_there_is_a_key(path: str) -> None:
    mask = Mask(causal=True, query_lengths=jnp.int32([5]), key_lengths=jnp.int32([3]))
    chosen = (*STATISTICS.values(), induction_mass(2))
    found = of_products(np.ones((6, 2)), np.ones((6, 2)), mask, path=path, chosen=chosen)
    # Five queries and three keys are real. Row 0 has no key before it, and row 4 does not see key 3 before it; rows
    # 3 and 4 do not see themselves; induction reads keys 1, 2 and 3 from rows 2, 3 and 4, and the last is hidden.
    counts = dict.fromkeys(STATISTICS, 5) | {"previous_token": 3, "diagonal": 3, "induction": 2}
    assert {name: int(count[0]) for name, count in found.counts.items()} == counts


def test_no_two_statistics_share_a_name() -> None:
    made = [
        found
        for found in vars(statistics).values()
        if isinstance(found, ExpectationStatistic | KeyWeightStatistic | ReductionStatistic)
    ]
    assert len(made) == len(STATISTICS) >= 10
    assert all(STATISTICS[statistic.name] is statistic for statistic in made)
    names = [statistic.name for statistic in (*EVERY, segment_mass(1), span_mass(2, 8), segment_mass(0))]
    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="holds a name twice"):
        Capture(("here",), statistics=(EVEN_KEYS, KeyWeightStatistic("even_keys", lambda rows: rows.position_BxQ)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: induction_mass(1), "period=1"),
        (lambda: induction_mass(4, None, 0), "period=0"),
        (lambda: induction_mass(), "needs a period"),
        (lambda: grid_distance(0), r"grid_distance\(0, 0\)"),
        (lambda: grid_distance(3, -1), r"grid_distance\(3, -1\)"),
        (lambda: span_mass(3, 3), "span"),
        (lambda: span_mass(-1, 3), "span"),
    ],
)
def test_a_statistic_of_no_key_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("path", PATHS)
def test_a_segment_of_a_mask_without_segments_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"segment_1 needs mask\.segments"):
        of_products(np.eye(2), np.eye(2), Mask(), path=path, chosen=(segment_mass(1),))
