"""Positions against their equations in float64: waves, rotations, and what distance adds to a logit or an output."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import attention_equations
from transformer.attention.api import attend, prepare_keys, score
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec
from transformer.attention.masks import local_monotonic
from transformer.attention.positions import (
    T5,
    Alibi,
    AttentionPosition,
    Disentangled,
    PositionCombination,
    Rotary,
    Shaw,
    TransformerXL,
    alibi_slopes,
    apply_rotary,
    combine_positions,
    deberta_bucket,
    sinusoidal_positions,
    t5_bucket,
    tensor2tensor_positions,
)
from transformer.attention.scores import Score

B, Q, K, H, D = 2, 5, 7, 2, 8
POSITIONS = np.arange(256)
waves = jax.jit(sinusoidal_positions, static_argnums=1)
PAIRINGS = pytest.mark.parametrize("halves", [False, True], ids=["neighbors", "halves"])


def random_arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape) for shape in shapes]


def wave(position: int, column: int, width: int) -> float:
    """PE(p, 2i) = sin(p / 10000^(2i / width)); PE(p, 2i + 1) is the cosine of the same angle."""
    angle = position / 10000 ** ((column - column % 2) / width)
    return np.cos(angle) if column % 2 else np.sin(angle)


@pytest.mark.parametrize("width", [2, 8, 128])
def test_every_entry_is_the_equations(width: int) -> None:
    ours = np.asarray(waves(POSITIONS, width))
    expected = np.array([[wave(p, column, width) for column in range(width)] for p in POSITIONS])
    # A float32 angle of a far position is only known to its own rounding.
    assert (np.abs(ours - expected) <= 1e-6 + 1.2e-7 * POSITIONS[:, None]).all()
    assert ours.dtype == np.float32


def test_any_shape_of_positions_is_encoded_entry_by_entry() -> None:
    table = np.asarray(waves(POSITIONS, 8))
    positions = np.array([[3, 0, 7], [255, 1, 1]])
    # Outside of jit, as a notebook calls it.
    np.testing.assert_allclose(sinusoidal_positions(jnp.asarray(positions), 8), table[positions], atol=1e-6)


@pytest.mark.parametrize("shift", [1, 5, 100])
def test_a_shift_is_one_rotation_for_all_positions(shift: int) -> None:
    """PE(p + shift) = R PE(p), where R turns each pair of columns by shift / 10000^(2i / width)."""
    width = 64
    rotation = np.zeros((width, width))
    for pair in range(width // 2):
        angle = shift / 10000 ** (2 * pair / width)
        block = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
    here, there = (np.asarray(waves(POSITIONS + move, width)) for move in (0, shift))
    np.testing.assert_allclose(there, here @ rotation.T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.sum(here**2, axis=1), width / 2, rtol=1e-5)


@pytest.mark.parametrize("width", [4, 8, 128])
def test_the_frequencies_of_tensor2tensor_reach_the_last_one(width: int) -> None:
    """The last sine is that of p / 10000 itself."""
    ours = np.asarray(jax.jit(tensor2tensor_positions, static_argnums=1)(POSITIONS, width))
    half = width // 2
    angles = POSITIONS[:, None] / 10000.0 ** (np.arange(half) / (half - 1))
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert (np.abs(ours - expected) <= 1e-6 + 1.2e-7 * POSITIONS[:, None]).all()
    np.testing.assert_allclose(ours[:, half - 1], np.sin(POSITIONS / 10000), atol=1e-6)
    with pytest.raises(ValueError, match="width=2 has no two frequencies"):
        tensor2tensor_positions(jnp.arange(3), 2)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width=7 is odd"):
        sinusoidal_positions(jnp.arange(3), 7)


def turned(x: np.ndarray, positions_BxN: np.ndarray, base: float, halves: bool) -> np.ndarray:
    """Each pair of features as one complex number, times exp(i p base^(-2i / D)) (Su et al. 2021, equation 12)."""
    depth = x.shape[-1]
    pairs = [(i, i + depth // 2) if halves else (2 * i, 2 * i + 1) for i in range(depth // 2)]
    out = np.zeros(x.shape)
    for b, n in np.ndindex(x.shape[:2]):
        for i, (real, imaginary) in enumerate(pairs):
            position = positions_BxN[b % len(positions_BxN), n]
            product = (x[b, n, :, real] + 1j * x[b, n, :, imaginary]) * np.exp(1j * position * base ** (-2 * i / depth))
            out[b, n, :, real], out[b, n, :, imaginary] = product.real, product.imag
    return out


rotated = jax.jit(apply_rotary, static_argnames=("base", "halves"))


@pytest.mark.parametrize("base", [10000.0, 500.0])
@PAIRINGS
def test_rotary_is_a_complex_multiplication(halves: bool, base: float) -> None:
    x = random_arrays((B, K, H, D))[0]
    for positions in (np.arange(K)[None], np.array([[0, 3, 250, 7, 7, 1, 90], [5, 4, 3, 2, 1, 0, 11]])):
        truth = turned(x, positions, base, halves)
        single = rotated(x.astype(np.float32), positions, base=base, halves=halves)
        # As with the waves: a float32 angle of a far position is only known to its own rounding.
        error = np.abs(single - truth) / np.abs(x).max()
        assert (error <= 1e-6 + 1.2e-7 * positions[..., None, None]).all()
        rounded = x.astype(jnp.bfloat16)
        narrow = rotated(rounded, positions, base=base, halves=halves)
        of_rounded = turned(rounded.astype(np.float64), positions, base, halves)
        np.testing.assert_allclose(np.asarray(narrow, np.float32), of_rounded, rtol=2**-8, atol=1e-4)
        with jax.enable_x64(True):
            double = rotated(x, positions, base=base, halves=halves)
            np.testing.assert_allclose(double, truth, rtol=0, atol=1e-13)
        assert (single.dtype, narrow.dtype, double.dtype) == (np.float32, jnp.bfloat16, np.float64)


@PAIRINGS
def test_rotated_products_depend_on_the_distance_alone_and_lengths_stay(halves: bool) -> None:
    """<R_m q, R_n k> = <R_(m - n) q, k>, and |R_m q| = |q|."""
    q, k = random_arrays((1, 1, H, D), (1, 1, H, D))
    with jax.enable_x64(True):

        def at(x: np.ndarray, position: int) -> np.ndarray:
            return np.asarray(rotated(x, np.full((1, 1), position), halves=halves))[0, 0]

        for m, n in ((5, 2), (1003, 1000), (3, 0), (0, -3), (2, 5), (7, 7)):
            products = (at(q, m) * at(k, n)).sum(-1)
            np.testing.assert_allclose(products, (at(q, m - n) * k[0, 0]).sum(-1), rtol=0, atol=1e-12)
            np.testing.assert_allclose(np.linalg.norm(at(q, m), axis=-1), np.linalg.norm(q[0, 0], axis=-1), rtol=1e-13)
        assert np.abs((at(q, 5) * at(k, 2)).sum(-1) - (at(q, 2) * at(k, 5)).sum(-1)).min() > 1e-3


def test_the_two_pairings_are_one_permutation_of_features() -> None:
    x = random_arrays((B, K, H, D))[0].astype(np.float32)
    order = np.arange(D).reshape(2, D // 2).T.reshape(D)
    positions = np.arange(K)[None]
    neighbors, of_halves = (
        np.asarray(rotated(one, positions, halves=halves)) for one, halves in ((x[..., order], False), (x, True))
    )
    np.testing.assert_array_equal(neighbors, of_halves[..., order])


def test_rotary_refuses_an_odd_depth_and_a_base_that_is_no_frequency() -> None:
    with pytest.raises(ValueError, match="head depth 3 is odd"):
        apply_rotary(jnp.zeros((1, 1, 1, 3)), jnp.zeros((1, 1), int))
    for base in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="base="):
            Rotary(base)


def test_alibis_slopes_are_the_published_ones() -> None:
    np.testing.assert_array_equal(alibi_slopes(8), [2.0**-h for h in range(1, 9)])
    # The first eight are those of 8 heads, the others every second one of 16 heads, as in the authors' code.
    beyond = [0.7071067811865476, 0.35355339059327384, 0.17677669529663692, 0.08838834764831849]
    np.testing.assert_allclose(alibi_slopes(12), [2.0**-h for h in range(1, 9)] + beyond, rtol=1e-12)
    np.testing.assert_allclose(alibi_slopes(3), [1 / 16, 1 / 256, 1 / 4], rtol=1e-12)
    np.testing.assert_array_equal(alibi_slopes(1), [1 / 256])
    np.testing.assert_allclose(alibi_slopes(16), [2 ** (-h / 2) for h in range(1, 17)], rtol=1e-12)


POSITIONS_BxQ = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]])


def test_alibis_bias_falls_with_the_distance() -> None:
    keys = np.arange(K)
    sides = jnp.asarray(POSITIONS_BxQ), jnp.asarray(keys)[None, None]
    found = Alibi().position_bias(*sides, H, jnp.dtype(jnp.float32))
    assert found is not None
    truth = [[[[-m * abs(i - j) for j in keys] for i in row] for m in (1 / 16, 1 / 256)] for row in POSITIONS_BxQ]
    np.testing.assert_array_equal(found, truth)


def published_bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The published code of T5, a number at a time, in its float32; `distance` is of key less query."""
    bucket, before = 0, -distance
    if bidirectional:
        buckets //= 2
        bucket += buckets if before < 0 else 0
        before = abs(before)
    else:
        before = max(before, 0)
    exact = buckets // 2
    if before < exact:
        return bucket + before
    share = np.log(np.float32(before) / np.float32(exact)) / np.float32(np.log(max_distance / exact))
    return bucket + min(exact + int(share * np.float32(buckets - exact)), buckets - 1)


bucket = jax.jit(t5_bucket, static_argnames=("buckets", "max_distance", "bidirectional"))


@pytest.mark.parametrize(
    ("buckets", "max_distance", "bidirectional"),
    [(32, 128, True), (32, 128, False), (16, 64, True), (8, 20, False), (10, 1000, True)],
)
def test_t5s_buckets_are_the_published_codes(buckets: int, max_distance: int, bidirectional: bool) -> None:
    options: Any = {"buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    distances = np.arange(-1100, 1101)
    truth = [published_bucket(int(distance), buckets, max_distance, bidirectional) for distance in distances]
    # Compiled and not: a division that a compiler rewrites would move the edges.
    for found in (t5_bucket(jnp.asarray(distances), **options), bucket(distances, **options)):
        np.testing.assert_array_equal(found, truth)
    assert set(truth) == set(range(buckets)) - ({buckets // 2} if bidirectional else set())


def test_t5s_buckets_have_their_published_edges() -> None:
    """32 buckets to 128: the k-th edge beyond the exact ones is 16 8^(k / 16), or 8 16^(k / 8) for each side."""

    def first_distances(bidirectional: bool) -> list[int]:
        distances = np.arange(1000)
        found = np.asarray(bucket(-distances, buckets=32, max_distance=128, bidirectional=bidirectional))
        assert (np.diff(found) >= 0).all()
        assert found[-1] == (15 if bidirectional else 31)
        return [int(distances[found == one][0]) for one in np.unique(found)]

    grown = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert first_distances(bidirectional=False) == [*range(16), *grown]
    assert first_distances(bidirectional=True) == [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    both = bucket(np.array([0, 1, -1, 7, 8, 500]), buckets=32, max_distance=128, bidirectional=True)
    assert both.tolist() == [0, 17, 1, 23, 24, 31]
    behind = bucket(np.array([0, 1, 500, -1]), buckets=32, max_distance=128, bidirectional=False)
    assert behind.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5s_bias_is_its_tables_entry(bidirectional: bool) -> None:
    table = random_arrays((8, H))[0]
    params = T5(jax.device_put(table.astype(np.float32)), bidirectional=bidirectional, max_distance=6)

    @jax.jit
    def bias(params: T5, positions_BxQ: jax.Array, keys: jax.Array) -> jax.Array | None:
        return params.position_bias(positions_BxQ, keys, H, jnp.dtype(jnp.float32))

    found = np.asarray(bias(params, POSITIONS_BxQ, np.arange(K)[None, None]))
    assert found.shape == (B, H, Q, K)
    for b, h, i, j in np.ndindex(found.shape):
        bucket = published_bucket(int(j - POSITIONS_BxQ[b, i]), 8, 6, bidirectional)
        assert found[b, h, i, j] == np.float32(table[bucket, h])


@jax.jit
def shaws_terms(params: Shaw, q: Any, weights: Any, positions: Any) -> tuple[Any, Any]:
    keys = jnp.zeros((len(q), K, H, D))
    return params.position_logits(q, keys, positions, consecutive=True), params.position_values(weights, positions)


@pytest.mark.parametrize("positions", [np.arange(Q)[None], POSITIONS_BxQ], ids=["index", "offset"])
@pytest.mark.parametrize("clip", [0, 1, 2, 9])
def test_shaws_terms_are_the_naive_equations(clip: int, positions: np.ndarray) -> None:
    """e_ij = q_i . (k_j + a^K_ij) and z_i = sum_j w_ij (v_j + a^V_ij) (Shaw et al. 2018, equations 3 and 4)."""
    q, weights, of_keys, of_values = random_arrays((B, Q, H, D), (B, H, Q, K), (2 * clip + 1, D), (2 * clip + 1, 3))
    logits, values = np.zeros((B, H, Q, K)), np.zeros((B, Q, H, 3))
    for b, h, i, j in np.ndindex(logits.shape):
        edge = min(max(j - positions[b % len(positions), i], -clip), clip) + clip
        logits[b, h, i, j] = q[b, i, h] @ of_keys[edge]
        values[b, i, h] += weights[b, h, i, j] * of_values[edge]
    with jax.enable_x64(True):
        params = Shaw(*jax.device_put((of_keys, of_values)))
        found, read = shaws_terms(params, q, weights, positions)
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-13)
        np.testing.assert_allclose(read, values, rtol=0, atol=1e-13)


EDGE_TYPES = np.random.default_rng(5).integers(0, 4, (B, Q, K))


@pytest.mark.parametrize("rows", [1, B])
def test_shaws_terms_by_types_of_edges_are_the_naive_equations(rows: int) -> None:
    """The same of a labeled graph: a_ij is of the type of the edge (Shaw et al. 2018, section 3.2)."""
    q, weights, of_keys, of_values = random_arrays((B, Q, H, D), (B, H, Q, K), (4, D), (4, 3))
    logits, values = np.zeros((B, H, Q, K)), np.zeros((B, Q, H, 3))
    for b, h, i, j in np.ndindex(logits.shape):
        edge = EDGE_TYPES[b % rows, i, j]
        logits[b, h, i, j] = q[b, i, h] @ of_keys[edge]
        values[b, i, h] += weights[b, h, i, j] * of_values[edge]
    with jax.enable_x64(True):
        params = Shaw(*jax.device_put((of_keys, of_values, EDGE_TYPES[:rows])))
        found, read = shaws_terms(params, q, weights, POSITIONS_BxQ)
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-13)
        np.testing.assert_allclose(read, values, rtol=0, atol=1e-13)


@jax.jit(static_argnames=("kind", "position"))
def prepared_score(
    q: Any, k: Any, params: AttentionParameters, positions: Any, kind: Score, position: AttentionPosition
) -> jax.Array:
    return score(q, prepare_keys(k, kind, position, params), kind, position, params, positions=positions)


# Every third position, and a descending order far from the keys.
SCATTERED_BxQ = np.stack([3 * np.arange(Q), 400 - np.arange(Q) ** 2])


@pytest.mark.parametrize(
    "positions", [np.arange(Q)[None], POSITIONS_BxQ, SCATTERED_BxQ], ids=["index", "offset", "scattered"]
)
@pytest.mark.parametrize("kind", [Score.DOT, Score.SCALED_DOT], ids=lambda kind: kind.value)
def test_transformer_xls_score_is_the_sum_of_its_four_terms(kind: Score, positions: np.ndarray) -> None:
    """(a) q_i . k_j + (b) q_i . W R_(i-j) + (c) u . k_j + (d) v . W R_(i-j) (Dai et al. 2019, section 3.3)."""
    width = 6
    q, k, weight, u, v = random_arrays((B, Q, H, D), (B, K, H, D), (width, H, D), (H, D), (H, D))
    truth = np.zeros((B, H, Q, K))
    for b, h, i, j in np.ndindex(truth.shape):
        angles = [(positions[b % len(positions), i] - j) / 10000 ** (2 * pair / width) for pair in range(width // 2)]
        of_distance = weight[:, h].T @ np.array([*np.sin(angles), *np.cos(angles)])
        terms = (q[b, i, h] @ k[b, j, h], q[b, i, h] @ of_distance, u[h] @ k[b, j, h], v[h] @ of_distance)
        truth[b, h, i, j] = sum(terms) / (1 if kind is Score.DOT else D**0.5)
    for dtype, tolerance in ((jnp.float32, 1e-6 * np.abs(truth).max()), (jnp.float64, 1e-13)):
        with jax.enable_x64(dtype is jnp.float64):
            arrays = jax.device_put([x.astype(dtype) for x in (q, k, weight, u, v)])
            params = AttentionParameters(position=TransformerXL(*arrays[2:]))
            found = prepared_score(*arrays[:2], params, positions, kind, AttentionPosition.TRANSFORMER_XL)
            np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("buckets", "max_distance"), [(256, 512), (4, 7), (16, 40), (64, 4096)])
def test_debertas_buckets_grow_by_a_constant_factor(buckets: int, max_distance: int) -> None:
    """Beyond half of them, bucket m + n ends at m ((M - 1) / m)^(n / (m - 1)), in whole numbers."""
    distances = np.arange(-max_distance - 5, max_distance + 6)
    truth = [attention_equations.deberta_bucket(int(distance), buckets, max_distance) for distance in distances]
    found = jax.jit(deberta_bucket, static_argnames=("buckets", "max_distance"))(
        distances, buckets=buckets, max_distance=max_distance
    )
    # Buckets beyond the last are none, and what is looked up there is the last row of either side.
    np.testing.assert_array_equal(np.clip(found, -buckets, buckets), np.clip(truth, -buckets, buckets))


def test_debertas_published_buckets_end_where_theirs_do() -> None:
    """Of 256 buckets a side and 512 positions: as the published code has them."""
    distances = [128, 129, 130, 200, 300, 510, 511, 512, -130, -511, -600]
    found = deberta_bucket(jnp.array(distances), buckets=256, max_distance=512)
    assert found.tolist() == [128, 129, 130, 169, 207, 255, 255, 256, -130, -255, -256]


@pytest.mark.parametrize("positions", [np.arange(Q)[None], POSITIONS_BxQ], ids=["index", "offset"])
@pytest.mark.parametrize(("rows", "max_distance"), [(8, 5), (6, None), (20, None)])
@pytest.mark.parametrize("groups", [1, H])
def test_disentangled_scores_are_three_products(
    groups: int, rows: int, max_distance: int | None, positions: np.ndarray
) -> None:
    """(q_i . k_j + q_i . r_(i-j) + k_j . s_(i-j)) / sqrt(3 D) (He et al. 2021, equation 4)."""
    q, k, keys, queries = random_arrays((B, Q, H, D), (B, K, groups, D), (rows, groups, D), (rows, H, D))
    truth = np.zeros((B, H, Q, K))
    for b, h, i, j in np.ndindex(truth.shape):
        distance, group = int(positions[b % len(positions), i] - j), h * groups // H
        if max_distance is not None:
            distance = attention_equations.deberta_bucket(distance, rows // 2, max_distance)
        row = min(max(distance, -rows // 2), rows // 2 - 1) + rows // 2
        terms = (q[b, i, h] @ k[b, j, group], q[b, i, h] @ keys[row, group], k[b, j, group] @ queries[row, h])
        truth[b, h, i, j] = sum(terms) / (3 * D) ** 0.5
    with jax.enable_x64(True):
        arrays = jax.device_put([q, k, keys, queries])
        params = AttentionParameters(position=Disentangled(*arrays[2:], max_distance))
        found = prepared_score(*arrays[:2], params, positions, Score.SCALED_DOT, AttentionPosition.DISENTANGLED)
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "position", [AttentionPosition.SHAW, AttentionPosition.TRANSFORMER_XL], ids=lambda position: position.value
)
def test_terms_of_bfloat16_are_summed_in_float32(position: AttentionPosition) -> None:
    """Of equal arrays in float32, in which their products are exact, the logits are those."""
    q, k, *arrays = (
        jax.device_put(x.astype(jnp.bfloat16).astype(np.float32))
        for x in random_arrays((1, 1, H, D), (1, 1, H, D), (3, D), (2, H, D), (2, H, D))
    )
    table, weight, kinds = arrays
    # bfloat16 holds the wave of distance 0 and the sums of the query with biases of 0.
    none, differ = jax.device_put((np.zeros((H, D), np.float32), np.ones((1, 1, 1), bool)))
    scheme: Any = Shaw(table)
    if position is AttentionPosition.TRANSFORMER_XL:
        scheme = TransformerXL(weight, none, none, kinds, none, differ)

    def logits(dtype: Any) -> Any:
        def cast(x: Any) -> Any:
            return x if x.dtype == bool else jax.device_put(np.asarray(x, dtype))

        params = AttentionParameters(position=jax.tree.map(cast, scheme))
        return prepared_score(cast(q), cast(k), params, None, Score.DOT, position)

    assert logits(jnp.bfloat16).dtype == jnp.float32
    np.testing.assert_allclose(logits(jnp.bfloat16), logits(jnp.float32), rtol=0, atol=1e-5)


LENGTH = 14


@jax.jit(static_argnames="position")
def self_attention(x: jax.Array, params: AttentionParameters, position: AttentionPosition) -> jax.Array:
    return attend(x, x, x, spec=AttentionSpec(position=position), mask=local_monotonic(2), params=params)[0]


def window_attention(x_NxHxD: np.ndarray, position: AttentionPosition) -> np.ndarray:
    """Self-attention of one sequence within a window of two to each side."""
    generator = np.random.default_rng(9)

    def normal(*shape: int) -> jax.Array:
        return jax.device_put(generator.normal(size=shape).astype(np.float32))

    own: dict[AttentionPosition, Any] = {
        AttentionPosition.T5: lambda: T5(normal(8, H)),
        AttentionPosition.SHAW: lambda: Shaw(normal(3, D), normal(3, D)),
        AttentionPosition.TRANSFORMER_XL: lambda: TransformerXL(normal(6, H, D), normal(H, D), normal(H, D)),
        AttentionPosition.DISENTANGLED: lambda: Disentangled(normal(8, H, D), normal(8, H, D)),
    }
    params = AttentionParameters(position=own[position]() if position in own else None)
    return np.asarray(self_attention(x_NxHxD[None].astype(np.float32), params, position))[0]


@pytest.mark.parametrize("position", list(AttentionPosition), ids=lambda position: position.value)
def test_relative_positions_move_with_the_sequence_and_absolute_ones_do_not(position: AttentionPosition) -> None:
    """F(shift x) = shift f(x) wherever the window meets neither end."""
    shift = 3
    x = random_arrays((LENGTH, H, D))[0]
    absolute = np.asarray(waves(np.arange(LENGTH), D))[:, None]

    def change(added: np.ndarray | float) -> float:
        before = window_attention(x + added, position)
        after = window_attention(np.roll(x, shift, axis=0) + added, position)
        return np.abs(after[shift + 2 : -2] - before[2 : -2 - shift]).max()

    assert change(0.0) <= 1e-5
    assert change(absolute) >= 1e-1


def test_relative_positions_tell_apart_what_attention_alone_does_not() -> None:
    """Two keys at equal distances before and behind the query change places; without positions nothing changes."""
    x = random_arrays((LENGTH, H, D))[0]
    order = np.arange(LENGTH)
    order[[5, 9]] = 9, 5
    for position in AttentionPosition:
        change = np.abs(window_attention(x[order], position)[7] - window_attention(x, position)[7]).max()
        if position in (AttentionPosition.NONE, AttentionPosition.ALIBI):
            # ALiBi knows how far, not on which side.
            assert change <= 1e-5
        else:
            assert change >= 1e-2


def test_positions_are_added_or_concatenated() -> None:
    """[x ; p] W = x W_x + p W_p: a sum with a projection each. Of integers both sides are exact."""
    generator = np.random.default_rng(10)
    x, p, weight = (generator.integers(-9, 10, size=shape).astype(float) for shape in ((B, Q, 5), (Q, 3), (8, 4)))
    with jax.enable_x64(True):
        joined = combine_positions(jnp.asarray(x), jnp.asarray(p), PositionCombination.CONCATENATED)
        np.testing.assert_array_equal(joined @ jnp.asarray(weight), x @ weight[:5] + p @ weight[5:])
        added = combine_positions(jnp.asarray(x), jnp.asarray(p @ weight[5:, :1]), PositionCombination.ADDED)
        np.testing.assert_array_equal(added, x + p @ weight[5:, :1])
        assert joined.dtype == added.dtype == np.float64
    np.testing.assert_array_equal(joined[1, :, 5:], p)
    narrow = combine_positions(
        jnp.asarray(x, jnp.bfloat16), jnp.asarray(p, jnp.float32), PositionCombination.CONCATENATED
    )
    assert narrow.dtype == jnp.bfloat16
