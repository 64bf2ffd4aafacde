"""Lanes: several runs that differ in seed and hyper-parameters alone, trained together by one vectorised program.

They go through the loop of every run, whose state, batches and metrics then have a leading axis of lanes; each keeps
its own run directory, as if it had been trained alone. A lane's rates are its own: the steps, tokens and operations of
this lane in a second in which all of them are trained. What the device does is their sum over the lanes.
"""

import contextlib
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.config import UserError, to_config
from transformer.costs.chips import peak_flops
from transformer.maps.store import MapStore
from transformer.maps.tiers import Kept
from transformer.models.contract import count_parameters
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory, as_texts
from transformer.runs.processes import claimed
from transformer.tasks import registry as tasks
from transformer.tasks.contract import Batch, Report
from transformer.training.experiment import (
    Experiment,
    Setting,
    assemble,
    cadence_of,
    changeable,
    compile_step,
    config_hash,
    count_flops,
    latest_step,
    measured,
    numbers_of,
    preflight,
    training_step,
)
from transformer.training.initialise_from import begin, bring_tokenizer, prepare
from transformer.training.loop import Diverged, Measured, refuse_divergence, run
from transformer.training.optimizer import OptimizerConfig, hyper_of
from transformer.training.probe import compile_probe
from transformer.training.records import open_records
from transformer.training.sharding import make_placement, shard_batch, traced_on
from transformer.training.sinks import Console
from transformer.training.sinks.lanes import LaneSinks
from transformer.training.stacking import StackedBatches, stack_reports, stack_states, stacked_on, take_lane
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step, vectorise

COMPARED = 8  # batches whose shapes are compared before anything compiles


class Ended(NamedTuple):
    """How a lane ended: complete, or with a loss that was not finite, read from step `diverged_at`."""

    diverged_at: int | None


class Lane(NamedTuple):
    """One of the runs, and what it has on the disk."""

    experiment: Experiment
    directory: RunDirectory
    checkpoints: Checkpoints


def program_of(experiment: Experiment) -> str:
    """The resolved config without what lanes may differ in: equal for experiments that can be lanes of one program."""
    config = experiment.to_config()
    config |= {"seed": None, "name": None, "optimizer": _without_numbers(experiment.optimizer)}
    config["optimizers"] = {name: _without_numbers(section) for name, section in experiment.optimizers.items()}
    return json.dumps(config, sort_keys=True)


def _without_numbers(optimizer: OptimizerConfig) -> dict[str, Any]:
    return to_config(optimizer) | dict.fromkeys(hyper_of(optimizer))


def train_lanes(experiments: Sequence[Experiment], workdirs: Sequence[Path]) -> list[Ended]:
    """Train each experiment in its run directory, or resume there, all in one program; return how each has ended.

    They go on from the latest step of which all have a checkpoint, and save those that one has beyond it again. Lanes
    that are complete, or have diverged here before, are left as they are.

    Errors: UserError for experiments that are no lanes of one program, batches whose shapes differ between seeds,
    several devices or processes, and whatever is refused of a single run.
    """
    _check_lanes(experiments, workdirs)
    directories: list[RunDirectory] = []
    with contextlib.ExitStack() as stack:
        try:
            for experiment, workdir in zip(experiments, workdirs, strict=True):
                held = claimed(workdir, experiment.to_config(), may_change=changeable(experiment))
                directories.append(stack.enter_context(held))
            setting = _assemble(experiments, directories)
            preflight(experiments[0], setting)
            for experiment, directory in zip(experiments, directories, strict=True):
                if directory.fresh and experiment.initialise_from.run:
                    prepare(experiment.initialise_from, setting.model, setting.abstract.variables, directory.path)
        except UserError:
            for directory in directories:
                if directory.fresh:
                    directory.abandon()
            raise
        lanes = [
            # Of two that each keeps, all have one whenever they are killed.
            Lane(each, at, stack.enter_context(contextlib.closing(Checkpoints(at.checkpoints, max(each.run.keep, 2)))))
            for each, at in zip(experiments, directories, strict=True)
        ]
        for directory in directories:
            stack.enter_context(directory.log_to_file())
        ends = [Ended(lane.directory.facts().get("diverged_at")) for lane in lanes]
        going = [n for n, lane in enumerate(lanes) if ends[n].diverged_at is None and not _is_complete(lane)]
        if going:
            ends_of_going = _train([lanes[number] for number in going], setting)
            ends = [dict(zip(going, ends_of_going, strict=True)).get(n, end) for n, end in enumerate(ends)]
    return ends


def lanes_gain(experiments: Sequence[Experiment], folder: Path, *, steps: int = 5, repeats: int = 5) -> float:
    """How many times as fast these experiments are as lanes than one after the other, by their training steps alone.

    The median ratio of seconds over `repeats` times `steps` steps of each, taken in turn; `folder` is for the data.

    Errors: as `train_lanes`.
    """
    _check_lanes(experiments, [folder / str(number) for number in range(len(experiments))])
    setting = _assemble(experiments, [RunDirectory(folder)])
    alone, together = compile_step(experiments[0], setting), _compile(experiments[0], setting)
    sources = [setting.task.source(each.run.seed) for each in experiments]
    stacked = StackedBatches(sources)
    batches = [stacked[number] for number in range(steps)]

    def seconds(step: Step, state: TrainState, batches: Sequence[Batch]) -> float:
        jax.block_until_ready(state)
        began = time.perf_counter()
        for batch in batches:
            state, _ = step(state, shard_batch(batch, setting.placement), False)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    ratios = []
    for repeat in range(repeats + 1):
        states = [_first_state(each, setting) for each in experiments]
        vectorised = seconds(together, stack_states(states, setting.placement), batches)
        single = sum(
            seconds(alone, state, [source[number] for number in range(steps)])
            for state, source in zip(states, sources, strict=True)
        )
        if repeat:  # the first compiles
            ratios.append(single / vectorised)
    return statistics.median(ratios)


def _check_lanes(experiments: Sequence[Experiment], workdirs: Sequence[Path]) -> None:
    """Errors: UserError where these cannot be lanes of one program on this machine."""
    devices = make_placement(experiments[0].sharding).mesh.size
    if jax.process_count() > 1 or devices > 1:
        raise UserError(
            f"lanes are trained by one process on one device, and here are {jax.process_count()} and {devices}: "
            "leave one device visible, or train without lanes"
        )
    if len({workdir.resolve() for workdir in map(Path, workdirs)}) < len(workdirs):
        raise UserError("every lane needs a run directory of its own, and two have the same")
    programs = [as_texts(json.loads(program_of(each))) for each in experiments]
    configs = [as_texts(each.to_config()) for each in experiments]
    for program, config, workdir in zip(programs, configs, workdirs, strict=True):
        for key in programs[0] | program:
            if program.get(key) != programs[0].get(key):
                here, there = config.get(key, "absent"), configs[0].get(key, "absent")
                raise UserError(
                    f"config.{key}={here} of {workdir} and {there} of {workdirs[0]} make two programs: lanes differ "
                    "in config.seed, config.name and the numbers of config.optimizer alone; a clip, weight_decay or "
                    "momentum of zero is another program"
                )


def _assemble(experiments: Sequence[Experiment], directories: Sequence[RunDirectory]) -> Setting:
    """The setting of all lanes, and in each directory the files that a run's task leaves there."""
    for experiment, directory in zip(experiments, directories, strict=False):
        bring_tokenizer(experiment.initialise_from, directory.path)
    setting = assemble(experiments[0], directories[0].path, make_placement(experiments[0].sharding))
    for experiment, directory in zip(experiments[1:], directories[1:], strict=False):
        tasks.build(experiment.task, directory.path, experiment.run.accumulate)
    # Before anything compiles; a later one is refused when it comes.
    batches = StackedBatches([setting.task.source(each.run.seed) for each in experiments])
    for number in range(min(COMPARED, experiments[0].run.steps)):
        batches[number]
    return setting


def _first_state(experiment: Experiment, setting: Setting) -> TrainState:
    return _with_numbers(setting.initialise(jax.random.key(experiment.run.seed)), experiment, setting)


def _with_numbers(state: TrainState, experiment: Experiment, setting: Setting) -> TrainState:
    """The state with the lane's own numbers of its optimisers: those of the setting are the first lane's."""
    numbers = jax.device_put(numbers_of(experiment, setting.task), state.step.sharding)
    return state._replace(hyper=numbers)


def _compile(experiment: Experiment, setting: Setting) -> Step:
    step = vectorise(training_step(experiment, setting))
    return jax.jit(traced_on(setting.placement, step), donate_argnums=0, out_shardings=stacked_on(setting.placement))


def _train(lanes: Sequence[Lane], setting: Setting) -> list[Ended]:
    first = lanes[0].experiment
    steps, start = first.run.steps, _common_step(lanes)
    compiled = _compile(first, setting)
    batches = StackedBatches([setting.task.source(lane.experiment.run.seed) for lane in lanes])
    plan, probe = compile_probe(
        setting.model,
        setting.task,
        setting.abstract,
        setting.placement,
        config=first.maps,
        times=first.run.looks,
        tiers=MapStore.tiers_at(lanes[0].directory.maps),
    )
    begun = [_begin(lane, setting, start, aloud=lane is lanes[0]) for lane in lanes]
    state = stack_states(begun, setting.placement)
    _greet(lanes, setting, start)
    records = [
        open_records(lane.directory, plan, config_hash(lane.experiment), steps=steps, start=start) for lane in lanes
    ]
    sinks = LaneSinks(records, Console(steps, sys.stdout))
    ends = [Ended(None)] * len(lanes)

    def check(step: int, losses: Mapping[str, np.ndarray]) -> None:
        for number in sinks.going:
            try:
                refuse_divergence(step, {name: of_lanes[number] for name, of_lanes in losses.items()})
            except Diverged as diverged:
                ends[number] = Ended(step)
                _record_divergence(lanes[number], diverged)
                sinks.stop(number)
                if not sinks.going:
                    raise

    def step(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, Metrics]:
        return compiled(state, shard_batch(batch, setting.placement), observe)

    try:
        with contextlib.suppress(Diverged):  # of the last lane: each has recorded its own
            run(
                state,
                step,
                batches,
                steps=steps,
                cadence=cadence_of(first.run),
                evaluations=[_by_lane(evaluation, sinks, len(lanes)) for evaluation in measured(setting)],
                probe=lambda state: _look(state, probe, sinks),
                save=lambda state: _save(state, {number: lanes[number] for number in sinks.going}),
                sink=sinks,
                check=check,
                flops=_flops_of_lane(first, setting),
                peak_flops=peak_flops(list(setting.placement.mesh.devices.flat)),
            )
    except BaseException:
        with contextlib.suppress(Exception):
            sinks.close()
        raise
    sinks.close()
    return ends


def _common_step(lanes: Sequence[Lane]) -> int:
    """The latest step of which all have a checkpoint, 0 where there is none; checkpoints beyond it are deleted."""
    common = max(set.intersection(*(set(lane.checkpoints.steps()) for lane in lanes)), default=0)
    for lane in lanes:
        lane.checkpoints.drop_after(common)
    return common


def _begin(lane: Lane, setting: Setting, step: int, *, aloud: bool) -> TrainState:
    if not step:
        key, origin = jax.random.key(lane.experiment.run.seed), lane.experiment.initialise_from
        return _with_numbers(begin(origin, setting, key, lane.directory, aloud=aloud), lane.experiment, setting)
    return lane.checkpoints.restore(step, setting.abstract)[0]


def _save(state: TrainState, going: Mapping[int, Lane]) -> None:
    for lane in going.values():
        lane.checkpoints.latest()  # waits for the save before: no lane begins the next until all have the last
    for number, lane in going.items():
        alone = take_lane(state, number)
        lane.checkpoints.save(int(alone.step), alone, {})


def _record_divergence(lane: Lane, diverged: Diverged) -> None:
    # A lane that starts again has to know: it stands behind the others, and would hold them back to come to this again.
    lane.directory.record(diverged_at=diverged.step)
    print(f"{lane.directory.path}: {diverged}", flush=True)


def _is_complete(lane: Lane) -> bool:
    return latest_step(lane.experiment, lane.checkpoints) == lane.experiment.run.steps


def _by_lane(evaluation: Measured, sinks: LaneSinks, count: int) -> Measured:
    """The evaluation of every lane that goes on, one after the other in the one compiled program."""

    def evaluate(state: TrainState) -> Report:
        seen = state.for_looking()
        going = sinks.going
        return stack_reports([evaluation.run(take_lane(seen, n)) if n in going else None for n in range(count)])

    return dataclasses.replace(evaluation, run=evaluate)


def _look(state: TrainState, probe: Callable[[TrainState], Mapping[str, Kept]], sinks: LaneSinks) -> dict[str, Any]:
    """The maps of every lane that goes on: of a site, by lane."""
    seen = state.for_looking()
    found = {lane: probe(take_lane(seen, lane)) for lane in sinks.going}
    sites = next(iter(found.values()))
    return {site: {lane: maps[site] for lane, maps in found.items()} for site in sites}


def _flops_of_lane(experiment: Experiment, setting: Setting) -> Callable[[Batch], float] | None:
    """A lane's operations in a step; batches of all lanes have one shape."""
    flops = count_flops(experiment, setting)
    return None if flops is None else lambda batch: flops({name: array[0] for name, array in batch.items()})


def _greet(lanes: Sequence[Lane], setting: Setting, start: int) -> None:
    parameters = count_parameters(setting.abstract.variables.params)
    kind = setting.placement.mesh.devices.flat[0].device_kind
    steps = lanes[0].experiment.run.steps
    what = f"resuming from step {start} to step {steps}" if start else f"training to step {steps}"
    print(f"{len(lanes)} lanes of {parameters:,} parameters on 1 x {kind}, {what}; run directories", flush=True)
    for lane in lanes:
        lane.directory.record(parameters=parameters)
        print(f"  {lane.directory.path}: {lane.experiment.run.name}", flush=True)
