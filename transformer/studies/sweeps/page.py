"""The page of a sweep: one HTML file that is rewritten while the sweep runs and reloads itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer.pages.template import render_scripted_page, with_shared_styles
from transformer.storage.paths import storage_of
from transformer.studies.ablations.page import FOLDER
from transformer.studies.sweeps.sweep_page_data import SweepInfo, TrialCurves, sweep_page_data
from transformer.studies.sweeps.sweep_progress import TrialStatus
from transformer.studies.sweeps.trial_store import TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial

NAME = "sweep.html"
STYLES = ("study.css", "sweep.css")
ENTRY = "sweep.js"
_REFRESH_SECONDS = 10  # of the page of a running sweep


def render(result: Mapping[str, Any]) -> str:
    """Render the page of a result of `transformer.studies.sweeps.sweep_page_data.sweep_page_data`."""
    return render_scripted_page(
        f"{result['name']} · sweep",
        FOLDER.read("sweep.html"),
        with_shared_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY),
        result,
        refresh_seconds=_REFRESH_SECONDS if result["state"] == "running" else None,
    )


class SweepPage:
    """The page of one sweep in its directory.

    Args:
        trial_store: The trials of the sweep.
        about: The sweep's name, metric and command.
        retrain_command: Returns the command that trains a trial again.
    """

    def __init__(self, trial_store: TrialStore, about: SweepInfo, retrain_command: Callable[[Trial], str]):
        self._trial_store, self._about, self._retrain_command = trial_store, about, retrain_command
        self._commands: dict[str, str] = {}  # of the trials that are done
        self._curves = TrialCurves(trial_store, about.metric)
        self._last_page = ""
        self.path = trial_store.path / NAME

    def write(self, rows: Sequence[TrialStatus], over: bool) -> None:
        """Write the page if it has changed.

        Args:
            rows: The current status of the trials.
            over: Whether the sweep's command ends, so that the page no longer reloads itself.
        """
        for row in rows:
            if row.state == TrialState.DONE and row.trial.name not in self._commands:
                self._commands[row.trial.name] = self._retrain_command(row.trial)
        page = render(sweep_page_data(self._about, self._trial_store, rows, self._curves, self._commands, over=over))
        if page != self._last_page:
            storage_of(self.path).replace(self.path, page.encode())
            self._last_page = page
