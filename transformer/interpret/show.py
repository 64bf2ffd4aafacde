"""The page of a sentence, or of a run that keeps no maps: in place in a notebook, a file elsewhere."""

import dataclasses
import html
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import jax

from transformer.attention.capture import Capture, CapturedAttention
from transformer.config import UserError
from transformer.maps.report.page import DEFAULT_BUDGET, write_page, write_report
from transformer.maps.report.single_text import store_single_text
from transformer.models.model import Variables
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk_errors import disk_failure
from transformer.storage.paths import parse_path
from transformer.training.config import config_hash
from transformer.training.evaluate import evaluation_view
from transformer.training.run_loading import load_run

_HEIGHT = 820  # pixels of the frame in a notebook


@dataclasses.dataclass(frozen=True)
class AttentionPage:
    """A page that needs nothing but a browser: its title, its text, and where it was written, if it was."""

    title: str
    page: str = dataclasses.field(repr=False)
    path: Path | None = None

    def saved(self, path: str | Path | None = None) -> "AttentionPage":
        """The page in a file, by default a new one for temporary files; its path is printed.

        Raises:
            UserError: For a file that cannot be written.
        """
        file = Path(tempfile.mkdtemp(prefix="headwise-")) / "look.html" if path is None else parse_path(path)
        try:
            write_page(file.absolute(), self.page)
        except OSError as error:
            if disk_failure(error) is not None:
                raise
            raise UserError(f"page={file} cannot be written: {error.strerror or error}") from error
        print(f"Open this page in a browser: {file.resolve()}")
        return dataclasses.replace(self, path=file.resolve())

    def _repr_html_(self) -> str:
        """The page in a frame of its own, where it may run its script and hand out files, and reach nothing else."""
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts allow-downloads" '
            f'title="{html.escape(self.title)}" style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )


def in_notebook() -> bool:
    """Whether a notebook shows what a cell returns."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def report_of_checkpoint(
    run: RunDirectory, budget: int = DEFAULT_BUDGET, data_dir: str | None = None, trusted: Collection[str] = ()
) -> Path:
    """Write the run's `report.html` with the maps of its newest sound checkpoint, and return its path.

    Raises:
        UserError: For a run without a checkpoint, data that is missing, and a model without attention.
    """
    changes = {} if data_dir is None else {"data_dir": data_dir}
    experiment, (task, model, *_), state = load_run(run.path, None, changes, trusted)
    view = evaluation_view(model, state, experiment.eval_parameters)

    def look(capture: Capture) -> Mapping[str, CapturedAttention]:
        def maps(variables: Variables) -> Mapping[str, CapturedAttention]:
            return task.probe(view._replace(variables=variables), capture, jax.random.key(0)).maps

        return jax.jit(maps)(view.variables)

    with tempfile.TemporaryDirectory() as folder:
        maps = Path(folder) / "maps"
        labels, hashed = task.labels(model.sites), config_hash(experiment)
        store_single_text(maps, model.sites, labels, look, experiment.maps, hashed, int(state.step))
        return write_report(run.path, budget, maps=maps)
