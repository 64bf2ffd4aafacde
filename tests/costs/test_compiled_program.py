"""What compiled programs need, against counts by hand: of programs compiled here, and of texts as a TPU has them."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.costs.small_decoder import Training, training
from transformer.costs.compiled_program import (
    CollectiveTotal,
    CompiledProgram,
    analyze_program,
    argument_bytes,
    collective_totals,
    fingerprint,
)
from transformer.costs.hlo_execution import (
    ExecutedCollective,
    bytes_moved,
    executed_collectives,
    executed_instructions,
    loops_without_trip_count,
)
from transformer.costs.hlo_parser import HloModule, parse_hlo
from transformer.models.decoder import DecoderConfig
from transformer.training.partitioning import ShardingConfig

P = PartitionSpec


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> jax.stages.Compiled:
    return jax.jit(function).lower(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).compile()


def each_device(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a device's own rows."""
    rows = P(("data", "tensor"))
    return jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)


def test_a_sum_in_a_loop_of_five_in_a_loop_of_three_counts_fifteen_times(mesh: Mesh) -> None:
    def sums(x: jax.Array) -> jax.Array:
        inner = lambda carry, _: (jnp.sin(jax.lax.psum(carry, "data")), None)  # noqa: E731
        outer = lambda carry, _: (jnp.cos(jax.lax.scan(inner, carry, length=5)[0]), None)  # noqa: E731
        return jax.lax.scan(outer, x, length=3)[0]

    (found,) = analyze_program(compiled(each_device(mesh, sums), (8, 6)), mesh).collectives
    # One row of six numbers on every device.
    assert (found.kind, found.num_bytes, found.num_participants, found.mesh_axes, found.num_executions) == (
        "all-reduce",
        6 * 4,
        4,
        ("data",),
        15,
    )
    assert found.device_group == (0, 2, 4, 6)
    assert "psum" in found.source


def scatter(x: jax.Array) -> jax.Array:
    return jnp.tile(jax.lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True), 2)


def rotate(x: jax.Array) -> jax.Array:
    return jax.lax.ppermute(x, "data", [(place, (place + 1) % 4) for place in range(4)])


@pytest.mark.parametrize(
    ("function", "kind", "size", "participants", "axes"),
    [
        # A device has 3 x 6 numbers of 4 bytes; gathered over `tensor` it has two of these.
        (lambda x: jax.lax.all_gather(x, "tensor", tiled=True)[:3], "all-gather", 144, 2, ("tensor",)),
        (lambda x: jax.lax.all_gather(x, ("data", "tensor"))[0], "all-gather", 576, 8, ("data", "tensor")),
        (scatter, "reduce-scatter", 72, 2, ("tensor",)),
        (lambda x: jax.lax.all_to_all(x, "tensor", 1, 1, tiled=True), "all-to-all", 72, 2, ("tensor",)),
        (lambda x: jax.lax.psum(x, ("data", "tensor")), "all-reduce", 72, 8, ("data", "tensor")),
        (rotate, "collective-permute", 72, 4, ("data",)),
    ],
)  # fmt: skip
def test_bytes_and_devices_of_each_kind(
    mesh: Mesh, function: Callable[..., Any], kind: str, size: int, participants: int, axes: tuple[str, ...]
) -> None:
    (found,) = analyze_program(compiled(each_device(mesh, function), (24, 6)), mesh).collectives
    assert (found.kind, found.num_bytes, found.num_participants, found.mesh_axes, found.num_executions) == (
        kind,
        size,
        participants,
        axes,
        1,
    )


def test_collectives_of_one_kind_and_axes_add_up(mesh: Mesh) -> None:
    def several(x: jax.Array) -> jax.Array:
        x = jax.lax.scan(lambda carry, _: (jnp.sin(jax.lax.psum(carry, "data")), None), x, length=7)[0]
        return jax.lax.psum(jnp.cos(jax.lax.psum(jnp.exp(x), "data")), "tensor")

    found = collective_totals(analyze_program(compiled(each_device(mesh, several), (24, 6)), mesh).collectives)
    assert found == {
        ("all-reduce", ("data",)): CollectiveTotal(8, 8 * 72),
        ("all-reduce", ("tensor",)): CollectiveTotal(1, 72),
    }
    assert list(found) == [("all-reduce", ("data",)), ("all-reduce", ("tensor",))]


def test_of_two_branches_the_dearer_counts(mesh: Mesh) -> None:
    def chosen(x: jax.Array) -> jax.Array:
        dear = lambda x: jax.lax.scan(lambda carry, _: (jax.lax.psum(carry, "data") / 3, None), x, length=6)[0]  # noqa: E731
        return jax.lax.cond(x[0, 0] > 0, lambda x: jax.lax.psum(x, "tensor"), dear, x)

    (found,) = analyze_program(compiled(each_device(mesh, chosen), (24, 6)), mesh).collectives
    assert (found.mesh_axes, found.num_executions) == (("data",), 6)


def test_a_loop_without_an_end_in_sight_counts_once_and_is_named(mesh: Mesh) -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: jax.lax.psum(x, "data"), x)

    program = analyze_program(compiled(each_device(mesh, until), (24, 6)), mesh)
    assert [each.num_executions for each in program.collectives] == [1]
    assert len(program.loops_without_trip_count) == 1
    assert "while" in program.loops_without_trip_count[0]


def without_trip_counts(text: str) -> str:
    """A program's text as the compiler of TPUs writes it, which says of no loop how often it turns."""
    return re.sub(r',?"known_trip_count":\{"n":"\d+"\}', "", text)


@pytest.mark.parametrize(
    ("start", "step", "before", "turns"),
    [
        (0, 1, lambda at: at < 7, 7),
        (0, 2, lambda at: at < 8, 4),
        (0, 2, lambda at: at < 7, 4),
        (3, 5, lambda at: at <= 18, 4),
        (3, 5, lambda at: jnp.greater(18, at), 3),
        (20, -3, lambda at: at > 2, 6),
        (20, -3, lambda at: at >= 2, 7),
        (4, 2, lambda at: at != 14, 5),
        (-4, 1, lambda at: at + 2 < 3, 5),
    ],
)  # fmt: skip
def test_a_loop_turns_as_often_as_its_counter_says(
    start: int, step: int, before: Callable[[Any], Any], turns: int
) -> None:
    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loop = (jnp.int32(start), jnp.int32(0), x)
        advance = lambda loop: (loop[0] + step, loop[1] + 1, jnp.sin(loop[2]))  # noqa: E731
        return jax.lax.while_loop(lambda loop: before(loop[0]), advance, loop)[1:]

    made = compiled(function, (3, 3))
    assert int(made(jnp.eye(3))[0]) == turns
    module = parse_hlo(without_trip_counts(made.as_text() or ""))
    assert {run.num_executions for run in executed_instructions(module)} == {1, turns}
    assert loops_without_trip_count(module) == ()


@pytest.mark.parametrize("unknown", ["start", "step", "bound"])
def test_a_loop_whose_counter_depends_on_data_is_named(unknown: str) -> None:
    def function(x: jax.Array) -> jax.Array:
        start, step, bound = (jnp.int32(x[0, 0]) if name == unknown else 2 for name in ("start", "step", "bound"))
        advance = lambda loop: (loop[0] + step, jnp.sin(loop[1]))  # noqa: E731
        return jax.lax.while_loop(lambda loop: loop[0] < bound + 9, advance, (jnp.int32(start), x))[1]

    module = parse_hlo(without_trip_counts(compiled(function, (3, 3)).as_text() or ""))
    assert {run.num_executions for run in executed_instructions(module)} == {1}
    assert len(loops_without_trip_count(module)) == 1


def test_bytes_through_memory_of_one_product(mesh: Mesh) -> None:
    program = analyze_program(compiled(lambda x, y: x @ y, (30, 50), (50, 70)), mesh)
    assert program.bytes_moved == 4 * (30 * 50 + 50 * 70 + 30 * 70)
    assert program.argument_bytes == 4 * (30 * 50 + 50 * 70)
    assert program.output_bytes == 4 * 30 * 70
    assert program.aliased_bytes == 0


def test_the_peak_counts_once_what_arguments_and_outputs_share() -> None:
    assert CompiledProgram(100, 40, 30, 7, 5, 0, (), (), (), "").peak_bytes == 100 + (40 - 30) + 7 + 5


DECODER = DecoderConfig(layers=2, width=16, heads=2, feed_forward=32, max_length=8)
SHARDING = ShardingConfig(fsdp=2, tensor=2, data=1, rules="fsdp+tp")


@functools.cache
def trained(layers: int) -> tuple[Training, CompiledProgram]:
    config = dataclasses.replace(DECODER, layers=layers)
    made = training(config, SHARDING, jax.devices()[:4], rows=4)
    return made, analyze_program(made.lowered().compile(), made.placement.mesh)


def test_arguments_are_parameters_optimizer_and_batch() -> None:
    made, program = trained(2)
    state = made.state
    split = argument_bytes(
        {
            "parameters": state.variables,
            "optimizer": state.optimizers,
            "rest": (state.step, state.key, state.averages, state.task_state, state.hyperparameters),
            "batch": made.batch,
        }
    )
    assert sum(split.values()) == program.argument_bytes
    # The new state takes the place of the old.
    assert program.aliased_bytes == program.argument_bytes - split["batch"]
    # A device has 2 of 4 rows of 8 tokens and as many labels.
    assert split["batch"] == 2 * (2 * 8) * 4
    # Two moments of every parameter, and the count of steps.
    assert 2 * split["parameters"] <= split["optimizer"] <= 2 * split["parameters"] + 16
    # A step, a key of two numbers, and Adam's five: rate, warm-up, two betas, epsilon.
    assert split["rest"] == 4 + 8 + 5 * 4


def test_bytes_of_a_divided_array_are_its_shards() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])
    divided = jax.ShapeDtypeStruct((8, 6), jnp.bfloat16, sharding=NamedSharding(mesh, P("data", "tensor")))
    whole = jax.ShapeDtypeStruct((8, 6), jnp.float32, sharding=NamedSharding(mesh, P()))
    assert argument_bytes({"a": {"x": divided, "y": whole}, "b": jax.ShapeDtypeStruct((3,), jnp.int8)}) == {
        "a": 2 * 3 * 2 + 8 * 6 * 4,
        "b": 3,
    }


@pytest.mark.slow
def test_twice_the_layers_have_twice_the_layers_share_of_everything() -> None:
    """Cost = rest + layers x one layer, so that from 4 to 8 layers it grows twice as much as from 2 to 4."""
    (two, two_program), (four, four_program), (eight, eight_program) = trained(2), trained(4), trained(8)
    assert eight.flops - four.flops == 2 * (four.flops - two.flops) > 0
    more, much_more = (
        four_program.bytes_moved - two_program.bytes_moved,
        eight_program.bytes_moved - four_program.bytes_moved,
    )
    assert more > 0
    assert much_more == pytest.approx(2 * more, rel=0.02)
    counts = [collective_totals(each.collectives) for each in (two_program, four_program, eight_program)]
    assert counts[0].keys() == counts[1].keys() == counts[2].keys()
    layers = {key for key in counts[0] if counts[1][key].num_executions > counts[0][key].num_executions}
    assert {axes for _, axes in layers} >= {("fsdp",), ("tensor",)}
    for key in counts[0]:
        for field in CollectiveTotal._fields:
            first, second, third = (getattr(count[key], field) for count in counts)
            assert third - second == 2 * (second - first) >= 0, (key, field)


def test_the_largest_buffers_say_where_they_are_from() -> None:
    """The activations of every layer that the backward pass needs are the largest: 2 layers, 2 rows, 8 positions."""
    _, program = trained(2)
    sizes = [buffer.num_bytes for buffer in program.largest_buffers]
    assert sizes == sorted(sizes, reverse=True)
    stacked = [buffer for buffer in program.largest_buffers if buffer.shape == "f32[2,2,8,16]"]
    assert stacked
    assert stacked[0].num_bytes == 2 * 2 * 8 * 16 * 4
    assert "while/body" in stacked[0].source


def test_equal_programs_have_equal_fingerprints() -> None:
    def first(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.sin(carry @ carry), None), x, length=3)[0]

    def the_same_further_down(other: jax.Array) -> jax.Array:
        # Another name, another argument's name, other lines.
        step = lambda state, _: (jnp.sin(state @ state), None)  # noqa: E731
        return jax.lax.scan(step, other, length=3)[0]

    def longer(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.sin(carry @ carry), None), x, length=4)[0]

    def otherwise(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.cos(carry @ carry), None), x, length=3)[0]

    prints = [
        fingerprint(compiled(function, (size, size)).as_text() or "")
        for function, size in [(first, 6), (the_same_further_down, 6), (longer, 6), (otherwise, 6), (first, 7)]
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4
    assert len(prints[0]) == 64


def test_axes_of_one_device_change_no_fingerprint() -> None:
    def summed(**sizes: int) -> str:
        types = (AxisType.Auto,) * len(sizes)
        on = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=jax.devices()[:8])
        x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(on, P("data", "tensor")))
        text = jax.jit(lambda x: jnp.sum(x, axis=0)).lower(x).compile().as_text() or ""
        assert "mesh[" in text
        return fingerprint(text)

    plain = summed(data=4, tensor=2)
    assert summed(data=4, expert=1, tensor=2) == summed(data=4, tensor=2, sequence=1) == plain
    assert summed(data=2, tensor=4) != plain
    assert summed(data=2, expert=2, tensor=2) != plain


# As TPUs' compiler fuses collectives with what runs beside them: one fusion starts, one goes on, one ends.
FUSED = """HloModule jit_f, is_scheduled=true, num_partitions=4

%start (a: bf16[8,128]) -> (bf16[8,128], bf16[16,128], u32[]) {
  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %gather.1 = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather(%a), channel_id=7, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %begun = (bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[16,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%meanwhile (b: bf16[8,128], c: bf16[16,128], d: f32[256,128]) -> (f32[256,128], bf16[8,128], bf16[16,128]) {
  %d = f32[256,128]{1,0:T(8,128)} parameter(2)
  %work = f32[256,128]{1,0:T(8,128)} negate(%d)
  %b = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %c = bf16[16,128]{1,0:T(8,128)(2,1)} parameter(1)
  %gather.2 = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather(%b), channel_id=7, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %parts = (f32[256,128]{1,0:T(8,128)}, bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[16,128]{1,0:T(8,128)(2,1)}) tuple(%work, %b, %c)
}

%end (e: bf16[8,128], f: bf16[16,128]) -> bf16[16,128] {
  %e = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %f = bf16[16,128]{1,0:T(8,128)(2,1)} parameter(1)
  %gather.3 = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather(%e), channel_id=7, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %done = bf16[16,128]{1,0:T(8,128)(2,1)} custom-call(%e, %f, %gather.3), custom_call_target="AsyncCollectiveDone"
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (g: f32[256,128]) -> f32[128,128] {
  %g = f32[256,128]{1,0:T(8,128)} parameter(0)
  %whole = f32[256,128]{1,0:T(8,128)} all-reduce(%g), channel_id=9, replica_groups={{0,2},{1,3}}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %part = f32[128,128]{1,0:T(8,128)} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={128,128}
}

%body (loop: (s32[], bf16[8,128], f32[256,128])) -> (s32[], bf16[8,128], f32[256,128]) {
  %loop = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}, f32[256,128]{1,0:T(8,128)}) parameter(0)
  %at = s32[] get-tuple-element(%loop), index=0
  %small = bf16[8,128]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
  %large = f32[256,128]{1,0:T(8,128)} get-tuple-element(%loop), index=2
  %begin = (bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[16,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) fusion(%small), kind=kCustom, calls=%start
  %begun.0 = bf16[8,128]{1,0:T(8,128)(2,1)} get-tuple-element(%begin), index=0
  %begun.1 = bf16[16,128]{1,0:T(8,128)(2,1)} get-tuple-element(%begin), index=1
  %during = (f32[256,128]{1,0:T(8,128)}, bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[16,128]{1,0:T(8,128)(2,1)}) fusion(%begun.0, %begun.1, %large), kind=kCustom, calls=%meanwhile
  %worked = f32[256,128]{1,0:T(8,128)} get-tuple-element(%during), index=0
  %gathered = bf16[16,128]{1,0:T(8,128)(2,1)} fusion(%begun.0, %begun.1), kind=kCustom, calls=%end
  %scattered = f32[128,128]{1,0:T(8,128)S(1)} fusion(%worked), kind=kCustom, calls=%all-reduce-scatter.1
  %sent = (bf16[8,128]{1,0:T(8,128)(2,1)}, bf16[8,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) collective-permute-start(%small), channel_id=11, source_target_pairs={{0,1},{1,0},{2,2},{3,3}}
  %received = bf16[8,128]{1,0:T(8,128)(2,1)} collective-permute-done(%sent)
  %one = s32[] constant(1)
  %next = s32[] add(%at, %one)
  ROOT %again = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}, f32[256,128]{1,0:T(8,128)}) tuple(%next, %received, %worked)
}

%before (loop.1: (s32[], bf16[8,128], f32[256,128])) -> pred[] {
  %loop.1 = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}, f32[256,128]{1,0:T(8,128)}) parameter(0)
  %at.1 = s32[] get-tuple-element(%loop.1), index=0
  %last = s32[] constant(14)
  ROOT %less = pred[] compare(%at.1, %last), direction=LT
}

ENTRY %main (u: bf16[8,128], v: f32[256,128]) -> f32[256,128] {
  %u = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %v = f32[256,128]{1,0:T(8,128)} parameter(1)
  %first = s32[] constant(4)
  %first.1 = s32[] copy(%first)
  %carried = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}, f32[256,128]{1,0:T(8,128)}) tuple(%first.1, %u, %v)
  %turns = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}, f32[256,128]{1,0:T(8,128)}) while(%carried), condition=%before, body=%body
  ROOT %out = f32[256,128]{1,0:T(8,128)} get-tuple-element(%turns), index=2
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def fused() -> HloModule:
    return parse_hlo(FUSED)


def test_a_fused_collective_counts_once_and_a_start_with_its_end(fused: HloModule) -> None:
    """From 4 to 14 the loop turns 10 times."""
    assert list(executed_collectives(fused)) == [
        ExecutedCollective("all-gather", 2 * 8 * 128 * 2, ((0, 1), (2, 3)), 10, True, ""),
        ExecutedCollective("reduce-scatter", 256 * 128 * 4, ((0, 2), (1, 3)), 10, False, ""),
        # Nothing is scheduled between its start and its end.
        ExecutedCollective("collective-permute", 8 * 128 * 2, ((0, 1), (1, 0)), 10, False, ""),
    ]
    assert loops_without_trip_count(fused) == ()


def test_a_loop_that_takes_two_shards_a_turn_turns_half_as_often(fused: HloModule) -> None:
    """XLA's windowed einsums: a shard is multiplied while the next two travel."""
    by_two = parse_hlo(FUSED.replace("%one = s32[] constant(1)", "%one = s32[] constant(2)"))
    assert [each.num_executions for each in executed_collectives(by_two)] == [5, 5, 5]


def test_bytes_through_memory_of_fused_collectives(fused: HloModule) -> None:
    found = {run.instruction.name: bytes_moved(fused, run) for run in executed_instructions(fused)}
    small, large = 8 * 128 * 2, 256 * 128 * 4
    # What starts reads its operand and writes the result; what goes on moves its other work; what ends, nothing.
    assert [found[name] for name in ("begin", "during", "gathered")] == [3 * small, 2 * large, 0]
    # Its result lies in the fast memory.
    assert found["scattered"] == large
    assert [found[name] for name in ("sent", "received")] == [0, 2 * small]
    assert found["turns"] == found["worked"] == 0


IN_PLACE = """HloModule jit_f, is_scheduled=true, num_partitions=1

%slicing (a: f32[10,64], b: s32[]) -> f32[1,64] {
  %a = f32[10,64]{1,0} parameter(0)
  %b = s32[] parameter(1)
  %nil = s32[] constant(0)
  %row = f32[1,64]{1,0} dynamic-slice(%a, %b, %nil), dynamic_slice_sizes={1,64}
  ROOT %sine = f32[1,64]{1,0} sine(%row)
}

%widening (f: bf16[10,64], g: s32[], h: bf16[10,64]) -> (f32[1,64], f32[10,64]) {
  %f = bf16[10,64]{1,0} parameter(0)
  %g = s32[] parameter(1)
  %h = bf16[10,64]{1,0} parameter(2)
  %none = s32[] constant(0)
  %wide = f32[10,64]{1,0} convert(%f)
  %taken = f32[1,64]{1,0} dynamic-slice(%wide, %g, %none), dynamic_slice_sizes={1,64}
  %all = f32[10,64]{1,0} convert(%h)
  ROOT %two = (f32[1,64]{1,0}, f32[10,64]{1,0}) tuple(%taken, %all)
}

%updating (c: f32[10,64], d: f32[64], e: s32[]) -> (f32[10,64], f32[64]) {
  %c = f32[10,64]{1,0} parameter(0)
  %d = f32[64]{0} parameter(1)
  %flat = f32[1,64]{1,0} bitcast(%d)
  %e = s32[] parameter(2)
  %nought = s32[] constant(0)
  %placed = f32[10,64]{1,0} dynamic-update-slice(%c, %flat, %e, %nought)
  %minus = f32[64]{0} negate(%d)
  ROOT %pair = (f32[10,64]{1,0}, f32[64]{0}) tuple(%placed, %minus)
}

ENTRY %main (x: f32[10,64], y: f32[64], z: s32[], w: bf16[10,64]) -> (f32[10,64], f32[64]) {
  %x = f32[10,64]{1,0} parameter(0)
  %y = f32[64]{0} parameter(1)
  %z = s32[] parameter(2)
  %w = bf16[10,64]{1,0} parameter(3)
  %widened = (f32[1,64]{1,0}, f32[10,64]{1,0}) fusion(%w, %z, %w), kind=kLoop, calls=%widening
  %sliced = f32[1,64]{1,0} fusion(%x, %z), kind=kLoop, calls=%slicing
  %seen = f32[1,64]{1,0} dynamic-slice(%x, %z, %z), dynamic_slice_sizes={1,64}
  %aside = (f32[10,64]{1,0:S(1)}, f32[10,64]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %copied = f32[10,64]{1,0:S(1)} copy-done(%aside)
  ROOT %updated = (f32[10,64]{1,0}, f32[64]{0}) fusion(%x, %y, %z), kind=kLoop, calls=%updating
}
"""


def test_of_slices_only_the_slice_is_moved() -> None:
    module = parse_hlo(IN_PLACE)
    found = {run.instruction.name: bytes_moved(module, run) for run in executed_instructions(module)}
    row, index = 64 * 4, 4
    assert found["sliced"] == row + index + row
    assert found["seen"] == 2 * row + 2 * index
    # A row is read in its own type and written in the other; the whole array twice.
    assert found["widened"] == row // 2 + index + 10 * row // 2 + row + 10 * row
    # The row is read for both, written into its place, and written again negated.
    assert found["updated"] == row + index + row + row
    # To the fast memory: read once from the main one.
    assert (found["aside"], found["copied"]) == (0, 10 * row)
