"""Proving an experiment against a topology before it is booked: its training step, compiled without any array."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

from transformer.config import UserError
from transformer.costs.chips import chip_of
from transformer.costs.compiler import OutOfMemoryError, compile_lowered, topology_devices
from transformer.costs.flops import recomputed_flops
from transformer.costs.program import Program, read_program, split_arguments
from transformer.costs.roofline import Estimate, estimate
from transformer.models.model import count_parameters
from transformer.tasks.synthetic_data import abstract_batch
from transformer.training.build import assemble, compile_step, flops_counter, model_inputs
from transformer.training.config import Experiment
from transformer.training.partitioning import batch_sharding, make_placement
from transformer.training.state import TrainState

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Largest(NamedTuple):
    """One of the largest arrays of a step: its bytes on one device, its type and shape, and what makes it."""

    bytes: int
    shape: str
    source: str


class Proof(NamedTuple):
    """The result of compiling an experiment's training step for a topology. Bytes are those of one device.

    `held` are the bytes at the start of a step, by kind. `memory` is the device's by its data sheet, None without one
    (CPUs). `flops` are those of a step, None where they cannot be counted, `rows` the rows of its batch.

    Where the compiler refused the step, `program` is None, `needed`, the most bytes held at once, is the compiler's
    figure, or None if it gave none, and `buffers`, the largest arrays, are those of the traced step, as if divided
    evenly. Then, and without a data sheet, `estimate` is None.
    """

    experiment: Experiment
    topology: str
    device: str
    mesh: Mapping[str, int]
    parameters: int
    rows: int
    held: Mapping[str, int]
    memory: int | None
    seconds: float
    flops: float | None
    program: Program | None
    estimate: Estimate | None
    needed: int | None
    buffers: tuple[Largest, ...]

    @property
    def fits(self) -> bool:
        """Whether a device's memory holds the step; true of devices whose memory is not known."""
        if self.program is None:
            return False
        return self.memory is None or self.program.peak <= self.memory


def topology_of(experiment: Experiment, said: str | None) -> str:
    """The given topology, or else the config's `pod`.

    Raises:
        UserError: If neither names one.
    """
    if topology := said or experiment.run.pod:
        return topology
    raise UserError("no topology to compile for: say --topology=v5p:8x8x4, or name one in the config as config.pod")


def prove(experiment: Experiment, topology: str) -> Proof:
    """Compile the experiment's training step for the devices of a topology; no data are read and no array is made.

    Raises:
        UserError: For a topology that is none, and for a config that does not fit its devices.
    """
    devices = topology_devices(topology)
    placement = make_placement(experiment.sharding, devices)
    assembly = assemble(experiment, Path(), placement, synthetic=True)
    batch: Any = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=batch_sharding(array.shape, placement))
        for name, array in abstract_batch(assembly.task).items()
    }
    chip = chip_of(devices[0])
    proof = Proof(
        experiment=experiment,
        topology=topology,
        device=devices[0].device_kind,
        mesh=dict(placement.mesh.shape),
        parameters=count_parameters(assembly.abstract.variables.params),
        rows=max(array.shape[0] for array in batch.values() if array.shape),
        held=_held(assembly.abstract, batch),
        memory=None if chip is None else chip.memory,
        seconds=math.nan,
        flops=flops_counter(assembly)(batch),
        program=None,
        estimate=None,
        needed=None,
        buffers=(),
    )
    step: Any = compile_step(experiment, assembly)
    traced = step.trace(assembly.abstract, batch, False)
    try:
        compiled, seconds = compile_lowered(traced.lower())
    except OutOfMemoryError as error:
        return proof._replace(
            needed=said_to_need(str(error), sum(proof.held.values())),
            buffers=largest_of(traced.jaxpr.jaxpr, len(devices)),
        )
    program = read_program(compiled, placement.mesh)
    expected = None
    if chip is not None and proof.flops is not None:
        again = recomputed_flops(assembly.model, model_inputs(assembly, batch))
        expected = estimate(program, proof.flops, chip, placement.mesh, again)
    return proof._replace(
        seconds=seconds,
        program=program,
        needed=program.peak,
        buffers=tuple(Largest(each.bytes, each.shape, each.source) for each in program.buffers),
        estimate=expected,
    )


def _held(state: TrainState, batch: Any) -> dict[str, int]:
    rest = state._replace(variables=state.variables._replace(params={}), optimizers={}, averages={})
    return split_arguments(
        {
            "parameters": state.variables.params,
            "optimizer": state.optimizers,
            "averages": state.averages,
            "other state": rest,
            "batch": batch,
        }
    )


def said_to_need(message: str, held: int) -> int | None:
    """The bytes that the compiler's message says a program needs, `held` before its temporaries; None without them."""
    if match := re.search(r"HLO temporaries \(([\d.]+)([BKMGT])\)", message):
        return held + round(float(match[1]) * _UNITS[match[2]])
    if match := re.search(r"Used ([\d.]+)([BKMGT]) of", message):
        return round(float(match[1]) * _UNITS[match[2]])
    return None


def largest_of(jaxpr: Any, devices: int, count: int = 10) -> tuple[Largest, ...]:
    """The largest arrays that a traced program keeps or multiplies, one of each shape, as if divided evenly.

    For a program that the compiler refused. Only results of loops and matrix products count: most others are fused
    with their use.
    """
    largest: dict[str, Largest] = {}
    for equation in _equations(jaxpr):
        if equation.primitive.name not in ("scan", "while", "dot_general"):
            continue
        for made in equation.outvars:
            size = math.ceil(made.aval.size * made.aval.dtype.itemsize / devices)
            shape = f"{made.aval.dtype.name}[{','.join(map(str, made.aval.shape))}]"
            where = "/".join(filter(None, (str(equation.source_info.name_stack), equation.primitive.name)))
            largest.setdefault(shape, Largest(size, shape, where))
    return tuple(sorted(largest.values(), key=lambda each: -each.bytes)[:count])


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)
