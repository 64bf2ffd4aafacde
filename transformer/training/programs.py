"""The programs of a run beside its training step, and how often each is called."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transformer.config import RunConfig
from transformer.costs.chips import peak_flops
from transformer.data.batches import Source
from transformer.maps.store import MapStore
from transformer.runs.pulse import Pulse
from transformer.training.ahead import Program, shapes_of
from transformer.training.assembly import Assembly
from transformer.training.evaluate import CompiledEvaluation, compile_evaluations
from transformer.training.experiment import Experiment
from transformer.training.loop import Cadence, Measured
from transformer.training.opened import OpenRun
from transformer.training.probe import Probe, compile_probe
from transformer.training.step import Step


def cadence_of(config: RunConfig) -> Cadence:
    """The cadence of a run's config."""
    return Cadence(
        log=config.log_every,
        evaluate=config.eval_every,
        maps=config.maps_every,
        checkpoint=config.checkpoint_every,
        heads=config.head_statistics_every,
    )


def measured(assembly: Assembly, pulse: Pulse) -> list[Measured]:
    """The evaluations that apply to the model, compiled."""
    chosen = assembly.evaluations
    compiled = compile_evaluations(assembly.model, chosen, assembly.placement)
    with_pulse = [replace(run, pulse=pulse) if isinstance(run, CompiledEvaluation) else run for run in compiled]
    return [Measured(each.name, each.split, each.at_end, run) for each, run in zip(chosen, with_pulse, strict=True)]


def programs_to_compile(
    experiment: Experiment, assembly: Assembly, step: Step, evaluations: Sequence[Measured], start: int, source: Source
) -> Iterator[Program]:
    """The jitted `step` for each batch shape of the steps behind `start`, and that of each evaluation.

    `source` is of this call alone: one keeps its epoch's plan, which two threads must not share.
    """
    batches = shapes_of(source, start, experiment.run.steps, assembly.placement)
    yield from (Program(step, (assembly.abstract, batch, False)) for batch in batches)
    for each in evaluations:
        if isinstance(each.run, CompiledEvaluation):
            yield from each.run.programs(assembly.abstract)


def probe_of(assembly: Assembly, opened_run: OpenRun) -> Probe:
    """The compiled probe; a resumed run keeps the tiers of its store, also with another `maps_every` or `steps`."""
    return compile_probe(
        assembly.model,
        assembly.task,
        assembly.abstract,
        assembly.placement,
        config=opened_run.experiment.maps,
        times=opened_run.experiment.run.probe_count,
        parameters=opened_run.experiment.evaluated_parameters,
        tiers=MapStore.tiers_at(opened_run.directory.maps),
    )


def peak_flops_of(assembly: Assembly) -> float:
    """The peak operations a second of the mesh's devices, by their data sheets."""
    return peak_flops(list(assembly.placement.mesh.devices.flat))
