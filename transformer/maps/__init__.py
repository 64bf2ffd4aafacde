"""Attention maps of a run: their store, the page that shows them, and named arrays of them."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer.maps.run_maps import RunMaps


def open(run: str | Path) -> "RunMaps":  # read as transformer.maps.open(run)
    """Open the stored maps of a run, for notebooks.

    Args:
        run: The run directory.

    Returns:
        The maps: `weights` and `statistics` as labeled arrays, `show` as an image.

    Raises:
        UserError: If the run has no maps, or its store has an unknown version.

    Example:
        ```python
        import transformer.maps

        maps = transformer.maps.open("runs/demo")
        maps.weights("decoder/cross").isel(step=-1, layer=0, head=1)  # one head's maps of all probe examples
        ```
    """
    from transformer.maps.run_maps import open_run

    return open_run(run)
