"""The page of a sweep: one HTML file that is written anew while the sweep runs, and then shows itself again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer.pages.template import join_styles, render_scripted_page
from transformer.storage.paths import storage_of
from transformer.studies.ablations.page import FOLDER
from transformer.studies.sweeps.progress import Row
from transformer.studies.sweeps.results import About, Curves, result_of
from transformer.studies.sweeps.trial_store import Ledger, State
from transformer.studies.sweeps.trials import Trial

NAME = "sweep.html"
STYLES = ("study.css", "sweep.css")
ENTRY = "sweep.js"
_REFRESH_SECONDS = 10  # of the page of a running sweep


def render(result: Mapping[str, Any]) -> str:
    """The page of a result of `transformer.studies.sweeps.results.result_of`."""
    return render_scripted_page(
        f"{result['name']} · sweep",
        FOLDER.read("sweep.html"),
        join_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY),
        result,
        refresh_seconds=_REFRESH_SECONDS if result["state"] == "running" else None,
    )


class SweepPage:
    """The page of one sweep in its directory; `again` gives the command that trains a trial again."""

    def __init__(self, ledger: Ledger, about: About, again: Callable[[Trial], str]):
        self._ledger, self._about, self._again = ledger, about, again
        self._commands: dict[str, str] = {}  # of the trials that are done
        self._curves = Curves(ledger, about.metric)
        self._written = ""
        self.path = ledger.path / NAME

    def write(self, rows: Sequence[Row], over: bool) -> None:
        """Write the page of the trials as they are now, unless it says so already; `over`: nobody writes it again."""
        for row in rows:
            if row.state == State.DONE and row.trial.name not in self._commands:
                self._commands[row.trial.name] = self._again(row.trial)
        page = render(result_of(self._about, self._ledger, rows, self._curves, self._commands, over=over))
        if page != self._written:
            storage_of(self.path).replace(self.path, page.encode())
            self._written = page
