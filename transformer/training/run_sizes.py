"""How large a trained run is: its parameters by part of the model, and the operations of one of its training steps."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from transformer.config import UserError
from transformer.costs.flops import training_flops
from transformer.models import registry as models
from transformer.named import check_trusted
from transformer.tasks import registry as tasks
from transformer.tasks.rehearsal import abstract_batch
from transformer.training.checkpoint import Checkpoints, StoredLeaf
from transformer.training.experiment import resolve
from transformer.training.run_directory import RunDirectory

_PARAMETERS, _STATE = "variables/params/", "variables/state/"


class RunSizes(NamedTuple):
    """What a run's checkpoint holds and what a step of its training computes.

    `parts`: parameters by the first name of their path, such as "encoder". `state`: numbers that the model carries
    from step to step and nothing trains, such as a batch norm's statistics. `operations`: of one training step over
    the largest batch that the config can make, by the family's formula; None where it has none.
    """

    family: str
    task: str
    step: int
    parts: Mapping[str, int]
    state: int
    operations: float | None

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(self.parts.values())


def run_sizes(workdir: str | Path, trusted: Collection[str] = ()) -> RunSizes:
    """The sizes of the run's latest checkpoint: neither its arrays nor its data are read.

    `trusted` are the dotted paths of code that the run's config may name.

    Errors: UserError where there is no run or no checkpoint, and for code that is not trusted.
    """
    directory = RunDirectory.open(workdir)
    config = directory.config()
    check_trusted(config, trusted)
    experiment = resolve(config)
    checkpoints = Checkpoints.reading(directory.checkpoints)
    step = checkpoints.latest()
    if step is None:
        raise UserError(f"{workdir} has no checkpoint yet; train it with python -m launch.train --workdir={workdir}")
    leaves = checkpoints.leaves(step)
    rehearsed = tasks.rehearse(experiment.task, experiment.run.accumulate)
    return RunSizes(
        family=models.name_of(experiment.model),
        task=tasks.name_of(experiment.task),
        step=step,
        parts=_by_part(leaves),
        state=sum(math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(_STATE)),
        operations=training_flops(experiment.model, abstract_batch(rehearsed), rehearsed.interface.vocabularies),
    )


def _by_part(leaves: Mapping[str, StoredLeaf]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for path, leaf in leaves.items():
        if path.startswith(_PARAMETERS):
            part = path.removeprefix(_PARAMETERS).split("/")[0]
            parts[part] = parts.get(part, 0) + math.prod(leaf.shape)
    return parts
