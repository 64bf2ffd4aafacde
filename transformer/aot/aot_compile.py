"""Ahead-of-time compilation of an experiment's training step for a topology, without devices, data or arrays."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

from transformer.attention.backends import BackendChoice, record_backend_choices
from transformer.config import UserError
from transformer.costs.chips import find_chip
from transformer.costs.compiled_program import CompiledProgram, analyze_program, argument_bytes
from transformer.costs.flops import recomputed_flops
from transformer.costs.roofline import StepEstimate, estimate_step
from transformer.costs.topologies import OutOfMemoryError, compile_lowered, topology_devices, use_compute_capability
from transformer.models.model import count_parameters
from transformer.tasks.synthetic_data import abstract_batch
from transformer.training.build import abstract_model_inputs, build_components, flops_counter, make_jitted_train_step
from transformer.training.config import ExperimentConfig
from transformer.training.partitioning import batch_sharding, make_placement
from transformer.training.state import TrainState

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class LargestArray(NamedTuple):
    """One of the largest arrays of a step.

    Attributes:
        num_bytes: Bytes on one device.
        shape: Type and shape.
        source: The traced operation that it comes from.
    """

    num_bytes: int
    shape: str
    source: str


class AotReport(NamedTuple):
    """The result of compiling an experiment's training step for a topology. Bytes are per device.

    If the compiler found that the step does not fit, `program` is None, `peak_bytes` is the compiler's figure or None,
    and `largest_arrays` are those of the traced step, as if sharded evenly.

    Attributes:
        experiment: The experiment.
        topology: The name of the topology.
        device_kind: The kind of device.
        mesh_shape: The size of each mesh axis.
        num_parameters: The number of parameters.
        batch_size: The rows of a batch.
        resident_bytes: Bytes at the start of a step, by kind.
        device_memory_bytes: Bytes of device memory by its data sheet; None for CPUs.
        compile_seconds: Seconds of compilation; NaN if it failed.
        flops: FLOPs of a step; None if they cannot be counted.
        program: The analysis of the compiled step.
        step_estimate: The roofline estimate; None without a program, a data sheet or FLOPs.
        peak_bytes: Peak memory.
        largest_arrays: The largest arrays of the step.
        attention: The backend of each kind of call to attention, once each.
    """

    experiment: ExperimentConfig
    topology: str
    device_kind: str
    mesh_shape: Mapping[str, int]
    num_parameters: int
    batch_size: int
    resident_bytes: Mapping[str, int]
    device_memory_bytes: int | None
    compile_seconds: float
    flops: float | None
    program: CompiledProgram | None
    step_estimate: StepEstimate | None
    peak_bytes: int | None
    largest_arrays: tuple[LargestArray, ...]
    attention: tuple[BackendChoice, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the step fits into device memory; True if compiled for a device of unknown memory."""
        if self.program is None:
            return False
        return self.device_memory_bytes is None or self.program.peak_bytes <= self.device_memory_bytes


def resolve_topology(experiment: ExperimentConfig, requested: str | None) -> str:
    """Return the given topology, or else the config's `topology`.

    Raises:
        UserError: If neither names one.
    """
    if topology := requested or experiment.run.topology:
        return topology
    raise UserError("no topology to compile for: pass --topology=v5p:8x8x4, or set config.topology")


def compile_ahead_of_time(
    experiment: ExperimentConfig, topology: str, on_compile: Callable[[], None] = lambda: None
) -> AotReport:
    """Compile an experiment's training step for the devices of a topology, without data or arrays.

    Args:
        experiment: The experiment.
        topology: The name of the topology.
        on_compile: A function that is called before the compiler, which may take minutes, once nothing is refused.

    Returns:
        The report.

    Raises:
        UserError: If the topology does not exist, or if the config does not match its devices.
    """
    devices = topology_devices(topology)
    placement = make_placement(experiment.sharding, devices)
    components = build_components(experiment, Path(), placement, synthetic=True)
    batch: Any = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=batch_sharding(array.shape, placement))
        for name, array in abstract_batch(components.task).items()
    }
    chip = find_chip(devices[0])
    report = AotReport(
        experiment=experiment,
        topology=topology,
        device_kind=devices[0].device_kind,
        mesh_shape=dict(placement.mesh.shape),
        num_parameters=count_parameters(components.abstract_state.variables.params),
        batch_size=max(array.shape[0] for array in batch.values() if array.shape),
        resident_bytes=_resident_bytes(components.abstract_state, batch),
        device_memory_bytes=None if chip is None else chip.memory_bytes,
        compile_seconds=math.nan,
        flops=flops_counter(components)(batch),
        program=None,
        step_estimate=None,
        peak_bytes=None,
        largest_arrays=(),
    )
    step: Any = make_jitted_train_step(experiment, components)
    with use_compute_capability(devices[0]), record_backend_choices() as choices:
        traced = step.trace(components.abstract_state, batch, False)
        lowered = traced.lower()
    report = report._replace(attention=tuple(dict.fromkeys(choices)))
    on_compile()
    try:
        compiled, seconds = compile_lowered(lowered)
    except OutOfMemoryError as error:
        return report._replace(
            peak_bytes=parse_needed_bytes(str(error), sum(report.resident_bytes.values())),
            largest_arrays=largest_traced_arrays(traced.jaxpr.jaxpr, len(devices)),
        )
    program = analyze_program(compiled, placement.mesh)
    expected = None
    if chip is not None and report.flops is not None:
        recomputed = recomputed_flops(components.model, abstract_model_inputs(components, batch))
        expected = estimate_step(program, report.flops, chip, placement.mesh, recomputed)
    return report._replace(
        compile_seconds=seconds,
        program=program,
        peak_bytes=program.peak_bytes,
        largest_arrays=tuple(
            LargestArray(buffer.num_bytes, buffer.shape, buffer.source) for buffer in program.largest_buffers
        ),
        step_estimate=expected,
    )


def _resident_bytes(state: TrainState, batch: Any) -> dict[str, int]:
    other_state = state._replace(variables=state.variables._replace(params={}), optimizers={}, averages={})
    return argument_bytes(
        {
            "parameters": state.variables.params,
            "optimizer": state.optimizers,
            "averages": state.averages,
            "other state": other_state,
            "batch": batch,
        }
    )


def parse_needed_bytes(message: str, resident_bytes: int) -> int | None:
    """Parse the number of needed bytes from the compiler's out-of-memory error.

    Args:
        message: The error.
        resident_bytes: Bytes of the arguments, which are added to temporaries.

    Returns:
        The bytes; None if the error does not give them.
    """
    if match := re.search(r"HLO temporaries \(([\d.]+)([BKMGT])\)", message):
        return resident_bytes + round(float(match[1]) * _UNITS[match[2]])
    if match := re.search(r"Used ([\d.]+)([BKMGT]) of", message):
        return round(float(match[1]) * _UNITS[match[2]])
    return None


def largest_traced_arrays(jaxpr: Any, devices: int, count: int = 10) -> tuple[LargestArray, ...]:
    """Return the largest arrays of a traced program that does not compile, one of each shape, as if sharded evenly.

    Only results of loops and matrix products count: most others are fused with their use.

    Args:
        jaxpr: The traced program.
        devices: The number of devices.
        count: How many to return.

    Returns:
        The arrays, the largest first.
    """
    largest: dict[str, LargestArray] = {}
    for equation in _equations(jaxpr):
        if equation.primitive.name not in ("scan", "while", "dot_general"):
            continue
        for output in equation.outvars:
            size = math.ceil(output.aval.size * output.aval.dtype.itemsize / devices)
            shape = f"{output.aval.dtype.name}[{','.join(map(str, output.aval.shape))}]"
            where = "/".join(filter(None, (str(equation.source_info.name_stack), equation.primitive.name)))
            largest.setdefault(shape, LargestArray(size, shape, where))
    return tuple(sorted(largest.values(), key=lambda array: -array.num_bytes)[:count])


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)
