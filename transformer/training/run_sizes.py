"""The size of a trained run: its parameters by part of the model, and the operations of a training step."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from transformer.costs.flops import training_flops
from transformer.costs.sizes import active_parameters
from transformer.models import registry as models
from transformer.tasks import registry as tasks
from transformer.tasks.synthetic import abstract_batch
from transformer.training.reading import open_run
from transformer.training.state import PARAMS, STATE


class RunSizes(NamedTuple):
    """The parameters of a run's checkpoint and the operations of a training step.

    `parts`: parameters by the first name of their path, such as "encoder". `state`: numbers of the model's
    untrained state, such as a batch norm's statistics. `active`: the parameters that one position meets, fewer than all
    where it chooses among experts. `operations`: of one training step over
    the largest batch that the config can make, by the family's formula; None where it has none.
    """

    family: str
    task: str
    step: int
    parts: Mapping[str, int]
    state: int
    active: int
    operations: float | None

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(self.parts.values())


def run_sizes(workdir: str | Path, trusted: Collection[str] = ()) -> RunSizes:
    """The sizes of the run's latest checkpoint: neither its arrays nor its data are read.

    `trusted` are the dotted paths of code that the run's config may name.

    Errors: UserError for a directory without a run or a checkpoint, and for code that is not trusted.
    """
    run = open_run(workdir, trusted)
    experiment = run.experiment
    step, leaves = run.restored(None, lambda checkpoints, at: checkpoints.leaves(at))
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(PARAMS)}
    task = tasks.synthetic(experiment.task, experiment.run.accumulate)
    return RunSizes(
        family=models.name_of(experiment.model),
        task=tasks.name_of(experiment.task),
        step=step,
        parts=_by_part(sizes),
        state=sum(math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(STATE)),
        active=active_parameters(experiment.model, sizes),
        operations=training_flops(experiment.model, abstract_batch(task), task.interface.vocabularies),
    )


def _by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for path, size in sizes.items():
        part = path.removeprefix(PARAMS).split("/")[0]
        parts[part] = parts.get(part, 0) + size
    return parts
