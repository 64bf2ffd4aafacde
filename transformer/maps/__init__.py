"""Attention maps of a run: their store, the page that shows them, and named arrays of them."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer.maps.run_maps import RunMaps


def open(run: str | Path) -> "RunMaps":  # read as transformer.maps.open(run)
    """The maps of the run in a directory, for notebooks: `weights`, `statistics` and `show`.

    Raises:
        UserError: For a run without maps, or with a store of an unknown version.
    """
    from transformer.maps.run_maps import open_run

    return open_run(run)
