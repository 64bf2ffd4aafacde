"""Attention on a mesh is attention on one device, and the oracle's: values, gradients and what is captured."""

import contextlib
import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from docs.backend_support_page import table_masks
from tests.attention import support_cases as support
from tests.attention.support_cases import Cell, Sizes
from tests.attention.test_backend_support import CPU, KEY, cotangents_of, expected_of
from tests.oracles import attention_equations
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import BACKENDS, AttentionVariant, CallShape, choose_backend, unsupported_reason
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.normalizers import Normalizer
from transformer.attention.positions import AttentionPosition
from transformer.attention.scores import Score
from transformer.attention.sharded_attention import attention_sharding
from transformer.attention.statistics import DIAGONAL, ENTROPY, induction_mass
from transformer.logical_axes import MESH_AXES, RULES, Placement, SequenceParallel, use_placement

RING, GATHER = SequenceParallel.RING, SequenceParallel.GATHER
EVERYTHING = RULES["sp+tp"]
SMALL = Sizes(batch=2, queries=8, keys=8, heads=4, groups=2)


def placement(sizes: tuple[int, int, int, int], rules: Any, how: SequenceParallel = RING) -> Placement:
    """A mesh of so many data, fsdp, tensor and sequence devices."""
    devices = jax.devices()[: int(np.prod(sizes))]
    of_axes = dict(zip(("data", "fsdp", "tensor", "sequence"), sizes, strict=True)) | {"expert": 1}
    types = (AxisType.Auto,) * len(MESH_AXES)
    mesh = jax.make_mesh([of_axes[axis] for axis in MESH_AXES], MESH_AXES, axis_types=types, devices=devices)
    return Placement(mesh, rules, how)


class Case(NamedTuple):
    """One attention on one mesh."""

    mesh: tuple[int, int, int, int]
    rules: Any
    backend: Backend
    facts: tuple[str, ...]
    sizes: Sizes = SMALL
    how: SequenceParallel = RING
    choices: tuple[tuple[str, Any], ...] = ()

    @property
    def cell(self) -> Cell:
        return Cell(self.backend, AttentionVariant(features=frozenset(self.facts), **dict(self.choices)))


BLOCKWISE, EINSUM = Backend.BLOCKWISE, Backend.EINSUM
CASES = {
    # Of 3 key heads each device has those that its 3 query heads read: 0 and 1, or 1 and 2.
    "tensor=2": Case(
        (1, 1, 2, 1),
        RULES["fsdp+tp"],
        BLOCKWISE,
        ("causal", "key_lengths"),
        SMALL._replace(heads=6, groups=3),
        choices=(("position", AttentionPosition.ALIBI),),
    ),
    # Of four: in a ring of two both directions are one.
    "sequence=4 in a ring": Case((1, 1, 1, 4), RULES["sp"], BLOCKWISE, ("causal", "window")),
    # The first example's prefix shows the keys of the second half to the queries of the first.
    "sequence=2 in a ring with a prefix": Case((1, 1, 1, 2), RULES["sp"], BLOCKWISE, ("causal", "prefix")),
    "all in a ring": Case(
        (2, 1, 2, 2),
        EVERYTHING,
        BLOCKWISE,
        ("bias",),
        SMALL._replace(groups=1),
        choices=(("position", AttentionPosition.T5),),
    ),
    "a soft cap in a ring, heads divided": Case((1, 1, 2, 2), EVERYTHING, BLOCKWISE, ("softcap",)),
    "sinks in a ring, heads divided": Case((1, 1, 2, 2), EVERYTHING, BLOCKWISE, ("sinks",)),
    "a function of logits and places in a ring, all divided": Case(
        (2, 1, 2, 2), EVERYTHING, BLOCKWISE, ("logit_modification",)
    ),
    "a mask function in a ring, all divided": Case((2, 1, 2, 2), EVERYTHING, BLOCKWISE, ("function",)),
    "all gathered, dense": Case(
        (2, 1, 2, 2),
        EVERYTHING,
        EINSUM,
        ("causal", "key_lengths"),
        how=GATHER,
        choices=(("normalizer", Normalizer.SPARSEMAX),),
    ),
}
# What the others hold as well, or what takes longer to compile; of the backends only those that run on a CPU.
OTHERS = (
    {
        "data=8": Case((8, 1, 1, 1), RULES["dp"], BLOCKWISE, ("causal",), SMALL._replace(batch=8)),
        "sequence=4 in chunks, all terms": Case(
            (1, 1, 1, 4),
            RULES["sp"],
            BLOCKWISE,
            ("causal", "segments"),
            SMALL._replace(queries=16, keys=16),
            choices=(("position", AttentionPosition.T5),),
        ),
        "sequence=2 gathered": Case((1, 1, 1, 2), RULES["sp"], BLOCKWISE, ("causal", "segments"), how=GATHER),
    }
    | {
        f"{how.value}, {backend.value}, {'+'.join(sorted(facts)) or 'none'}": Case(
            (2, 1, 2, 2), EVERYTHING, backend, tuple(facts), Sizes(2, 8, 12, 4, 2), how
        )
        for how, backend in ((RING, BLOCKWISE), (GATHER, BLOCKWISE), (GATHER, Backend.XLA), (GATHER, EINSUM))
        for facts in table_masks()
        if unsupported_reason(backend, AttentionVariant(features=facts)) is None
    }
    | {
        f"{how.value}, splash, {'+'.join(facts) or 'none'}": Case(
            mesh, EVERYTHING, Backend.SPLASH, facts, Sizes(2, 256, 256, 2, 1), how
        )
        for mesh, how in (((2, 1, 2, 1), RING), ((1, 1, 2, 2), GATHER))
        for facts in ((), ("causal",), ("causal", "window"), ("query_lengths",), ("causal", "segments"), ("softcap",))
    }
)
# What is captured there lies on each device's own queries, of which the kernel says nothing.
QUICK = ("gather, splash, causal",)


class Found(NamedTuple):
    """All that one attention gives."""

    output: Any
    gradients: Any
    captured: Any


def request_of(case: Case, **options: Any) -> Capture:
    """Statistics, one of which knows the examples one by one, and some rows of some heads."""
    periods = [None if example % 2 else 3 + example for example in range(case.sizes.batch)]
    rows, heads = (case.sizes.queries - 1, 1), (0, case.sizes.heads - 1)
    statistics = (*support.STATISTICS, induction_mass(*periods))
    return Capture(("here",), **{"heads": heads, "rows": rows, "statistics": statistics} | options)


def program(case: Case, here: Placement | None, capture: Capture | None) -> Callable[..., Found]:
    """The attention in training with its gradients, as one device or a mesh computes it."""

    def run(arrays: Any, mask: Mask, weight: Any, observe: Any = None) -> Found:
        request = capture and dataclasses.replace(capture, observe=observe)

        def forward(arrays: Any) -> tuple[Any, Any]:
            output, attended = support.call(case.cell, arrays, mask, key=KEY, train=True, capture=request)
            return output, attended.captured

        with contextlib.nullcontext() if here is None else use_placement(here):
            output, pull_back, captured = jax.vjp(forward, arrays, has_aux=True)
            return Found(output, pull_back(weight)[0], captured)

    return run


def inputs_of(case: Case) -> tuple[Any, Mask, Any]:
    arrays = support.arrays_of(case.cell.combination, case.sizes)
    mask = support.mask_of(support.facts_of(case.cell.combination, case.sizes))
    # Of NumPy: arrays that lie on one device would be divided by a program each.
    return arrays, mask, cotangents_of(case.sizes).output


def placement_of(case: Case) -> Placement:
    return placement(case.mesh, case.rules, case.how)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(case, id=name, marks=[pytest.mark.slow] * (name not in QUICK)) for name, case in OTHERS.items()),
    ],
)
def test_a_mesh_computes_what_one_device_does_and_what_the_oracle_says(case: Case) -> None:
    with jax.default_matmul_precision("highest"):
        inputs, capture = inputs_of(case), request_of(case)
        run = jax.jit(program(case, placement_of(case), capture))
        found, again = (jax.tree.map(np.asarray, run(*inputs)) for _ in range(2))
        of_one = jax.tree.map(np.asarray, jax.jit(program(case, None, capture))(*inputs))
    jax.tree.map(np.testing.assert_array_equal, found, again)
    expected = expected_of(case.cell.combination, case.sizes)
    scale = max(1, np.abs(expected.training.logits).max())
    for values in (found, of_one):
        np.testing.assert_allclose(values.output, expected.training.output, atol=1e-6 * scale, rtol=0)
        chosen = expected.training.weights[:, capture.heads][:, :, capture.rows]
        np.testing.assert_allclose(values.captured.weights, chosen, atol=1e-6 * scale, rtol=0)
        means = values.captured.means()
        for name, (mean, count) in attention_equations.statistics(expected.training, expected.facts).items():
            np.testing.assert_allclose(means[name], mean, rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(values.captured.counts[name], count, err_msg=name)
        for name, slopes in expected.slopes.items():
            for direction, slope in slopes:
                rise = np.sum(values.gradients[name] * direction)
                np.testing.assert_allclose(rise, slope, rtol=2e-3, atol=2e-5, err_msg=name)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(of_one), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * max(1, np.abs(other).max()))


def same_text(texts_BxN: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return texts_BxN[batch, query] == texts_BxN[batch, key]


def from_table(table_HxR: Any, logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    return logits + table_HxR[head, query - key + 8] * (1 + batch)


@pytest.mark.parametrize("how", [RING, GATHER], ids=lambda how: how.value)
def test_the_arrays_of_functions_are_whole_on_every_device(how: SequenceParallel) -> None:
    """Output and gradients, of the table too, are those of one device in float64."""
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(2, 8, 4, 4)).astype(np.float32) for _ in range(3))
    table, texts = random.normal(size=(4, 16)).astype(np.float32), np.int32([[0] * 3 + [1] * 5, [0] * 6 + [1] * 2])
    weight = random.normal(size=v.shape).astype(np.float32)

    def loss(q: Any, k: Any, v: Any, table: Any) -> Any:
        params = AttentionParameters(logit_modification=jax.tree_util.Partial(from_table, table))
        mask = Mask(causal=True, function=jax.tree_util.Partial(same_text, texts))
        spec = AttentionSpec(backend=BLOCKWISE)
        with use_placement(placement((2, 1, 2, 2), EVERYTHING, how)):
            return jnp.sum(weight * attend(q, k, v, spec=spec, mask=mask, params=params)[0])

    found, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(q, k, v, table)

    def loss_of(arrays: dict[str, np.ndarray]) -> float:
        logits = np.einsum("bihd,bjhd->bhij", arrays["q"], arrays["k"]) / 2
        distance = np.subtract.outer(np.arange(8), np.arange(8))
        logits = logits + arrays["table"][:, distance + 8] * np.array([1, 2])[:, None, None, None]
        seen = (texts[:, :, None] == texts[:, None]) & (distance >= 0)
        powers = np.exp(logits) * seen[:, None]
        output = np.einsum("bhij,bjhd->bihd", powers / powers.sum(-1, keepdims=True), arrays["v"])
        return float(np.sum(weight * output))

    wide = {name: x.astype(np.float64) for name, x in zip(("q", "k", "v", "table"), (q, k, v, table), strict=True)}
    np.testing.assert_allclose(found, loss_of(wide), rtol=1e-5)
    for (name, x), gradient in zip(wide.items(), gradients, strict=True):
        direction = random.normal(size=x.shape)
        ahead, behind = (loss_of(wide | {name: x + step * direction}) for step in (1e-5, -1e-5))
        rise = np.sum(np.float64(gradient) * direction)
        np.testing.assert_allclose(rise, (ahead - behind) / 2e-5, rtol=0, atol=1e-4, err_msg=name)


def test_long_maps_and_single_examples_are_captured_alike() -> None:
    case = Case((2, 1, 1, 2), RULES["sp"], BLOCKWISE, (), SMALL)
    statistics = (ENTROPY, induction_mass(3, None))
    capture = request_of(case, max_map_size=4, rows=2, top_k=2, heads=(1,), by_example=True, statistics=statistics)
    inputs = inputs_of(case)
    found, of_one = (jax.jit(program(case, here, capture))(*inputs).captured for here in (placement_of(case), None))
    assert found.pooled.shape == (2, 1, 4, 4)
    assert found.sums["entropy"].shape == (2, 4)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(of_one), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


# --- what the devices say to each other -------------------------------------------------------------------------------

COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def compiled(case: Case, capture: Capture | None, *, switched: bool = False) -> str:
    """The program on inputs that lie as the placement says; `switched`: with a traced switch for what is captured."""
    here = placement_of(case)

    def laid(x: Any, *names: str | None) -> Any:
        return jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(here.mesh, here.even_partition_spec(names, x.shape))
        )

    arrays, mask, weight = inputs_of(case)
    sides = {"q": "heads", "k": "groups", "v": "groups"}
    arrays = {name: laid(x, "batch", "length", sides[name], None) for name, x in arrays.items()}
    inputs = (arrays, mask, laid(weight, "batch", "length", "heads", None), jnp.bool_(True) if switched else None)
    return jax.jit(program(case, here, capture)).lower(*inputs).compile().as_text()


def collectives(text: str) -> set[str]:
    return set(COLLECTIVE.findall(text))


def untaken_left_out(text: str) -> str:
    """The text of all that runs where no branch does."""
    parts = re.split(r"\n(?=(?:ENTRY )?%?[\w.-]+ \(.*\{\n)", text)
    named = {re.match(r"(?:ENTRY )?%?([\w.-]+)", part)[1]: part for part in parts}
    left = [name for name, part in named.items() if part.startswith("ENTRY")]
    assert len(left) == 1
    runs: dict[str, str] = {}
    while left:
        name = left.pop()
        runs[name] = named[name]
        called = re.findall(r"(?:body|condition|to_apply|calls)=%?([\w.-]+)", named[name])
        left += [other for other in called if other not in runs]
    return "\n".join(runs.values())


@pytest.mark.parametrize("backend", [BLOCKWISE, EINSUM], ids=lambda backend: backend.value)
def test_divided_examples_and_heads_say_nothing_to_each_other(backend: Backend) -> None:
    case = Case((2, 1, 2, 1), RULES["fsdp+tp"], backend, ("causal",))
    assert collectives(compiled(case, None)) == set()
    # Sums over the batch are added up; maps stay where their examples and heads are.
    assert collectives(compiled(case, request_of(case, heads=None, rows=None, statistics=(ENTROPY, DIAGONAL)))) == {
        "all-reduce"
    }


def test_in_a_ring_no_device_ever_has_all_keys() -> None:
    case = Case((1, 1, 1, 4), RULES["sp"], BLOCKWISE, ("causal",), Sizes(2, 20, 28, 3, 3, 6))
    text = compiled(case, None)
    assert collectives(text) == {"collective-permute"}
    assert "[2,7,3,6]" in text
    assert not re.search(r"\[(2,28,3,6|2,3,28,6|2,3,6,28)\]", text)


@pytest.mark.parametrize(
    ("how", "says"), [pytest.param(RING, "collective-permute", marks=pytest.mark.slow), (GATHER, "reduce-scatter")]
)
def test_what_is_not_observed_gathers_nothing(how: SequenceParallel, says: str) -> None:
    case = Case((1, 1, 1, 4), RULES["sp"], BLOCKWISE, ("causal",), how=how)
    plain = collectives(compiled(case, None))
    assert says in plain
    text = compiled(case, request_of(case, maps=False, statistics=(ENTROPY,)), switched=True)
    assert collectives(untaken_left_out(text)) == plain
    assert collectives(text) == plain | {"all-gather", "all-reduce"}


# --- what is chosen and what is refused -------------------------------------------------------------------------------


def shaped(here: Placement, spec: AttentionSpec, queries: int, keys: int, **options: Any) -> Any:
    """The shapes of an attention that is traced for a placement."""
    q, k = (jax.device_put(np.zeros((2, length, 2, 4), np.float32)) for length in (queries, keys))

    def call() -> Any:
        with use_placement(here):
            return attend(q, k, k, spec=spec, mask=Mask(), **options)[0]

    return jax.eval_shape(call)


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        (AttentionSpec(normalizer=Normalizer.SPARSEMAX), {}, "does not take normalizer=sparsemax"),
        (AttentionSpec(Score.LOCATION), {}, "does not take score=location"),
        (AttentionSpec(position=AttentionPosition.SHAW), {}, "does not take position=shaw"),
        (AttentionSpec(dropout=0.5), {"train": True, "key": KEY}, "does not take dropout"),
    ],
)
def test_a_ring_refuses_what_does_not_go_in_blocks(spec: AttentionSpec, options: Any, says: str) -> None:
    here = placement((1, 1, 1, 2), RULES["sp"])
    combination = AttentionVariant.from_call(spec, Mask(), AttentionParameters(), bias=False, train="train" in options)
    at = dataclasses.replace(CPU, sequence_parallel=RING)
    with pytest.raises(ValueError, match=says) as caught:
        choose_backend(spec, combination, at)
    assert str(caught.value).endswith("; attention=gather computes it as it stands")
    if spec.score is not Score.LOCATION and spec.position is not AttentionPosition.SHAW:
        with pytest.raises(ValueError, match=says):
            shaped(here, spec, 4, 4, **options)
        assert shaped(here._replace(sequence_attention=GATHER), spec, 4, 4, **options).shape == (2, 4, 2, 4)


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend is not BLOCKWISE], ids=str)
def test_a_backend_that_is_named_does_not_go_round(backend: Backend) -> None:
    at = dataclasses.replace(CPU, platform="gpu", dtype="bfloat16", sequence_parallel=RING)
    with pytest.raises(ValueError, match=f"backend={backend.value} does not take positions divided") as caught:
        choose_backend(AttentionSpec(backend=backend), AttentionVariant(), at)
    assert "; backend=blockwise computes it as it stands" in str(caught.value)


def test_auto_chooses_for_what_one_device_has() -> None:
    tpu = dataclasses.replace(CPU, platform="tpu", dtype="bfloat16")
    gpu = dataclasses.replace(tpu, platform="gpu")
    for at, how, wanted in (
        (tpu, None, Backend.SPLASH),
        (tpu, GATHER, Backend.SPLASH),
        (dataclasses.replace(tpu, queries=64), GATHER, EINSUM),
        (tpu, RING, BLOCKWISE),
        (gpu, None, Backend.CUDNN),
        (gpu, GATHER, EINSUM),
        (CPU, RING, BLOCKWISE),
    ):
        assert (
            choose_backend(AttentionSpec(), AttentionVariant(), dataclasses.replace(at, sequence_parallel=how))
            is wanted
        )

    def sizes(here: Placement) -> CallShape:
        q, k = jax.device_put((np.zeros((4, 8, 4, 2), np.float32), np.zeros((4, 16, 3, 2), np.float32)))
        with use_placement(here):
            return CallShape.from_arrays(q, k, k, attention_sharding(q, k))

    ring = sizes(placement((2, 1, 2, 2), EVERYTHING))
    gathered = sizes(placement((2, 1, 2, 2), EVERYTHING, GATHER))
    assert (ring.batch, ring.heads, ring.queries, ring.keys, ring.num_devices, ring.sequence_parallel) == (
        2,
        2,
        4,
        8,
        1,
        RING,
    )
    assert gathered == dataclasses.replace(ring, keys=16, sequence_parallel=GATHER)
    assert sizes(placement((1, 1, 1, 1), RULES["sp"])).sequence_parallel is None


@pytest.mark.parametrize("how", [RING, GATHER])
def test_positions_that_cannot_be_divided_evenly_are_whole(how: SequenceParallel) -> None:
    here = placement((1, 1, 1, 4), RULES["sp"], how)
    for spec in (AttentionSpec(), AttentionSpec(normalizer=Normalizer.SPARSEMAX)):
        for queries, keys in ((6, 8), (8, 10), (1, 7)):
            assert shaped(here, spec, queries, keys).shape == (2, queries, 2, 4)
