"""What a run says when it begins."""

import logging

import jax

from transformer.models.contract import count_parameters
from transformer.models.paths import by_path
from transformer.training.assembly import Assembly
from transformer.training.experiment import Experiment
from transformer.training.opened import OpenRun
from transformer.training.preflight import left_out
from transformer.training.trained import lines_of

_logger = logging.getLogger(__name__)


def greet(assembly: Assembly, opened_run: OpenRun, latest: int | None, complete: bool) -> None:
    """Print its size, its devices, where it goes on from, its data, what cannot be measured, and what it waits for."""
    experiment = opened_run.experiment
    parameters = count_parameters(assembly.abstract.variables.params)
    opened_run.directory.record(parameters=parameters)
    said = assembly.task.said
    sizes = {path: leaf.size for path, leaf in by_path(assembly.abstract.variables.params).items()}
    for line in said:
        _logger.info("%s", line)
    mesh = assembly.placement.mesh
    if latest is None:
        what = f"training to step {experiment.run.steps}"
    elif complete:
        what = f"complete at step {latest}: nothing to train"
    else:
        what = f"resuming from step {latest} to step {experiment.run.steps}"
    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(
        f"{experiment.run.name}: {parameters:,} parameters on {mesh.size} x {mesh.devices.flat[0].device_kind}"
        f"{several}, {what}; run directory {opened_run.directory.path}",
        *said,
        *(
            line
            for each in assembly.task.objectives
            for line in lines_of(experiment.optimizer_of(each.name), each, sizes)
        ),
        *_warmup_notes(experiment, assembly),
        *left_out(assembly.model, assembly.task.evaluations),
        # The longest silence of a run: whoever waits knows for what.
        *([] if complete else ["compiling the training step; its first figures come behind that"]),
        sep="\n",
        flush=True,
    )


def _warmup_notes(experiment: Experiment, assembly: Assembly) -> list[str]:
    """What is told of an optimizer whose learning rate still rises when the run ends."""
    steps = experiment.run.steps
    warmups = {experiment.optimizer_of(each.name).warmup for each in assembly.task.objectives}
    return [
        f"config.optimizer.warmup={warmup} is beyond config.steps={steps}: the learning rate never reaches its peak"
        for warmup in sorted(warmups)
        if warmup > steps
    ]
