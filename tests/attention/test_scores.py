"""Scores against their equations in NumPy float64, one query, one key and one head at a time."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.api import PreparedKeys, attend, prepare_keys, score
from transformer.attention.attend_checks import check_attend_call
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.masks import Mask
from transformer.attention.normalizers import softmax
from transformer.attention.positions import T5, AttentionPosition, Disentangled, Shaw, TransformerXL
from transformer.attention.scores import Additive, Concat, Cosine, General, Location, Mlp, Score, SquaredDistance

# Key depth C, the hidden width A and the longest memory N differ from all else, so that no transposition passes.
B, Q, K, H, D, C, A, N = 2, 3, 5, 2, 4, 6, 3, 7
PRODUCTS = (Score.DOT, Score.SCALED_DOT, Score.COSINE)
POSITIONS = tuple(position for position in AttentionPosition if position is not AttentionPosition.NONE)
# Values that are unit vectors: what attend() gives of them are its weights.
UNIT_VALUES = jax.device_put(np.broadcast_to(np.eye(K, dtype=np.float32)[:, None], (B, K, H, K)))

SHAPES: Mapping[Score, tuple[type, dict[str, tuple[int, ...]]]] = MappingProxyType(
    {
        Score.GENERAL: (General, {"weight_HxDxC": (H, D, C)}),
        Score.ADDITIVE: (Additive, {"keys_HxCxA": (H, C, A), "queries_HxDxA": (H, D, A), "score_HxA": (H, A)}),
        Score.CONCAT: (Concat, {"weight_HxIxA": (H, C + D, A), "score_HxA": (H, A)}),
        Score.MLP: (Mlp, {"weight_HxIxA": (H, C + D, A), "bias_HxA": (H, A), "score_HxA": (H, A)}),
        Score.COSINE: (Cosine, {"sharpening": (B, H, Q)}),
        Score.SQUARED_DISTANCE: (SquaredDistance, {"bandwidth": (B, H, Q)}),
        Score.LOCATION: (Location, {"weight_HxDxN": (H, D, N)}),
    }
)


def inputs(kind: Score, groups: int = H) -> tuple[np.ndarray, np.ndarray, Any]:
    """Random q, k and parameters of a score in float64, the keys with `groups` heads."""
    generator = np.random.default_rng(3)
    q = generator.normal(size=(B, Q, H, D))
    k = generator.normal(size=(B, K, groups, D if kind in (*PRODUCTS, Score.SQUARED_DISTANCE) else C))
    if kind not in SHAPES:
        return q, k, None
    own, shapes = SHAPES[kind]
    found = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    for name in {"sharpening", "bandwidth"} & found.keys():
        found[name] = np.exp(found[name])
    return q, k, own(**found)


def equation(kind: Score, q_D: np.ndarray, k_C: np.ndarray, own: Any, head: int, number: float, place: int) -> float:
    """The score of one query and one key, as the docstring of `score` says it; `number` is its beta, or its h."""
    match kind:
        case Score.DOT:
            return sum(a * b for a, b in zip(q_D, k_C, strict=True))
        case Score.SCALED_DOT:
            return sum(a * b for a, b in zip(q_D, k_C, strict=True)) / len(q_D) ** 0.5
        case Score.GENERAL:
            return q_D @ own.weight_HxDxC[head] @ k_C
        case Score.ADDITIVE:
            hidden = np.tanh(own.keys_HxCxA[head].T @ k_C + own.queries_HxDxA[head].T @ q_D)
            return own.score_HxA[head] @ hidden
        case Score.CONCAT:
            return own.score_HxA[head] @ np.tanh(own.weight_HxIxA[head].T @ np.concatenate([k_C, q_D]))
        case Score.MLP:
            sums = own.weight_HxIxA[head].T @ np.concatenate([k_C, q_D]) + own.bias_HxA[head]
            return own.score_HxA[head] @ np.where(sums > 0, sums, 0)
        case Score.COSINE:
            return number * (q_D @ k_C) / (np.linalg.norm(q_D) * np.linalg.norm(k_C))
        case Score.SQUARED_DISTANCE:
            return -sum((a - b) ** 2 for a, b in zip(q_D, k_C, strict=True)) / (2 * number**2)
        case Score.LOCATION:
            return own.weight_HxDxN[head][:, place] @ q_D
    raise AssertionError(kind)


def expected(kind: Score, q: np.ndarray, k: np.ndarray, own: Any) -> np.ndarray:
    """The equation at every place; H / G neighboring query heads share a key head."""
    logits = np.zeros((*q.shape[:1], q.shape[2], q.shape[1], k.shape[1]))
    for b, h, i, j in np.ndindex(logits.shape):
        numbers = getattr(own, "sharpening", getattr(own, "bandwidth", None))
        number = 1.0 if numbers is None else numbers[b, h, i]
        logits[b, h, i, j] = equation(kind, q[b, i, h], k[b, j, h * k.shape[2] // q.shape[2]], own, h, number, j)
    return logits


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)


def prepared_score(kind: Score, q: Any, k: Any, own: Any, scale: float | None = None) -> jax.Array:
    """Prepared keys and their scores in one."""
    params = AttentionParameters(own)
    with jax.default_matmul_precision("highest"):
        return score(
            q, prepare_keys(k, kind, AttentionPosition.NONE, params), kind, AttentionPosition.NONE, params, scale=scale
        )


whole = jax.jit(prepared_score, static_argnames=("kind", "scale"))


@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("kind", list(Score), ids=lambda kind: kind.value)
def test_every_score_is_its_equation(kind: Score, groups: int) -> None:
    arrays = inputs(kind, groups)
    truth = expected(kind, *arrays)
    largest = max(1, np.abs(truth).max())
    single = whole(kind, *cast(arrays, jnp.float32))
    np.testing.assert_allclose(single, truth, rtol=0, atol=1e-6 * largest)
    with jax.enable_x64(True):
        double = whole(kind, *cast(arrays, jnp.float64))
        np.testing.assert_allclose(double, truth, rtol=0, atol=1e-14 * largest)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize("parameters", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", list(Score), ids=lambda kind: kind.value)
def test_bfloat16_inputs_give_float32_logits(kind: Score, parameters: Any) -> None:
    q, k, own = inputs(kind)
    arrays = (*cast((q, k), jnp.bfloat16), cast(own, parameters))
    logits = whole(kind, *arrays)
    rounded = cast(arrays, np.float64)
    truth = expected(kind, *rounded)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, truth, rtol=0, atol=1e-2 * max(1, np.abs(truth).max()))


def test_a_scale_replaces_the_root_of_the_depth() -> None:
    arrays = cast(inputs(Score.SCALED_DOT), jnp.float32)
    scaled, plain = whole(Score.SCALED_DOT, *arrays, scale=0.3), whole(Score.DOT, *arrays)
    np.testing.assert_allclose(scaled, 0.3 * np.asarray(plain), rtol=1e-6)


def test_six_steps_of_one_query() -> None:
    """Scores 112 and 96, divided by sqrt(64): 14 and 12; softmax: 0.880797 and 0.119203."""
    q = jax.device_put(np.ones((1, 1, 1, 64), np.float32))
    k = jax.device_put(np.repeat(np.float32([112 / 64, 96 / 64]), 64).reshape(1, 2, 1, 64))
    # Outside of jit, as the first lines of a notebook.
    np.testing.assert_array_equal(np.asarray(score(q, k, Score.DOT))[0, 0, 0], [112, 96])
    scaled = score(q, k, Score.SCALED_DOT)
    np.testing.assert_array_equal(np.asarray(scaled)[0, 0, 0], [14, 12])
    np.testing.assert_allclose(np.asarray(softmax(scaled))[0, 0, 0], [0.880797, 0.119203], rtol=0, atol=5e-7)


def test_additive_is_concat_with_both_matrices_stacked() -> None:
    q, k, own = cast(inputs(Score.ADDITIVE), jnp.float32)
    stacked = Concat(np.concatenate([own.keys_HxCxA, own.queries_HxDxA], axis=1), own.score_HxA)
    np.testing.assert_array_equal(whole(Score.ADDITIVE, q, k, own), whole(Score.CONCAT, q, k, stacked))


def test_bahdanaus_first_step_weighs_all_keys_alike() -> None:
    """His v starts at zero (Bahdanau et al. 2015, appendix B.1)."""
    q, k, own = cast(inputs(Score.ADDITIVE), jnp.float32)
    weights = softmax(whole(Score.ADDITIVE, q, k, dataclasses.replace(own, score_HxA=np.zeros((H, A), np.float32))))
    np.testing.assert_array_equal(weights, np.full((B, H, Q, K), np.float32(1) / np.float32(K)))


def test_general_with_a_factored_weight_is_the_product_of_two_projections() -> None:
    """<A q, B k> = q' (A' B) k, of a rank that A and B bound."""
    q, k, _ = inputs(Score.GENERAL)
    generator = np.random.default_rng(4)
    of_queries_HxPxD, of_keys_HxPxC = generator.normal(size=(H, 2, D)), generator.normal(size=(H, 2, C))
    weight_HxDxC = np.stack([a.T @ b for a, b in zip(of_queries_HxPxD, of_keys_HxPxC, strict=True)])
    projected_q = np.einsum("bqhd,hpd->bqhp", q, of_queries_HxPxD)
    projected_k = np.einsum("bkhc,hpc->bkhp", k, of_keys_HxPxC)
    with jax.enable_x64(True):
        general = whole(Score.GENERAL, *cast((q, k, General(weight_HxDxC)), jnp.float64))
        product = whole(Score.DOT, *cast((projected_q, projected_k), jnp.float64), None)
        np.testing.assert_allclose(general, product, rtol=0, atol=1e-13)


def test_general_with_the_identity_is_dot() -> None:
    q, k, _ = cast(inputs(Score.DOT), jnp.float32)
    identity = General(np.broadcast_to(np.eye(D, dtype=np.float32), (H, D, D)))
    np.testing.assert_allclose(whole(Score.GENERAL, q, k, identity), whole(Score.DOT, q, k, None), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("of_queries", "of_keys"), [(1e-12, 1.0), (1.0, 1e12), (300.0, 1e-3)])
def test_cosine_does_not_know_lengths(of_queries: float, of_keys: float) -> None:
    q, k, own = inputs(Score.COSINE)
    truth = expected(Score.COSINE, q, k, own)
    stretched = whole(Score.COSINE, *cast((q * of_queries, k * of_keys, own), jnp.float32))
    np.testing.assert_allclose(stretched, truth, rtol=0, atol=1e-6 * np.abs(truth).max())


def test_sharpened_cosine_is_the_addressing_of_a_turing_machine() -> None:
    """w_i = exp(beta K[k, M_i]) / sum_j exp(beta K[k, M_j]) (Graves et al. 2014, equations 5 and 6)."""
    memory_KxD = np.array([[1.0, 0], [0, 2], [-3, 0], [5, 5]])
    cosines = np.array([1, 0, -1, np.sqrt(0.5)])
    q, k = np.float32([7, 0])[None, None, None], np.float32(memory_KxD)[None, :, None]
    for beta in (1.0, 4.0):
        powers = np.exp(beta * cosines)
        # A number is no argument of a compiled function.
        of_number = jax.jit(lambda q, k, beta=beta: prepared_score(Score.COSINE, q, k, Cosine(beta)))(q, k)
        of_array = whole(Score.COSINE, q, k, Cosine(np.full((1, 1, 1), beta, np.float32)))
        for logits in (of_number, of_array):
            weights = np.asarray(softmax(logits))
            np.testing.assert_allclose(weights[0, 0, 0], powers / powers.sum(), rtol=0, atol=1e-6)
    absent = np.asarray(whole(Score.COSINE, q, k, None))
    np.testing.assert_allclose(absent[0, 0, 0], cosines, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE], ids=lambda backend: backend.value)
def test_cosine_of_a_zero_vector_is_zero_and_so_is_its_gradient(backend: Backend) -> None:
    q, k, own = cast(inputs(Score.COSINE), jnp.float32)
    q[0, 1], k[1, 2] = 0, 0
    spec = AttentionSpec(Score.COSINE, backend=backend)

    def first_weights(q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, UNIT_VALUES, spec=spec, mask=Mask(), params=AttentionParameters(own))[0][..., 0])

    logits = np.asarray(whole(Score.COSINE, q, k, own))
    assert not logits[0, :, 1].any()
    assert not logits[1, :, :, 2].any()
    of_q, of_k = map(np.asarray, jax.jit(jax.grad(first_weights, (0, 1)))(q, k))
    assert np.isfinite(of_q).all()
    assert np.isfinite(of_k).all()
    assert not of_q[0, 1].any()
    assert not of_k[1, 2].any()
    assert np.abs(of_q[1]).min() > 0
    assert np.abs(of_k[0]).min() > 0


@pytest.mark.parametrize("bandwidth", [1.0, 0.3])
def test_attention_by_squared_distance_is_the_estimator_of_nadaraya_and_watson(bandwidth: float) -> None:
    """y(x) = sum_i N(x; x_i, h^2) y_i / sum_i N(x; x_i, h^2), from the normal densities themselves (Watson 1964)."""
    places, values = np.array([0.0, 0.4, 1.1, 1.5]), np.array([1.0, 3.0, -2.0, 0.5])
    densities = np.array([[statistics.NormalDist(place, bandwidth).pdf(x) for place in places] for x in (0.2, 1.4)])
    q, k, v = (jax.device_put(np.float32(x)[None, :, None, None]) for x in ([0.2, 1.4], places, values))
    parameters = None if bandwidth == 1 else SquaredDistance(bandwidth)
    output, _ = attend(q, k, v, spec=AttentionSpec(Score.SQUARED_DISTANCE), params=AttentionParameters(parameters))
    np.testing.assert_allclose(output[0, :, 0, 0], densities @ values / densities.sum(1), rtol=0, atol=1e-6)


def test_a_short_distance_keeps_its_digits_far_from_the_origin() -> None:
    places = np.float32([4096, 4096.5, 4097])[None, :, None, None]
    q, k = jax.device_put((places[:, :1], places))
    logits = score(q, k, Score.SQUARED_DISTANCE)
    np.testing.assert_array_equal(np.asarray(logits)[0, 0, 0], [0, -0.125, -0.5])


def test_location_depends_on_the_query_alone() -> None:
    q, k, own = cast(inputs(Score.LOCATION), jnp.float32)
    logits = whole(Score.LOCATION, q, k, own)
    np.testing.assert_array_equal(logits, whole(Score.LOCATION, q, -3 * k, own))
    of_k = jax.jit(jax.grad(lambda k: jnp.sum(whole(Score.LOCATION, q, k, own) ** 2)))(k)
    assert not np.any(of_k)
    # Two queries that are equal look at equal places, whatever their own.
    same = np.asarray(whole(Score.LOCATION, np.broadcast_to(q[:, :1], q.shape), k, own))
    np.testing.assert_array_equal(same, np.broadcast_to(same[:, :, :1], same.shape))


def test_location_is_cut_to_a_shorter_memory_and_refuses_a_longer_one() -> None:
    q, k, own = jax.device_put(cast(inputs(Score.LOCATION), jnp.float32))
    logits = np.asarray(whole(Score.LOCATION, q, k, own))
    np.testing.assert_allclose(whole(Score.LOCATION, q, np.asarray(k)[:, :2], own), logits[..., :2], rtol=0, atol=1e-6)
    spec = AttentionSpec(Score.LOCATION)
    for keys, fits in ((1, True), (N, True), (N + 1, False)):
        memory = jax.device_put(np.zeros((B, keys, H, C), np.float32))
        if fits:
            check_attend_call(q, memory, memory, spec, Mask(), None, AttentionParameters(own))
            continue
        with pytest.raises(ValueError, match=rf"weight_HxDxN has shape \({H}, {D}, {N}\).*\({H}, {D}, {N + 1}\)"):
            check_attend_call(q, memory, memory, spec, Mask(), None, AttentionParameters(own))


def position_parameters(position: AttentionPosition) -> Any:
    """Random parameters of a position scheme; None where it has none, or a default."""
    generator = np.random.default_rng(6)

    def normal(*shape: int) -> jax.Array:
        return jax.device_put(generator.normal(size=shape).astype(np.float32))

    match position:
        case AttentionPosition.T5:
            return T5(normal(32, H))
        case AttentionPosition.SHAW:
            return Shaw(normal(5, D))
        case AttentionPosition.TRANSFORMER_XL:
            return TransformerXL(normal(6, H, D), normal(H, D), normal(H, D))
        case AttentionPosition.DISENTANGLED:
            return Disentangled(normal(8, H, D), normal(8, H, D), max_distance=5)
        case _:
            return None


@pytest.mark.parametrize(
    ("kind", "position"),
    [*((kind, AttentionPosition.NONE) for kind in Score), *((Score.SCALED_DOT, position) for position in POSITIONS)],
    ids=lambda part: part.value,
)
def test_keys_are_prepared_once_for_a_loop_over_queries(kind: Score, position: AttentionPosition) -> None:
    """A decoder continues behind three and one tokens, one query a step."""
    q, k, own = cast(inputs(kind), jnp.float32)
    if kind in (Score.COSINE, Score.SQUARED_DISTANCE):
        own = jax.tree.map(lambda leaf: leaf[:, :, :1], own)
    params = AttentionParameters(own, position_parameters(position))
    positions_BxQ = np.array([[3], [1]]) + np.arange(Q)

    @jax.jit
    def together_and_in_steps(q: jax.Array, k: jax.Array, params: AttentionParameters) -> tuple[jax.Array, jax.Array]:
        prepared = prepare_keys(k, kind, position, params)

        def logits(q_BxQxHxD: jax.Array, positions: jax.Array) -> jax.Array:
            return score(q_BxQxHxD, prepared, kind, position, params, positions=positions)

        def step(_: None, query: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
            q_BxHxD, positions_B = query
            return None, logits(q_BxHxD[:, None], positions_B[:, None])[:, :, 0]

        _, steps = jax.lax.scan(step, None, (jnp.moveaxis(q, 1, 0), positions_BxQ.T))
        return logits(q, jnp.asarray(positions_BxQ)), jnp.moveaxis(steps, 0, 2)

    together, steps = together_and_in_steps(q, k, params)
    np.testing.assert_allclose(steps, together, rtol=0, atol=1e-5)


def test_prepared_keys_are_carried_like_an_array() -> None:
    """Through jit, scan as a carry, vmap over a stack of layers, rows of beams, and a description by shapes alone."""
    q, k, own = cast(inputs(Score.ADDITIVE), jnp.float32)
    params = AttentionParameters(own)
    prepared = jax.jit(lambda k: prepare_keys(k, Score.ADDITIVE, params=params))(k)
    assert (prepared.kind, prepared.position, prepared.depth) == (Score.ADDITIVE, AttentionPosition.NONE, k.shape[-1])

    @jax.jit
    def scores(q: jax.Array, prepared: PreparedKeys) -> jax.Array:
        return score(q, prepared, Score.ADDITIVE, params=params)

    alone = np.asarray(scores(q, prepared))

    def step(carried: Any, row: jax.Array) -> tuple[Any, jax.Array]:
        return carried, score(row[:, None], carried, Score.ADDITIVE, params=params)[:, :, 0]

    last, rows = jax.lax.scan(step, prepared, np.moveaxis(q, 1, 0))
    np.testing.assert_allclose(np.moveaxis(rows, 0, 2), alone, rtol=0, atol=1e-6)
    assert jax.tree.structure(last) == jax.tree.structure(prepared)
    stacked = jax.vmap(lambda k: prepare_keys(k, Score.ADDITIVE, params=params))(np.stack([k, 2 * k]))
    assert stacked.keys.shape == (2, *prepared.keys.shape)
    reversed_rows = jax.tree.map(lambda leaf: np.asarray(leaf)[::-1], prepared)
    np.testing.assert_allclose(scores(q[::-1], reversed_rows), alone[::-1], rtol=0, atol=1e-6)
    described = jax.eval_shape(lambda k: prepare_keys(k, Score.ADDITIVE, params=params), k)
    assert described.keys.shape == prepared.keys.shape


BIAS = np.random.default_rng(8).normal(size=(1, H, Q, K)).astype(np.float32)


def attention_weights(
    kind: Score, position: AttentionPosition, backend: Backend, temperature: float, scale: float | None = None
) -> np.ndarray:
    """The weights of attend(), read through values that are unit vectors.

    Operation by operation: the cells share most of them, and as whole programs nothing that is compiled.
    """
    q, k, own, bias = jax.device_put(cast((*inputs(kind), BIAS), np.float32))
    spec = AttentionSpec(kind, position=position, backend=backend, temperature=temperature, scale=scale)
    params = AttentionParameters(own, position_parameters(position))
    output = attend(q, k, UNIT_VALUES, spec=spec, mask=Mask(), bias=bias, params=params)[0]
    return np.moveaxis(np.asarray(output, np.float64), 1, 2)


@functools.cache
def ordinary_weights(kind: Score, position: AttentionPosition) -> np.ndarray:
    """At temperature 1, which all backends are measured by."""
    return attention_weights(kind, position, Backend.EINSUM, 1.0)


IN_BLOCKS = (AttentionPosition.NONE, AttentionPosition.ROTARY, AttentionPosition.ALIBI, AttentionPosition.T5)


@pytest.mark.parametrize(
    ("kind", "position", "backend"),
    [
        *((kind, AttentionPosition.ALIBI, Backend.EINSUM) for kind in Score),
        *(
            (Score.SCALED_DOT, position, Backend.EINSUM)
            for position in AttentionPosition
            if position is not AttentionPosition.ALIBI
        ),
        *((kind, AttentionPosition.ALIBI, Backend.BLOCKWISE) for kind in PRODUCTS),
        *(
            (Score.SCALED_DOT, position, Backend.BLOCKWISE)
            for position in IN_BLOCKS
            if position is not AttentionPosition.ALIBI
        ),
    ],
    ids=lambda part: part.value,
)
def test_temperature_divides_the_logits_with_all_their_terms(
    kind: Score, position: AttentionPosition, backend: Backend
) -> None:
    """softmax(s / T) is softmax(s)^(1 / T), normalized: whatever escapes the division breaks it."""
    temperature = 0.6
    ordinary = ordinary_weights(kind, position)
    found = attention_weights(kind, position, backend, temperature)
    powers = ordinary ** (1 / temperature)
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=0, atol=3e-6)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE], ids=lambda backend: backend.value)
def test_scale_bias_positions_and_temperature_stand_where_the_equation_has_them(backend: Backend) -> None:
    """softmax((scale q . k - m |i - j| + bias) / temperature), the slopes m of two heads being 1/16 and 1/256."""
    q, k, _ = inputs(Score.SCALED_DOT)
    logits = np.zeros((B, H, Q, K))
    for b, h, i, j in np.ndindex(logits.shape):
        logits[b, h, i, j] = (0.3 * q[b, i, h] @ k[b, j, h] - [1 / 16, 1 / 256][h] * abs(i - j) + BIAS[0, h, i, j]) / 2
    powers = np.exp(logits)
    found = attention_weights(Score.SCALED_DOT, AttentionPosition.ALIBI, backend, 2.0, scale=0.3)
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=0, atol=1e-6)
