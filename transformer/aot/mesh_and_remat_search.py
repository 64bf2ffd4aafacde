"""Suggestions for making a step fit into memory, and a search over meshes and rematerialization policies."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from transformer.aot.aot_compile import AotReport, compile_ahead_of_time
from transformer.config import UserError
from transformer.costs.chips import TPU_CHIPS, find_chip
from transformer.costs.compiled_program import argument_bytes
from transformer.costs.topologies import topology_devices
from transformer.layers.transformer_config import Remat, TransformerConfig
from transformer.models.model import leaves_by_path
from transformer.tasks.synthetic_data import abstract_batch
from transformer.training.build import build_components, flops_counter
from transformer.training.config import ExperimentConfig
from transformer.training.partitioning import ShardingConfig, is_axis_names, make_placement

# The share of the memory for what the formulas leave out: temporaries of the update, the program itself.
_RESERVED_SHARE = 0.1
# The policies in the order of the activations that they keep, the most first.
_POLICIES = (Remat.NONE, Remat.DOTS, Remat.ATTENTION, Remat.FULL)
# A step's operations by policy, relative to no rematerialization: full computes the forward pass twice.
_RECOMPUTE_FACTORS = {Remat.NONE: 1.0, Remat.DOTS: 1.0, Remat.ATTENTION: 4 / 3, Remat.FULL: 4 / 3}
_MAX_TENSOR = 16


class Suggestion(NamedTuple):
    """A way to make a step smaller.

    Attributes:
        flags: The flags to add.
        reason: Why they would help.
    """

    flags: tuple[str, ...]
    reason: str


def suggest_smaller_step(report: AotReport) -> list[Suggestion]:
    """Suggest flags that make a step fit into memory, from what its bytes are used for; the cheapest first."""
    if report.device_memory_bytes is None or report.fits:
        return []
    room = (1 - _RESERVED_SHARE) * report.device_memory_bytes
    state = sum(size for kind, size in report.resident_bytes.items() if kind != "batch")
    # Gradients are as large as the parameters, and live beside them while the update is computed.
    fixed = state + report.resident_bytes["parameters"]
    if fixed > room:
        return list(_suggest_smaller_state(report, fixed, room))
    needed = report.peak_bytes if report.peak_bytes is not None else 2 * report.device_memory_bytes
    return list(_suggest_smaller_activations(report, max((needed - fixed) / (room - fixed), 1.0)))


def _suggest_smaller_state(report: AotReport, fixed: int, room: float) -> Iterator[Suggestion]:
    # Devices along the axes of positions or experts hold the same other parameters.
    num_replicas = report.mesh_shape["sequence"] * report.mesh_shape["expert"]
    devices, divided = (
        math.prod(report.mesh_shape.values()) // num_replicas,
        report.mesh_shape["fsdp"] * report.mesh_shape["tensor"],
    )
    total_bytes, sharding = fixed * divided, report.experiment.sharding
    gigabytes = f"parameters, gradients and optimizer are {fixed / 1e9:,.1f} GB per device"
    if divided < devices:
        tensor_flag = f"--config.sharding.tensor={sharding.tensor}"
        rules = _sharding_rules(devices, report.mesh_shape["tensor"], report.mesh_shape["sequence"])
        after = f"sharded over {devices} devices they would be {total_bytes / devices / 1e9:,.1f} GB"
        yield Suggestion(
            ("--config.sharding.data=1", "--config.sharding.fsdp=-1", tensor_flag, f"--config.sharding.rules={rules}"),
            f"{gigabytes}; {after}",
        )
    if total_bytes / devices > room:
        min_devices = math.ceil(total_bytes / room) * num_replicas
        yield Suggestion(
            (), f"{gigabytes}, however they are sharded: take a topology of at least {min_devices} devices"
        )


def _suggest_smaller_activations(report: AotReport, factor: float) -> Iterator[Suggestion]:
    run, model = report.experiment.run, report.experiment.model
    parts = report.mesh_shape["data"] * report.mesh_shape["fsdp"] * report.mesh_shape["expert"]
    rows = report.batch_size // (parts * run.num_microbatches)
    large = f"activations and temporaries must be {factor:.1f} times smaller"
    remat = getattr(model, "remat", None)
    if remat in _POLICIES[:-1]:
        lighter = _POLICIES[_POLICIES.index(remat) + 1] if factor < 2 else Remat.FULL
        yield Suggestion((f"--config.model.remat={lighter.value}",), f"{large}; remat={remat.value} keeps more of them")
    times = next((n for n in range(math.ceil(factor), rows + 1) if rows % n == 0), rows)
    if times > 1:
        more = f"a microbatch would have {rows // times} rows per device instead of {rows}"
        yield Suggestion((f"--config.num_microbatches={run.num_microbatches * times}",), f"{large}; {more}")
    if rows == 1 and remat in (None, Remat.FULL):
        yield Suggestion(
            _row_sharding_flags(report),
            f"{large}, and one row per device cannot be split: shard it over more devices, or take a topology "
            "with more memory per device",
        )


def _row_sharding_flags(report: AotReport) -> tuple[str, ...]:
    """Return flags that shard each row over twice as many devices; none if the mesh has no devices to spare.

    Without twice the microbatches every device would have two half rows instead of one row.
    """
    axis = "sequence" if report.mesh_shape["sequence"] > 1 else "tensor"
    giver = next((name for name in ("data", "fsdp") if report.mesh_shape[name] % 2 == 0), None)
    heads = getattr(report.experiment.model, "heads", 1)
    if giver is None or (axis == "tensor" and heads % (2 * report.mesh_shape["tensor"])):
        return ()
    sizes = {**report.mesh_shape, giver: report.mesh_shape[giver] // 2, axis: report.mesh_shape[axis] * 2}
    return (
        f"--config.sharding.rules={_sharding_rules(sizes['fsdp'], sizes['tensor'], sizes['sequence'])}",
        *(f"--config.sharding.{name}={sizes[name]}" for name in ("data", "fsdp", axis)),
        f"--config.num_microbatches={report.experiment.run.num_microbatches * 2}",
    )


class Candidate(NamedTuple):
    """A mesh and a rematerialization policy to try.

    Attributes:
        sharding: The mesh with its rules.
        remat: The rematerialization policy.
        step_seconds: The estimated seconds of a step.
    """

    sharding: ShardingConfig
    remat: Remat
    step_seconds: float

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that select this candidate."""
        sharding = dataclasses.asdict(self.sharding)
        return (
            *(f"--config.sharding.{name}={sharding[name]}" for name in ("rules", "data", "fsdp", "tensor")),
            f"--config.model.remat={self.remat.value}",
        )

    def apply_to(self, experiment: ExperimentConfig) -> ExperimentConfig:
        """Return the experiment with this mesh and policy."""
        return dataclasses.replace(
            experiment, sharding=self.sharding, model=dataclasses.replace(experiment.model, remat=self.remat)
        )


class CompiledCandidate(NamedTuple):
    """A candidate that was compiled, and its report."""

    candidate: Candidate
    report: AotReport


def search_meshes(experiment: ExperimentConfig, topology: str, max_candidates: int) -> Iterator[CompiledCandidate]:
    """Compile the most promising meshes and policies, in the order of their estimated step time.

    A mesh that fits is not compiled again with a policy that saves less; one that does not fit is tried with it next.

    Args:
        experiment: The experiment.
        topology: The name of the topology.
        max_candidates: How many to compile at most.

    Yields:
        Each compiled candidate with its report.

    Raises:
        UserError: If the topology does not exist, if the model is not a Transformer, or if no candidate fits by the
            estimate.
    """
    waiting = fitting_candidates(experiment, topology)
    if not waiting:
        raise UserError(
            f"no mesh of topology={topology} fits config.name={experiment.run.name} by the estimate: take a larger "
            "topology, or raise config.num_microbatches"
        )
    settled: set[ShardingConfig] = set()
    for candidate in waiting:
        if max_candidates == 0:
            return
        if candidate.sharding in settled:
            continue
        try:
            report = compile_ahead_of_time(candidate.apply_to(experiment), topology)
        except UserError:
            settled.add(candidate.sharding)  # the task or the model cannot be sharded so
            continue
        max_candidates -= 1
        if report.fits:
            settled.add(candidate.sharding)
        yield CompiledCandidate(candidate, report)


def fitting_candidates(experiment: ExperimentConfig, topology: str) -> list[Candidate]:
    """Return the meshes and policies whose state and saved activations fit by the estimate, the fastest first.

    Topologies without published figures are ordered as if of TPU v5e.

    Args:
        experiment: The experiment.
        topology: The name of the topology.

    Returns:
        The candidates.

    Raises:
        UserError: If the topology does not exist, or if the model is not a Transformer.
    """
    if not isinstance(experiment.model, TransformerConfig):
        raise UserError("--search_mesh supports Transformer models only: set config.sharding by hand")
    devices = topology_devices(topology)
    chip = find_chip(devices[0])
    memory = math.inf if chip is None else (1 - _RESERVED_SHARE) * chip.memory_bytes
    formulas = _StepFormulas.of(experiment, devices)
    fitting = []
    for sharding in possible_meshes(experiment, len(devices)):
        for remat in _POLICIES:
            if formulas.min_bytes(sharding, remat) <= memory:
                fitting.append(Candidate(sharding, remat, formulas.seconds(sharding, remat)))
    # At equal times the policy that keeps most comes first.
    return sorted(fitting, key=lambda candidate: (candidate.step_seconds, _POLICIES.index(candidate.remat)))


def possible_meshes(experiment: ExperimentConfig, devices: int) -> list[ShardingConfig]:
    """Return the factorizations of the devices over data, fsdp and tensor that the model's sizes allow.

    The axes of positions and experts stay as configured.

    Args:
        experiment: The experiment.
        devices: The number of devices.

    Returns:
        The sharding configs.
    """
    config = experiment.sharding
    fixed_factor = max(config.sequence, 1) * max(config.expert, 1)
    free_devices = devices // fixed_factor if devices % fixed_factor == 0 else devices
    shardings = []
    for tensor in _divisors(math.gcd(free_devices, experiment.model.heads, experiment.model.feed_forward)):
        for fsdp in _divisors(math.gcd(free_devices // tensor, experiment.model.width)):
            if tensor > _MAX_TENSOR:
                continue
            rules = _sharding_rules(fsdp, tensor, config.sequence)
            data = free_devices // (tensor * fsdp)
            shardings.append(dataclasses.replace(config, rules=rules, data=data, fsdp=fsdp, tensor=tensor))
    return shardings


def _sharding_rules(fsdp: int, tensor: int, sequence: int) -> str:
    """Return the sharding rules for these axes of a mesh."""
    if sequence > 1:
        return "sp+tp" if tensor > 1 else "sp"
    return "fsdp+tp" if tensor > 1 else "fsdp" if fsdp > 1 else "dp"


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@dataclasses.dataclass(frozen=True)
class _StepFormulas:
    """Estimates of the bytes and seconds of a step, to order candidates and to exclude those that cannot fit."""

    model: TransformerConfig
    chip_flops: float
    link: float
    devices: int
    state: int
    parameters: int
    expert_share: float
    num_microbatches: int
    tokens: int
    flops: float
    item: int

    @classmethod
    def of(cls, experiment: ExperimentConfig, devices: Sequence[jax.Device]) -> "_StepFormulas":
        """Collect the sizes of an experiment, over all devices together."""
        components = build_components(experiment, Path(), make_placement(ShardingConfig(), devices[:1]), synthetic=True)
        abstract, batch = components.abstract_state, abstract_batch(components.task)
        sizes = argument_bytes({"state": abstract, "parameters": abstract.variables.params})
        names = leaves_by_path(components.model.axes().params, is_axis_names)
        leaves = leaves_by_path(abstract.variables.params).items()
        expert_bytes = argument_bytes({"": [leaf for path, leaf in leaves if "experts" in names[path]]})[""]
        chip = find_chip(devices[0]) or TPU_CHIPS["v5e"]
        return cls(
            model=experiment.model,
            chip_flops=chip.flops_per_second,
            link=chip.link_bandwidth * chip.num_links,
            devices=len(devices),
            state=sizes["state"],
            parameters=sizes["parameters"],
            expert_share=expert_bytes / sizes["parameters"],
            num_microbatches=experiment.run.num_microbatches,
            tokens=max(math.prod(array.shape) for array in batch.values()),
            flops=flops_counter(components)(batch) or 0.0,
            item=jax.numpy.dtype(experiment.precision.compute).itemsize,
        )

    @property
    def layers(self) -> int:
        """The number of layers, of encoder and decoder together."""
        names = ("layers", "encoder_layers", "decoder_layers")
        return sum(getattr(self.model, name, 0) for name in names)

    def min_bytes(self, sharding: ShardingConfig, remat: Remat) -> float:
        """Return a lower bound of the bytes per device: state, gradients, and the activations that the policy saves.

        Saved per token and layer are at least the layer's input and, by the policy, attention's output; queries, keys,
        values and the hidden units of the feed-forward network; and twice the width more without rematerialization.
        """
        model = self.model
        expert = max(sharding.expert, 1)
        parts = sharding.data * sharding.fsdp * expert * sharding.sequence
        query_width, key_width = (
            model.heads * model.resolved_head_dim,
            model.resolved_kv_heads * model.resolved_head_dim,
        )
        inner = query_width + 2 * key_width + model.feed_forward
        saved_width = {
            Remat.FULL: model.width,
            Remat.ATTENTION: model.width + query_width / sharding.tensor,
            Remat.DOTS: model.width + inner / sharding.tensor,
            Remat.NONE: 3 * model.width + (inner + query_width) / sharding.tensor,
        }[remat]
        tokens = self.tokens / (parts * self.num_microbatches)
        # The experts' share of the state is that of the parameters: moments and averages are in proportion.
        state_share = (1 - self.expert_share + self.expert_share / expert) / (sharding.fsdp * sharding.tensor)
        return (self.state + self.parameters) * state_share + tokens * self.layers * saved_width * self.item

    def seconds(self, sharding: ShardingConfig, remat: Remat) -> float:
        """Return the seconds of compute, plus those of the collectives of each axis over all links.

        Sharded parameters are gathered twice per microbatch and their gradients scattered once; the gradients of
        replicated ones are summed once; each layer's two halves are summed over `tensor` forward and backward. The
        communication of experts hardly differs between meshes with the same `expert` size, and is left out.
        """
        data, fsdp, tensor = sharding.data * max(sharding.expert, 1), sharding.fsdp, sharding.tensor
        compute = _RECOMPUTE_FACTORS[remat] * self.flops / (self.devices * self.chip_flops)
        gathered = 3 * self.num_microbatches * self.parameters / tensor * (fsdp - 1) / fsdp
        summed = 2 * self.parameters / (fsdp * tensor) * (data - 1) / data
        tokens = self.tokens / (data * fsdp * sharding.sequence)
        halves = 4 * self.layers * tokens * self.model.width * self.item * 2 * (tensor - 1) / tensor
        return compute + (gathered + summed + halves) / self.link
