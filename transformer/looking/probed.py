"""The page of a run that keeps no maps, such as one that was just converted: its checkpoint on its probe batch."""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import jax

from transformer.attention.capture import Capture, Captured
from transformer.maps.alone import store_alone
from transformer.maps.report import DEFAULT_BUDGET, write_report
from transformer.models.contract import Variables
from transformer.runs.directory import RunDirectory
from transformer.training.evaluate import view_of
from transformer.training.experiment import config_hash
from transformer.training.reading import load


def report_of_checkpoint(
    run: RunDirectory, budget: int = DEFAULT_BUDGET, data_dir: str | None = None, trusted: Collection[str] = ()
) -> Path:
    """Write the run's `report.html` with the maps of its newest sound checkpoint, and return its path.

    Errors: UserError for a run without a checkpoint, data that is missing, and a model without attention.
    """
    changes = {} if data_dir is None else {"data_dir": data_dir}
    experiment, (task, model, *_), state = load(run.path, None, changes, trusted)
    view = view_of(model, state, experiment.evaluated_parameters)

    def look(capture: Capture) -> Mapping[str, Captured]:
        def maps(variables: Variables) -> Mapping[str, Captured]:
            return task.probe(view._replace(variables=variables), capture, jax.random.key(0)).maps

        return jax.jit(maps)(view.variables)

    with tempfile.TemporaryDirectory() as folder:
        maps = Path(folder) / "maps"
        labels, hashed = task.labels(model.sites), config_hash(experiment)
        store_alone(maps, model.sites, labels, look, experiment.maps, hashed, int(state.step))
        return write_report(run.path, budget, maps=maps)
