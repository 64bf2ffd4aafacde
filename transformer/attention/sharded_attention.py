"""Attention on a mesh: how a call is sharded, and softmax attention as a program that each device runs on its own part.

Sharded over examples and heads, devices need no communication. Sharded over positions, keys and values travel around
a ring (`ring_attention.py`) or are gathered. Each device captures its own rows, and small sums are added up.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from transformer.attention.attention_spec import Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    WeightRecomputeInputs,
    capture_if_enabled,
    compute_maps_blockwise,
    compute_statistics_blockwise,
    select_heads,
)
from transformer.attention.kernels import attend_with_kernel, find_softcap, log_sum_exp_with_kernel, splash_kernel
from transformer.attention.masks import mask_for_block
from transformer.attention.pytree_dataclass import field_axes
from transformer.attention.ring_attention import Ring, attend_in_ring
from transformer.logical_axes import SequenceParallel, current_placement


class AttentionSharding(NamedTuple):
    """How attention is sharded over a mesh. Each field lists mesh axes; none where every device has the whole.

    Attributes:
        mesh: The mesh.
        batch: Axes over which examples are sharded.
        heads: Axes over which query heads are sharded.
        groups: Axes over which key heads are sharded.
        length: Axes over which positions are sharded.
        sequence_attention: How a query reaches the keys on other devices, where positions are sharded.
    """

    mesh: Mesh
    batch: tuple[str, ...]
    heads: tuple[str, ...]
    groups: tuple[str, ...]
    length: tuple[str, ...]
    sequence_attention: SequenceParallel

    @property
    def sequence_parallel(self) -> SequenceParallel | None:
        """How keys on other devices are reached; None where every device has all positions."""
        return self.sequence_attention if self.length else None

    def num_shards(self, name: str) -> int:
        """The number of shards of "batch", "heads", "groups" or "length"."""
        return math.prod(self.mesh.shape[axis] for axis in getattr(self, name))

    def shard_index(self, name: str) -> Array:
        """The index of this device's shard, inside the sharded program."""
        axes = getattr(self, name)
        return jax.lax.axis_index(axes) if axes else jnp.int32(0)

    def partition_spec(self, *names: str | None) -> PartitionSpec:
        """The partition spec of an array whose dimensions are sharded as named; None for a dimension that is not.

        The first dimension also names the mesh axes of size 1: over an axis that no dimension names, gradients would be
        added up.
        """
        if not names:
            return PartitionSpec()
        axes = [() if name is None else getattr(self, name) for name in names]
        size_one_axes = tuple(axis for axis, size in self.mesh.shape.items() if size == 1)
        return PartitionSpec(
            (*axes[0], *size_one_axes) or None, *[dimension_axes or None for dimension_axes in axes[1:]]
        )

    def constrain(self, x: Array, *names: str | None) -> Array:
        """Constrain an array to this sharding."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.partition_spec(*names)))

    def shard_map[R](self, body: Callable[..., R], inputs: Any, outputs: Any) -> Callable[..., R]:
        """Make `body` a program that each device runs on its own shards of the inputs, by `jax.shard_map`.

        Args:
            body: The function.
            inputs: Partition specs of its arguments.
            outputs: Partition specs of its results.

        Returns:
            The function of whole arrays.
        """
        # Which values differ between devices is not tracked: kernels do not say it of theirs.
        return jax.shard_map(body, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def term_specs(self, terms: LogitTerms) -> list[PartitionSpec]:
        """The partition spec of each leaf of the terms, by its field's axes: sharded over queries, never over keys."""
        names = {"batch": "batch", "heads": "heads", "queries": "length"}
        return [
            self.partition_spec(
                *[names.get(axis or "") if size > 1 else None for axis, size in zip(axes, leaf.shape, strict=True)]
            )
            for axes, leaf in zip(field_axes(terms), jax.tree.leaves(terms), strict=True)
        ]

    def local_key_heads(self, x_BxKxGxD: Array, heads: int) -> Array:
        """Of unsharded key heads, take those that this device's query heads read.

        Args:
            x_BxKxGxD: Keys or values.
            heads: Number of query heads on all devices.

        Returns:
            The device's own key heads; neighboring query heads that read the same key head share it.
        """
        groups = x_BxKxGxD.shape[2]
        if not self.heads or self.groups:
            return x_BxKxGxD
        own, serves = heads // self.num_shards("heads"), heads // groups
        alike = math.gcd(own, serves)
        first = self.shard_index("heads") * own
        return jnp.take(x_BxKxGxD, (first + jnp.arange(0, own, alike)) // serves, axis=2)


def attention_sharding(q: Array, k: Array) -> AttentionSharding | None:
    """How the placement in context shards a call; None on a single device.

    What cannot be divided evenly stays whole on every device: too few examples, heads or key heads, and positions
    unless both queries and keys divide evenly, such as those of a prompt or of a decoding step.
    """
    placement = current_placement()
    if placement is None or placement.mesh.size == 1:
        return None
    (batch, queries, heads), (keys, groups) = q.shape[:3], k.shape[1:3]
    head_axes = placement.even_mesh_axes("heads", heads)
    group_axes = placement.even_mesh_axes("groups", groups) if placement.mesh_axes("groups") == head_axes else ()
    length = placement.even_mesh_axes("length", queries, keys)
    return AttentionSharding(
        placement.mesh,
        placement.even_mesh_axes("batch", batch),
        head_axes,
        group_axes,
        length,
        placement.sequence_attention,
    )


class ShardedProgram(NamedTuple):
    """The program that every device runs.

    Attributes:
        shards: How attention is sharded.
        scaling: Scale and temperature.
        backend: The backend.
        interpret: Whether to interpret the splash kernel, without a TPU.
        heads: Number of query heads on all devices.
    """

    shards: AttentionSharding
    scaling: LogitScaling
    backend: Backend
    interpret: bool
    heads: int


def attend_sharded(
    q: Array,
    k: Array,
    v: Array,
    terms: LogitTerms,
    program: ShardedProgram,
    capture: Capture | None,
    *,
    wants_log_sum: bool,
) -> tuple[Array, CapturedAttention | None, Array | None]:
    """Run `attend_with_kernel` on a mesh.

    Args:
        q: Queries, [B, Q, H, D].
        k: Keys, [B, K, G, D].
        v: Values, [B, K, G, Dv].
        terms: Mask, bias and position bias.
        program: The sharding, the backend and its settings.
        capture: Which maps and statistics to capture; None captures nothing.
        wants_log_sum: Whether to return the log-sum-exp, differentiable.

    Returns:
        The output, what was captured, and the log-sum-exp; None for each that was not requested.
    """
    shards, backend = program.shards, program.backend
    if terms.position is not None:
        terms = dataclasses.replace(terms, position=terms.position.for_sharded_heads(program.heads))
    leaves, tree = jax.tree.flatten(terms)
    q_spec, k_spec, row_spec = _input_specs(shards)
    inputs = (q_spec, k_spec, k_spec, shards.term_specs(terms))
    kernels, kernel_specs = _partition_kernel(q, k, terms, program)

    def attend(q: Array, k: Array, v: Array, leaves: list[Array], *kernels: Any) -> tuple[Array, ...]:
        k, v = (shards.local_key_heads(x, program.heads) for x in (k, v))
        terms = jax.tree.unflatten(tree, leaves)
        if shards.sequence_parallel is SequenceParallel.RING:
            return attend_in_ring(q, k, v, terms, program.scaling, _make_ring(q, k, terms, shards))
        k, v = (_gather_keys(x, shards) for x in (k, v))
        kernel = kernels[0] if kernels else None
        # A kernel in parts knows where its queries stand, and causal alone leaves each of them a key.
        kernel_knows_positions = kernel is not None and terms.mask.present_fields() <= {"causal"}
        local_terms = terms if kernel_knows_positions else _local_terms(terms, q, shards)
        results = attend_with_kernel(
            q, k, v, local_terms, program.scaling, backend, interpret=program.interpret, kernel=kernel
        )
        return tuple(x for x in results if x is not None)

    def recompute_log_sum(q: Array, k: Array, v: Array, leaves: list[Array], *, backend: Backend) -> Array:
        k, v = (_gather_keys(shards.local_key_heads(x, program.heads), shards) for x in (k, v))
        terms = _local_terms(jax.tree.unflatten(tree, leaves), q, shards)
        return log_sum_exp_with_kernel(q, k, v, terms, program.scaling, backend, interpret=program.interpret)

    returns_log_sum = backend is Backend.BLOCKWISE
    outputs = (q_spec, row_spec) if returns_log_sum else (q_spec,)
    output, *log_sum = shards.shard_map(attend, (*inputs, *kernel_specs), outputs)(q, k, v, leaves, *kernels)
    if wants_log_sum and not returns_log_sum:
        # In blocks: a kernel's own has no gradient.
        in_blocks = functools.partial(recompute_log_sum, backend=Backend.BLOCKWISE)
        log_sum = [shards.shard_map(in_blocks, inputs, row_spec)(q, k, v, leaves)]
    returned_log_sum = log_sum[0] if wants_log_sum else None
    if capture is None:
        return output, None, returned_log_sum
    q, k, v, leaves, log_sum = jax.lax.stop_gradient((q, k, v, leaves, log_sum))

    def compute_capture() -> CapturedAttention:
        again = functools.partial(recompute_log_sum, backend=Backend.BLOCKWISE if shards.length else backend)
        lse = log_sum[0] if log_sum else shards.shard_map(again, inputs, row_spec)(q, k, v, leaves)
        return _capture_sharded(
            q, k, jax.tree.unflatten(tree, leaves), lse, program, dataclasses.replace(capture, observe=None)
        )

    return output, capture_if_enabled(capture, compute_capture), returned_log_sum


def _capture_sharded(
    q: Array, k: Array, terms: LogitTerms, log_sum: Array, program: ShardedProgram, capture: Capture
) -> CapturedAttention:
    """Statistics of each device's own rows, added up; maps by the devices that have their examples and heads."""
    shards = program.shards
    leaves, tree = jax.tree.flatten(terms)

    def products(
        sharding: AttentionSharding, q: Array, k: Array, leaves: list[Array], log_sum: Array
    ) -> WeightRecomputeInputs:
        k = _gather_keys(sharding.local_key_heads(k, program.heads), sharding)
        terms = _local_terms(jax.tree.unflatten(tree, leaves), q, sharding)
        return WeightRecomputeInputs(
            q, k, terms, program.scaling, log_sum, first_example=sharding.shard_index("batch") * len(q)
        )

    def statistics(*parts: Any) -> tuple[dict, dict]:
        sums = compute_statistics_blockwise(products(shards, *parts), capture)
        over = shards.length if capture.by_example else shards.batch + shards.length
        return jax.lax.psum(sums, over) if over else sums

    def maps(*parts: Any) -> tuple:
        # Which heads are wanted is asked of all of them, which no device has.
        return compute_maps_blockwise(products(unsharded_length, *parts), dataclasses.replace(capture, heads=None))

    def run(sharding: AttentionSharding, body: Any, output: PartitionSpec) -> Any:
        q_spec, k_spec, row_spec = _input_specs(sharding)
        inputs = (q_spec, k_spec, sharding.term_specs(terms), row_spec)
        return sharding.shard_map(body, inputs, output)(q, k, leaves, log_sum)

    # The few examples that are mapped are not worth a program for rows on one device and their pools on another.
    unsharded_length = shards._replace(length=())
    statistics_spec = shards.partition_spec("batch", "heads") if capture.by_example else shards.partition_spec("heads")
    sums, counts = run(shards, statistics, statistics_spec)
    every_head = (
        run(unsharded_length, maps, unsharded_length.partition_spec("batch", "heads"))
        if capture.maps
        else (None, None, None)
    )
    weights, pooled, top = jax.tree.map(lambda x: select_heads(x, capture), every_head)
    return CapturedAttention(weights, sums, counts, pooled, top)


def _input_specs(shards: AttentionSharding) -> tuple[PartitionSpec, PartitionSpec, PartitionSpec]:
    """The partition specs of queries, of keys and values, and of one number per row."""
    q_spec, k_spec = (shards.partition_spec("batch", "length", heads, None) for heads in ("heads", "groups"))
    return q_spec, k_spec, shards.partition_spec("batch", "heads", "length")


def _gather_keys(x_BxKxGxD: Array, shards: AttentionSharding) -> Array:
    """The keys of all devices over which positions are sharded; the gradient is a reduce-scatter."""
    return jax.lax.all_gather(x_BxKxGxD, shards.length, axis=1, tiled=True) if shards.length else x_BxKxGxD


def _make_ring(q: Array, k: Array, terms: LogitTerms, shards: AttentionSharding) -> Ring:
    """The ring for a device's own queries and keys, balanced where attention is causal from the first position on.

    Behind a prefix early queries see late keys, which two chunks leave out.
    """
    mask, length = terms.mask, q.shape[1]
    from_the_first = mask.causal and mask.query_offset is None and mask.prefix is None
    even = from_the_first and length == k.shape[1] and length % 2 == 0
    return Ring(shards.length, shards.num_shards("length"), num_chunks=2 if even else 1)


def _local_terms(terms: LogitTerms, q: Array, shards: AttentionSharding) -> LogitTerms:
    """The terms of a device's own queries and all keys."""
    if not shards.length:
        return terms
    start = shards.shard_index("length") * q.shape[1]
    return dataclasses.replace(terms, mask=mask_for_block(terms.mask, len(q), start, 0))


def _partition_kernel(q: Array, k: Array, terms: LogitTerms, program: ShardedProgram) -> tuple[tuple, tuple]:
    """Splash's kernel and its partition specs where positions are sharded; else nothing.

    Nothing either where positions hide no key: then every device builds the same kernel itself.
    """
    shards, mask = program.shards, terms.mask
    if program.backend is not Backend.SPLASH or not shards.length or not (mask.causal or mask.window is not None):
        return (), ()
    heads = program.heads // shards.num_shards("heads")
    kernel = splash_kernel(
        mask,
        q.shape[1],
        k.shape[1],
        heads,
        softcap=find_softcap(terms, program.scaling),
        interpret=program.interpret,
        parts=shards.num_shards("length"),
    )
    return (kernel,), (kernel.manual_sharding_spec(NamedSharding(shards.mesh, shards.partition_spec(None, "length"))),)
