"""Measures of strings that were read: whole strings, glyphs, and how much attention lies on the glyph that is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, between
from transformer.tasks.contract import Batch, EvaluationStep, Report, View

# The axes of the maps that are measured: glyphs of a string against places of a picture.
LOOKED = ("target", "grid")
_MASS = "mass/"


def inside(axis: Axis, batch: Batch) -> Bool[Array, "B T K"]:
    """Whether each place of a grid is one of a glyph's: its middle lies in the glyph's square, or the glyph's in it.

    Of the glyphs `batch` has `middles` [B, T, 2] in pixels, x to the right and y downwards, `turns` in radians and
    `sides`; a step without a glyph has the side 0 and no place.

    Errors: ValueError for an axis that is no grid.
    """
    if axis.shape is None:
        raise ValueError(f"the axis {axis.name!r} of kind {axis.kind.value} has no shape: it is no grid")
    y_V, x_W = (axis.offset + axis.stride * (np.arange(count) + 0.5) for count in axis.shape)
    places_Kx2 = np.stack([np.tile(x_W, len(y_V)), np.repeat(y_V, len(x_W))], axis=-1)
    middles_BxTx2, turns_BxT, sides_BxT = (jnp.asarray(batch[name]) for name in ("middles", "turns", "sides"))
    away = jnp.asarray(places_Kx2, jnp.float32) - middles_BxTx2[:, :, None]
    cos, sin = jnp.cos(turns_BxT)[..., None], jnp.sin(turns_BxT)[..., None]
    along, down = cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]
    half = sides_BxT[..., None] / 2
    covered = (jnp.abs(along) <= half) & (jnp.abs(down) <= half)
    holds = (jnp.abs(away) <= axis.stride / 2).all(axis=-1)
    found = (covered | holds) & (half > 0)
    return jnp.pad(found, ((0, 0), (0, 0), (axis.leading, 0)))


def glyph_mass(weights_LxBxHxTxK: Array, inside_BxTxK: Array) -> Float[Array, "L H"]:
    """For each layer and head the sum, over all glyphs, of the attention on a glyph's own places."""
    return jnp.sum(jnp.where(inside_BxTxK[None, :, None], weights_LxBxHxTxK, 0), axis=(1, 3, 4))


def looking_step(inputs: Callable[[Batch], dict[str, Array]]) -> EvaluationStep:
    """The step that sums what attention does when the glyphs of the true strings are read."""

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, None]:
        sites = between(view.model.sites, *LOOKED)
        capture = Capture(tuple(site.name for site in sites))
        _, aux = view.model.apply(view.variables, inputs(batch), train=False, capture=capture)
        sums: dict[str, Array] = {"glyphs": jnp.sum(jnp.asarray(batch["sides"]) > 0)}
        for site in sites:
            weights = aux.maps[site.name].weights
            assert weights is not None
            sums[_MASS + site.name] = glyph_mass(weights, inside(site.key, batch))
        return sums, None

    return step


def looking_report(sums: Mapping[str, np.ndarray], rows: object) -> Report:
    """`glyph_mass`, its mean over glyphs, of the head that has most of it."""
    masses = {
        (name.removeprefix(_MASS), *place): float(of_site[place]) / max(float(sums["glyphs"]), 1)
        for name, of_site in sums.items()
        if name.startswith(_MASS)
        for place in np.ndindex(np.shape(of_site))
    }
    site, layer, head = best = max(masses, key=masses.__getitem__)
    note = f"{site}, layer {layer}, head {head}; {int(sums['glyphs'])} glyphs"
    return Report({"glyph_mass": masses[best]}, note=note)


def edits(output: str, reference: str) -> int:
    """The fewest glyphs to leave out, put in or exchange that make one string of the other (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))
    for number, glyph in enumerate(output, 1):
        above, row = row, [number]
        for column, wanted in enumerate(reference):
            row.append(min(above[column] + (glyph != wanted), above[column + 1] + 1, row[column] + 1))
    return row[-1]


def string_report(outputs: Sequence[str], references: Sequence[str], *, shown: int) -> Report:
    """The share of strings that are right, of glyphs (1 - edits / glyphs of the references), and `shown` to read."""
    pairs = list(zip(outputs, references, strict=True))
    exact = float(np.mean([output == reference for output, reference in pairs]))
    glyphs = 1 - sum(edits(*pair) for pair in pairs) / max(sum(map(len, references)), 1)
    samples = [{"target": reference, "output": output} for output, reference in pairs[:shown]]
    return Report({"exact_match": exact, "character_accuracy": glyphs}, samples, note=f"{len(pairs)} strings")
