"""The page of a text, or of a run that stores no maps: displayed in a notebook, written to a file elsewhere."""

import dataclasses
import html
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import jax

from transformer.attention.capture import Capture, CapturedAttention
from transformer.maps.report.page import DEFAULT_BUDGET, write_page, write_report
from transformer.maps.report.single_text import store_single_text
from transformer.models.model import Variables
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk_errors import refuse_unwritable_file
from transformer.storage.paths import parse_path
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.config import config_hash
from transformer.training.run_loading import load_run

_HEIGHT = 820  # pixels of the frame in a notebook, until its page says how high it is
# The frame cannot be measured from outside: its page sends its height at every change and when asked (frame_height.js).
_FOLLOW_HEIGHT = (
    "const frame = this; window.addEventListener('message', (event) => {"
    "const height = event.source === frame.contentWindow &amp;&amp; event.data?.headwiseHeight;"
    "if (height > 0) frame.style.height = height + 'px'; });"
    "frame.contentWindow.postMessage('height', '*');"
)


@dataclasses.dataclass(frozen=True)
class AttentionPage:
    """A self-contained HTML page that shows attention maps.

    Attributes:
        title: The title.
        html: The HTML text.
        path: The file that it was written to, if it was.
    """

    title: str
    html: str = dataclasses.field(repr=False)
    path: Path | None = None

    def save(self, path: str | Path | None = None) -> "AttentionPage":
        """Write the page to a file and print its path.

        Args:
            path: The file, by default a new one in a temporary directory.

        Returns:
            The page with its `path`.

        Raises:
            UserError: If the file cannot be written.
        """
        file = Path(tempfile.mkdtemp(prefix="headwise-")) / "look.html" if path is None else parse_path(path)
        with refuse_unwritable_file(file, "page"):
            write_page(file.absolute(), self.html)
        print(f"Open this page in a browser: {file.resolve()}")
        return dataclasses.replace(self, path=file.resolve())

    def display_or_save(self, path: str | Path | None = None) -> "AttentionPage":
        """Return the page as it is in a notebook, which displays it; elsewhere, or if `path` is given, `save` it."""
        return self if path is None and in_notebook() else self.save(path)

    def _repr_html_(self) -> str:
        """Return the page in a sandboxed frame as high as it, where it may run scripts and offer downloads, no more."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'title="{html.escape(self.title)}" style="width:100%;height:{_HEIGHT}px;border:0" '
            f'onload="{_FOLLOW_HEIGHT}"></iframe>'
        )


def in_notebook() -> bool:
    """Return whether the code runs in a notebook, which displays what a cell returns."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def write_checkpoint_report(
    run: RunDirectory, budget: int = DEFAULT_BUDGET, data_dir: str | None = None, trusted: Collection[str] = ()
) -> Path:
    """Compute the maps of a run's newest undamaged checkpoint and write them as the run's `report.html`.

    Args:
        run: The run directory.
        budget: The largest size of the page in bytes.
        data_dir: The directory of the task's data; by default the config's.
        trusted: Dotted paths of your own modules that the run's config may name as code.

    Returns:
        The path of the page.

    Raises:
        UserError: If the run has no checkpoint, its data are missing, its model has no attention, or `budget` is too
            small.
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
        labels, hashed = task.axis_labels(model.sites), config_hash(experiment)
        store_single_text(maps, model.sites, labels, look, experiment.maps, hashed, int(state.step))
        return write_report(run.path, budget, maps=maps)
