"""Every cell of the support table: what is supported is what the oracle says, what is not is refused by its name."""

import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.backend_support_page import all_variants
from tests.attention import support_cases as support
from tests.attention.support_cases import Cell, Sizes
from tests.oracles import attention_equations
from transformer.attention.api import attend, weighted_sum
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import (
    BACKENDS,
    AttentionVariant,
    CallShape,
    choose_backend,
    invalid_reason,
    limit_exceeded,
    nearest_supported_variant,
    nearest_valid_variant,
    unsupported_reason,
)
from transformer.attention.capture import capture_weights
from transformer.attention.logit_modification import Softcap
from transformer.attention.masks import Mask, dense_mask
from transformer.attention.normalizers import SAMPLING_NORMALIZERS, Normalizer, normalize
from transformer.attention.positions import AttentionPosition
from transformer.attention.scores import Score

KEY = jax.random.key(3)
# Thousands of cells share most of their operations, and as whole programs nothing that is compiled. So operations run
# one by one, and Python runs their loops; only the kernel of splash is compiled. A few cells are compiled whole.
COMPILED = (Backend.SPLASH,)
CPU = CallShape("cpu", "float32", batch=2, heads=4, queries=128, keys=128, depth=64, value_depth=64)


class Cotangents(NamedTuple):
    """What the output and the log-probabilities are weighed with before they are differentiated."""

    output: np.ndarray
    log_prob: np.ndarray


class Expected(NamedTuple):
    """The oracle's word: in training, in evaluation, and for each array slopes of the loss with their directions."""

    facts: attention_equations.Facts
    training: attention_equations.Answer
    evaluation: attention_equations.Answer
    slopes: dict[str, list[tuple[np.ndarray, float]]]


def cotangents_of(sizes: Sizes) -> Cotangents:
    random = np.random.default_rng(2)
    output = random.normal(size=(sizes.batch, sizes.queries, sizes.heads, sizes.depth)).astype(np.float32)
    log_prob = random.normal(size=(sizes.batch, sizes.heads, sizes.queries)).astype(np.float32)
    return Cotangents(output, log_prob)


def expected_of(combination: AttentionVariant, sizes: Sizes) -> Expected:
    """Slopes are central differences along two random directions of each array."""
    arrays, facts = support.arrays_of(combination, sizes), support.facts_of(combination, sizes)
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    kind = support.kind_of(combination)
    evaluation = training = attention_equations.attention(kind, arrays, facts)
    sampler_key, shape = KEY, evaluation.logits.shape
    if "dropout" in combination.features:
        sampler_key, dropout_key = jax.random.split(KEY)
        # An entry is kept by its half of a word of 32 random bits, the lower half first.
        words = np.asarray(jax.random.bits(dropout_key, (-(-math.prod(shape) // 2),), jnp.uint32), "<u4")
        halves = words.view("<u2")[: math.prod(shape)].reshape(shape)
        kind = kind._replace(kept=halves >= kind.dropout * 2**16)
    if combination.normalizer in SAMPLING_NORMALIZERS:
        noise = jax.random.gumbel(sampler_key, shape, jnp.float32)
        kind = kind._replace(noise=np.asarray(noise, np.float64))
    if kind.kept is not None or kind.noise is not None:
        training = attention_equations.attention(kind, arrays, facts)
    loss = attention_equations.loss(kind, arrays, facts, *cotangents_of(sizes))
    random = np.random.default_rng(4)
    slopes: dict[str, list[tuple[np.ndarray, float]]] = {}
    for name, array in arrays.items():
        for direction in random.normal(size=(2, *array.shape)):
            step = 1e-6 * direction
            rise = loss(arrays | {name: array + step}) - loss(arrays | {name: array - step})
            slopes.setdefault(name, []).append((direction, rise / 2e-6))
    return Expected(facts, training, evaluation, slopes)


def everything(cell: Cell, arrays: Any, mask: Mask, cotangents: Cotangents) -> tuple[Any, Any, Any]:
    """In training: output and log-probabilities, their gradients, and what was captured."""

    def forward(arrays: Any) -> tuple[Any, Any]:
        capture = support.request(support.sizes_of(cell.backend))
        output, attended = support.call(cell, arrays, mask, key=KEY, train=True, capture=capture)
        return (output, attended.log_prob), attended.captured

    values, pull_back, captured = jax.vjp(forward, arrays, has_aux=True)
    weights = (cotangents.output, None if values[1] is None else cotangents.log_prob)
    return values, pull_back(weights)[0], captured


def evaluated(cell: Cell, arrays: Any, mask: Mask) -> jax.Array:
    """The output in evaluation alone."""
    return support.call(cell, arrays, mask)[0]


def faults_of(cell: Cell, level: int | None = None) -> list[str]:
    """All that is not what the oracle says: output, gradients, what is captured, and decoding with a cache.

    `level`: of XLA's optimizations, at which whole programs are then compiled.
    """
    sizes = support.sizes_of(cell.backend)
    expected = expected_of(cell.combination, sizes)
    arrays, cotangents = jax.device_put((support.arrays_of(cell.combination, sizes), cotangents_of(sizes)))
    mask = support.mask_of(expected.facts)
    tolerance = 1e-6 * max(1, np.abs(expected.training.logits).max())
    faults: list[str] = []

    def compare(name: str, found: Any, wanted: Any, within: Any = tolerance) -> None:
        difference = np.abs(np.asarray(found, np.float64) - wanted)
        if not (difference <= within).all():
            faults.append(f"{cell}: {name} is off by {difference.max():.1e}, more than {np.max(within):.1e}")

    eagerly = cell.backend not in COMPILED and level is None
    options = {} if level is None else {"xla_backend_optimization_level": level}
    # Of functions made here: what has been compiled of others may hold what a test has changed since.
    run, output_of = (
        jax.jit(lambda *given, function=function: function(*given), static_argnums=0, compiler_options=options)
        for function in (everything, evaluated)
    )
    with jax.default_matmul_precision("highest"), jax.disable_jit(eagerly):
        (output, log_prob), gradients, captured = run(cell, arrays, mask, cotangents)
        compare("output", output, expected.training.output)
        if cell.combination.normalizer in SAMPLING_NORMALIZERS:
            compare("log_prob", log_prob, expected.training.log_prob)
        if expected.training is not expected.evaluation:
            compare("output in evaluation", output_of(cell, arrays, mask), expected.evaluation.output)
        decoding = dataclasses.replace(cell.combination, features=cell.combination.features | {"query_offset"})
        if "causal" in decoding.features and unsupported_reason(cell.backend, decoding) is None:
            one, facts = support.last_query(arrays, expected.facts)
            decoded = output_of(cell, one, support.mask_of(facts))
            compare("decoded output", decoded, expected.evaluation.output[:, -1:])
    request = support.request(sizes)
    compare("captured rows", captured.weights, expected.training.weights[:, request.heads][:, :, request.rows])
    means = jax.tree.map(np.asarray, captured).means()
    for name, (mean, count) in attention_equations.statistics(expected.training, expected.facts).items():
        compare(f"statistic {name}", means[name], mean, 1e-5 * np.maximum(1, np.abs(mean)))
        compare(f"count of {name}", captured.counts[name], count, 0)
    for name, found in expected.slopes.items():
        for direction, slope in found:
            # The floor is what float32 itself leaves of a slope that cancels to nothing.
            within = 2e-3 * max(abs(slope), 1e-2)
            compare(f"gradient of {name}", np.sum(np.asarray(gradients[name]) * direction), slope, within)
    return faults


def faults_of_all(chosen: Collection[Cell], level: int | None = None) -> list[str]:
    """Those of each cell; one that raises is a fault too, and hides no other."""
    faults = []
    for cell in chosen:
        try:
            faults += faults_of(cell, level)
        except Exception as error:
            faults.append(f"{cell}: raises {error!r}")
    return faults


def choices_of(cell: Cell, together: int) -> set[Any]:
    """Any `together` choices of a cell."""
    return set(itertools.combinations(enumerate((cell.backend, *vars(cell.combination).values())), together))


def cover(chosen: Sequence[Cell], together: int) -> list[Cell]:
    """Few cells in which any `together` choices meet that meet anywhere, taken greedily."""
    choices = {cell: choices_of(cell, together) for cell in chosen}
    missing = set().union(*choices.values())
    taken: list[Cell] = []
    for least in range(max(map(len, choices.values())), 0, -1):
        for cell in chosen:
            if len(choices[cell] & missing) >= least:
                taken.append(cell)
                missing -= choices[cell]
    assert not missing
    return taken


@dataclasses.dataclass
class Unhashable:
    """A function with a list, which is no key of a cache of programs."""

    numbers: list[int]

    def __call__(self, logits: Any, *_: Any) -> Any:
        return logits


LISTED = Unhashable([1])
SUPPORTED = [(backend, score) for backend, takes in BACKENDS.items() for score in Score if score in takes.scores]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "score"), SUPPORTED, ids=lambda choice: choice.value)
def test_every_supported_cell_is_the_oracles(backend: Backend, score: Score) -> None:
    if backend is Backend.CUDNN:
        pytest.skip(str(limit_exceeded(backend, CPU)))
    chosen = [cell for cell in support.supported() if (cell.backend, cell.combination.score) == (backend, score)]
    assert faults_of_all(chosen) == []


@pytest.mark.parametrize(
    "backend",
    # test_attention_at_default_optimization.py has cells of the two others, compiled as users compile them.
    [Backend.EINSUM, *(pytest.param(other, marks=pytest.mark.slow) for other in (Backend.BLOCKWISE, Backend.XLA))],
    ids=lambda choice: choice.value,
)
def test_cells_with_each_choice_are_the_oracles(backend: Backend) -> None:
    chosen = cover([cell for cell in support.supported() if cell.backend is backend], 1)
    # Some of them, and one whose weights are dropped; `make slow` takes every cell there is.
    dropped = [cell for cell in chosen if "dropout" in cell.combination.features]
    assert faults_of_all({*chosen[::7], *dropped[:1]}, level=0) == []


@pytest.mark.parametrize(
    ("name", "fault", "says"),
    [
        ("weighted_sum", lambda weights, v: weighted_sum(jax.lax.stop_gradient(weights), v), "gradient of q"),
        ("normalize", lambda logits, allowed, *kind, **options: normalize(logits, None, *kind, **options), "output"),
        ("query_positions", lambda mask, queries: jnp.arange(queries)[None], "decoded output"),
        (
            "capture_weights",
            lambda weights, *rest, **more: capture_weights(weights[:, ::-1], *rest, **more),
            "captured",
        ),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, name: str, fault: Any, says: str) -> None:
    cell = Cell(Backend.EINSUM, AttentionVariant(position=AttentionPosition.ROTARY, features=frozenset({"causal"})))
    assert faults_without_a_plant(cell) == []
    monkeypatch.setattr(f"transformer.attention.api.{name}", fault)
    assert any(f"{cell}: {says}" in found for found in faults_of(cell, level=0))


@functools.cache
def faults_without_a_plant(cell: Cell) -> list[str]:
    return faults_of(cell, level=0)


def test_splash_cells_are_the_oracles() -> None:
    # The kernel, run without its TPU, is slow: a cell of each score, position and kind of mask, and a capped one.
    every = [cell for cell in support.supported() if cell.backend is Backend.SPLASH]
    capped = [cell for cell in every if "softcap" in cell.combination.features]
    assert faults_of_all([*every[::60], capped[-1]]) == []


MODIFIED = [
    Cell(backend, AttentionVariant(position=AttentionPosition.ALIBI, features=frozenset({feature})))
    for backend in (Backend.EINSUM, Backend.BLOCKWISE)
    for feature in support.MODIFICATIONS
]


@pytest.mark.parametrize("cell", MODIFIED, ids=str)
def test_modified_logits_are_the_oracles(cell: Cell) -> None:
    assert faults_of(cell, level=0) == []


def test_a_planted_fault_in_a_modification_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Softcap, "__call__", lambda self, logits, *_: jnp.clip(logits, -self.cap, self.cap))
    monkeypatch.setitem(
        support.MODIFICATIONS, "logit_modification", lambda x, batch, head, q, k: support.tilted(x, batch, head, k, q)
    )
    for cell in MODIFIED:
        assert any("output" in found for found in faults_of(cell, level=0)), cell


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("softcap", "logit_modification is 'softcap'; give a function"), (LISTED, "cannot be hashed; give a function")],
)
def test_what_is_no_function_of_logits_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        AttentionSpec(logit_modification=wrong)
    assert "\n" not in str(caught.value)


def test_a_function_is_refused_where_it_does_not_belong() -> None:
    """With arrays it is no part of a spec, without it is no parameter, and there is one; numbers make a dense mask."""
    number = jax.device_put(np.float32(1))
    with_array = jax.tree_util.Partial(lambda number, *arguments: number * support.tilted(*arguments), number)
    q = jax.device_put(np.ones((1, 2, 1, 4), np.float32))
    spec = AttentionSpec(logit_modification=support.tilted)
    for call, error, says in (
        (lambda: AttentionSpec(logit_modification=with_array), TypeError, "which a spec cannot hold"),
        (
            lambda: attend(q, q, q, params=AttentionParameters(logit_modification=support.tilted)),
            TypeError,
            "has no arrays; give spec=AttentionSpec",
        ),
        (
            lambda: attend(q, q, q, spec=spec, params=AttentionParameters(logit_modification=with_array)),
            ValueError,
            "two modifications of the same logits",
        ),
        (lambda: dense_mask(Mask(function=support.leaves_out_fifths), 2, 2, heads=1), ValueError, "both numbers"),
    ):
        with pytest.raises(error, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", [Backend.XLA, Backend.CUDNN, Backend.SPLASH])
def test_a_backend_refuses_functions_that_it_does_not_compute(backend: Backend) -> None:
    at = dataclasses.replace(CPU, platform="gpu", dtype="bfloat16")
    takes_caps = backend is Backend.SPLASH
    for modification in (support.tilted, *(() if takes_caps else (Softcap(2.0),))):
        spec = AttentionSpec(backend=backend, logit_modification=modification)
        variant = AttentionVariant.from_call(spec, Mask(), AttentionParameters(), bias=False)
        named = "softcap" if isinstance(modification, Softcap) else "logit_modification"
        with pytest.raises(ValueError, match=f"backend={backend.value} does not take {named}"):
            choose_backend(spec, variant, at)


def test_cudnn_is_refused_off_its_gpu_and_beyond_its_limits() -> None:
    chosen = [cell for cell in support.supported() if cell.backend is Backend.CUDNN]
    assert chosen
    fitting = dataclasses.replace(CPU, platform="gpu", dtype="bfloat16")
    for cell in chosen:
        spec = support.spec_of(cell)
        assert choose_backend(spec, cell.combination, fitting) is Backend.CUDNN
        for change, says in (
            ({"platform": "cpu"}, "needs an NVIDIA GPU; the platform is cpu"),
            ({"dtype": "float32"}, "takes bfloat16 and float16, not float32"),
            ({"depth": 20, "value_depth": 20}, "head depths to 128 that are multiples of 8, not 20"),
            ({"depth": 256, "value_depth": 256}, "head depths to 128 that are multiples of 8, not 256"),
            ({"value_depth": 32}, "values of the keys' depth, 64, not 32"),
        ):
            with pytest.raises(ValueError, match=says) as caught:
                choose_backend(spec, cell.combination, dataclasses.replace(fitting, **change))
            assert str(cell.combination) in str(caught.value)


@pytest.mark.parametrize("normalizer", [Normalizer.HARD, Normalizer.STRAIGHT_THROUGH], ids=lambda choice: choice.value)
def test_a_sample_has_the_gradient_that_its_kind_promises(normalizer: Normalizer) -> None:
    cell = Cell(Backend.EINSUM, AttentionVariant(normalizer=normalizer, features=frozenset({"causal"})))
    arrays, facts = (make(cell.combination, support.TINY) for make in (support.arrays_of, support.facts_of))
    arrays, mask = jax.device_put(arrays), support.mask_of(facts)

    def gradients(cell: Cell) -> Any:
        cotangents = cotangents_of(support.TINY)._replace(log_prob=np.zeros((2, 6, 5), np.float32))
        with jax.default_matmul_precision("highest"):
            found = jax.jit(everything, static_argnums=0)(cell, arrays, mask, cotangents)[1]
        return jax.tree.map(np.asarray, found)

    found = gradients(cell)
    softmax = gradients(cell._replace(combination=dataclasses.replace(cell.combination, normalizer=Normalizer.SOFTMAX)))
    for name in ("q", "k"):
        assert np.abs(softmax[name]).max() > 0.1
        wanted = softmax[name] if normalizer is Normalizer.STRAIGHT_THROUGH else np.zeros_like(softmax[name])
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-6 * (normalizer is not Normalizer.HARD))
    assert np.abs(found["v"] - softmax["v"]).max() > 0.1
    with pytest.raises(TypeError, match=f"normalizer={normalizer.value} draws a sample"):
        support.call(cell, arrays, mask, train=True)


# 11 divides the number of choices of nothing: in every eleventh combination any two choices meet that meet anywhere.
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_every_unsupported_cell_is_refused_with_its_name_and_the_nearest_that_is_not(every: int) -> None:
    refused, chosen = 0, list(all_variants())[::every]
    met, of_all = (
        set().union(*(choices_of(Cell(Backend.EINSUM, one), 2) for one in some)) for some in (chosen, all_variants())
    )
    assert met == of_all
    for combination in chosen:
        nonsense = invalid_reason(combination)
        supported = [] if nonsense else [other for other in BACKENDS if unsupported_reason(other, combination) is None]
        able = [other.value for other in supported if limit_exceeded(other, CPU) is None]
        for backend in BACKENDS:
            if backend in supported:
                continue
            refused += 1
            with pytest.raises(ValueError, match=r"^score=") as caught:
                choose_backend(AttentionSpec(backend=backend), combination, CPU)
            message = str(caught.value)
            if nonsense:
                sensible = nearest_valid_variant(combination)
                assert unsupported_reason(Backend.EINSUM, sensible) is None
                assert message == f"{combination} has no meaning: {nonsense}; nearest: {sensible}"
                continue
            near = nearest_supported_variant(backend, combination)
            assert near is not None
            assert unsupported_reason(backend, near) is None
            assert message.startswith(f"{combination}: backend={backend.value} does not take ")
            others = f"backend={' or '.join(able)} computes it as it stands"
            assert message.endswith(f"; {others}; nearest here: {near}")
            assert "einsum" in able
    taken = set(chosen)
    assert refused == len(BACKENDS) * len(chosen) - sum(cell.combination in taken for cell in support.supported())


def test_attend_itself_refuses_a_sample_of_the_unsupported_cells() -> None:
    every = [
        Cell(*pair) for pair in itertools.product(BACKENDS, all_variants()) if unsupported_reason(*pair) is not None
    ]
    for cell in every[::211]:
        arrays, facts = (make(cell.combination, support.TINY) for make in (support.arrays_of, support.facts_of))
        with pytest.raises(ValueError, match=r"has no meaning: |does not take ") as caught:
            # Traced: what it may do before it refuses is not computed.
            jax.eval_shape(functools.partial(support.call, cell, train=True, key=KEY), arrays, support.mask_of(facts))
        assert str(cell.combination) in str(caught.value)


MACHINES = {
    "cpu": CPU,
    "gpu": dataclasses.replace(CPU, platform="gpu", dtype="bfloat16"),
    "gpu in float32": dataclasses.replace(CPU, platform="gpu"),
    "one tpu": dataclasses.replace(CPU, platform="tpu", dtype="bfloat16"),
    "many tpus": dataclasses.replace(CPU, platform="tpu", dtype="bfloat16", num_devices=8),
    "odd length": dataclasses.replace(CPU, platform="tpu", queries=100),
    "float64": dataclasses.replace(CPU, dtype="float64"),
    "long": dataclasses.replace(CPU, queries=2**15, keys=2**15),
}
AUTO = AttentionSpec()


@functools.cache
def meaningful() -> list[AttentionVariant]:
    return [combination for combination in all_variants() if invalid_reason(combination) is None]


@pytest.mark.parametrize("at", MACHINES.values(), ids=MACHINES)
def test_auto_is_exact_for_whatever_means_something(at: CallShape) -> None:
    taken = set(support.supported())
    for combination in meaningful():
        chosen = choose_backend(AUTO, combination, at)
        assert Cell(chosen, combination) in taken
        assert limit_exceeded(chosen, at, combination.features) is None


def test_auto_takes_the_fastest() -> None:
    causal, bias = (AttentionVariant(features=frozenset({fact})) for fact in ("causal", "bias"))
    sparse = AttentionVariant(normalizer=Normalizer.SPARSEMAX)
    for combination, machine, wanted in (
        (causal, "cpu", Backend.EINSUM),
        (causal, "gpu", Backend.CUDNN),
        (causal, "gpu in float32", Backend.EINSUM),
        (causal, "one tpu", Backend.SPLASH),
        (causal, "many tpus", Backend.EINSUM),
        (causal, "odd length", Backend.EINSUM),
        (causal, "long", Backend.BLOCKWISE),
        (bias, "gpu", Backend.EINSUM),
        (bias, "long", Backend.BLOCKWISE),
        (sparse, "gpu", Backend.EINSUM),
        (sparse, "long", Backend.EINSUM),
    ):
        assert choose_backend(AUTO, combination, MACHINES[machine]) is wanted, (combination, machine)


def test_the_log_says_which_backend_computes_what(caplog: pytest.LogCaptureFixture) -> None:
    q = jnp.zeros((2, 5, 6, 4))
    k = jnp.zeros((2, 5, 2, 4))
    with caplog.at_level(logging.INFO, "transformer.attention.backends"):
        attend(q, k, k, spec=AUTO, mask=Mask(causal=True))
    (record,) = (record for record in caplog.records if record.name == "transformer.attention.backends")
    says = "backend=einsum for score=scaled_dot x normalizer=softmax x position=none x mask=causal, float32 [B 2, H 6"
    assert says in record.getMessage()
