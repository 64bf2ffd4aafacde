"""The stored maps of a run in a notebook: labeled arrays, and images of them."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.capture_plan import statistic_names
from transformer.maps.store import MapStore
from transformer.storage.paths import parse_path

if TYPE_CHECKING:
    import xarray

SHOWN_STEPS = 40  # of an image with a slider


def coordinate(names: Sequence[str]) -> list[int] | list[str]:
    """Return layers or heads as a coordinate: numbers where all names are, so that `.sel(layer=0)` selects one."""
    numbers = [int(name) for name in names if name.isdecimal()]
    return numbers if [str(number) for number in numbers] == list(names) else list(names)


class RunMaps:
    """The stored attention maps of a run: `weights` and `statistics` as labeled arrays, `show` as an image.

    Reopen a run that is still training to see its new steps.
    """

    def __init__(self, store: MapStore):
        self.store = store

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the attention modules."""
        return tuple(site.name for site in self.store.sites)

    @property
    def steps(self) -> tuple[int, ...]:
        """The training steps whose maps are stored."""
        return self.store.steps

    def weights(
        self, site: str, *, steps: Sequence[int] | None = None, example: int = 0, level: str | None = None
    ) -> "xarray.DataArray":
        """Return the attention weights of one example as a labeled array.

        Args:
            site: The name of the attention module.
            steps: The training steps, all by default.
            example: The index of the example in the probe batch.
            level: The resolution, by default the finest that is stored. A cell of a pooled map is the largest weight of
                a block of positions, labeled by the first of them.

        Returns:
            The weights [step, layer, head, query, key], with the tokens as coordinates.

        Raises:
            UserError: If the module, a step, the example or the level is not stored, or xarray is not installed.
        """
        owner, titles = self.store.site(site), self.store.labels.titles
        if not 0 <= example < len(titles):
            raise UserError(f"example={example} is not in the map store: it has 0 ... {len(titles) - 1}")
        selected_steps = self.store.steps if steps is None else tuple(steps)
        if not selected_steps:
            raise UserError(f"no steps to show: the map store has {list(self.store.steps)}")
        levels = {stored.name: stored for stored in self.store.levels(site)}
        name = list(levels)[-1] if level is None else level
        stored = [self.store.read_quantized(site, step, name).weights()[example] for step in selected_steps]
        blocks = levels[name].query_block, levels[name].key_block
        tokens = [
            self.store.labels.tokens[axis.name][example][::block]
            for axis, block in zip((owner.query, owner.key), blocks, strict=True)
        ]
        weights = np.array(stored)[..., : len(tokens[0]), : len(tokens[1])]
        return import_xarray().DataArray(
            weights,
            dims=("step", "layer", "head", "query", "key"),
            coords={
                "step": list(selected_steps),
                "layer": coordinate(owner.layers),
                "head": coordinate(owner.heads),
                "query_token": ("query", list(tokens[0])),
                "key_token": ("key", list(tokens[1])),
            },
            name="weight",
            attrs={"site": site, "example": titles[example], "level": name},
        )

    def statistics(self, site: str) -> "xarray.DataArray":
        """Return every statistic of every head as a labeled array.

        Args:
            site: The name of the attention module.

        Returns:
            The values [statistic, step, example, layer, head]; NaN where a statistic is undefined.

        Raises:
            UserError: If the module is unknown, or xarray is not installed.
        """
        owner, (names, values) = self.store.site(site), self.store.statistics(site)
        return import_xarray().DataArray(
            np.moveaxis(values, -1, 0),
            dims=("statistic", "step", "example", "layer", "head"),
            coords={
                "statistic": list(names),
                "step": list(self.store.steps),
                "layer": coordinate(owner.layers),
                "head": coordinate(owner.heads),
                "title": ("example", list(self.store.labels.titles)),
            },
            name="value",
            attrs={"site": site},
        )

    def show(self, site: str, *, example: int = 0) -> Any:
        """Display every head on one example as an image, one row a layer, with a slider over the steps (treescope).

        Args:
            site: The name of the attention module.
            example: The index of the example in the probe batch.

        Returns:
            The treescope figure, of at most `SHOWN_STEPS` steps.

        Raises:
            UserError: If the module or the example is not stored.
        """
        import treescope

        steps = self.store.steps
        every = max(1, -(-len(steps) // SHOWN_STEPS))
        # Counted from the last step, so that it is always shown.
        weights = self.weights(site, steps=steps[::-every][::-1], example=example)
        return treescope.render_array(
            weights.values,
            sliders=(0,),
            rows=(3, 1),
            columns=(4, 2),
            vmin=0.0,
            vmax=1.0,
            continuous=True,
            around_zero=False,
            axis_labels={axis: f"{name}: {weights.shape[axis]}" for axis, name in enumerate(weights.dims)},
            axis_item_labels={
                0: [f"step {step}" for step in weights.step.values],
                1: [f"layer {layer}" for layer in weights.layer.values],
                2: [f"head {head}" for head in weights["head"].values],
                3: [str(token) for token in weights.query_token.values],
                4: [str(token) for token in weights.key_token.values],
            },
        )

    def __repr__(self) -> str:
        return f"RunMaps({str(self.store.path)!r}, sites={self.sites}, steps={self.steps})"

    def _repr_html_(self) -> str:
        """Return a table of the attention modules, as notebooks display it."""
        head = "".join(f"<th>{name}</th>" for name in ("site", "layers", "heads", "levels", "statistics"))
        rows = "".join(f"<tr>{''.join(map(_table_cell, self._table_row(site)))}</tr>" for site in self.store.sites)
        steps = f"{len(self.steps)} steps" + (f", {self.steps[0]} to {self.steps[-1]}" if self.steps else "")
        examples = f"{len(self.store.labels.titles)} examples"
        return f"<p>Attention maps: {steps}; {examples}</p><table><tr>{head}</tr>{rows}</table>"

    def _table_row(self, site: Site) -> tuple[str, ...]:
        levels = ", ".join(
            f"{level.name} {level.num_queries} × {level.num_keys}" for level in self.store.levels(site.name)
        )
        names = ", ".join(statistic_names(site, self.store.labels))
        return site.name, str(len(site.layers)), str(len(site.heads)), levels, names


def open_run(run: str | Path) -> RunMaps:
    """Open the maps of the run in a directory.

    Raises:
        UserError: If the run has no maps, or its store has an unknown version.
    """
    return RunMaps(MapStore.open_existing(parse_path(run) / "maps"))


def _table_cell(text: str) -> str:
    return f"<td>{html.escape(text)}</td>"


def import_xarray() -> Any:
    """Import xarray, an optional dependency.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import xarray
    except ModuleNotFoundError:
        raise UserError("named arrays need xarray: pip install xarray") from None
    return xarray
