"""Attention maps of a run: the store they are kept in, the page they are looked at on, and named arrays of them."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer.maps.notebook import RunMaps


def open(run: str | Path) -> "RunMaps":  # read as transformer.maps.open(run)
    """The maps of the run in a directory, for notebooks: `weights`, `statistics` and `show`.

    Errors: UserError where there are none, or they were written by an unknown version.
    """
    from transformer.maps.notebook import open_run

    return open_run(run)
