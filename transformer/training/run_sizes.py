"""How large a trained run is: its parameters by part of the model, and the operations of one of its training steps."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from transformer.costs.flops import training_flops
from transformer.models import registry as models
from transformer.runs.checkpoint import StoredLeaf
from transformer.tasks import registry as tasks
from transformer.tasks.rehearsal import abstract_batch
from transformer.training.reading import open_run
from transformer.training.state import PARAMS, STATE


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
    run = open_run(workdir, trusted)
    experiment = run.experiment
    checkpoints, step = run.checkpoint()
    leaves = checkpoints.leaves(step)
    rehearsed = tasks.rehearse(experiment.task, experiment.run.accumulate)
    return RunSizes(
        family=models.name_of(experiment.model),
        task=tasks.name_of(experiment.task),
        step=step,
        parts=_by_part(leaves),
        state=sum(math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(STATE)),
        operations=training_flops(experiment.model, abstract_batch(rehearsed), rehearsed.interface.vocabularies),
    )


def _by_part(leaves: Mapping[str, StoredLeaf]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for path, leaf in leaves.items():
        if path.startswith(PARAMS):
            part = path.removeprefix(PARAMS).split("/")[0]
            parts[part] = parts.get(part, 0) + math.prod(leaf.shape)
    return parts
