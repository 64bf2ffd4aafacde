"""Metrics of recognized strings: exact match, character accuracy, and the attention mass on the glyph being read."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer.attention.sites import Axis
from transformer.tasks.attention_mass import (
    attention_mass_sums,
    attention_mass_within,
    capture_weights,
    head_with_most_mass,
    patch_centers,
)
from transformer.tasks.sequence_generation_base import model_inputs
from transformer.tasks.task import Batch, EvaluationReport, StateView


def glyph_mask(axis: Axis, batch: Batch) -> Bool[Array, "B T K"]:
    """Return which positions of a grid belong to each glyph.

    A position belongs to a glyph if its center lies in the glyph's square, or the glyph's center in its patch.

    Args:
        axis: The grid axis.
        batch: The glyphs' `middles` [B, T, 2] in pixels, x to the right and y downwards; `turns` [B, T] in radians; and
            `sides` [B, T] in pixels, 0 for a step without a glyph.

    Raises:
        ValueError: If the axis is not a grid.
    """
    y_Y, x_X = patch_centers(axis)
    patch_centers_Kx2 = np.stack([np.tile(x_X, len(y_Y)), np.repeat(y_Y, len(x_X))], axis=-1)
    middles_BxTx2, turns_BxT, sides_BxT = (jnp.asarray(batch[name]) for name in ("middles", "turns", "sides"))
    offsets_BxTxKx2 = jnp.asarray(patch_centers_Kx2, jnp.float32) - middles_BxTx2[:, :, None]
    cos, sin = jnp.cos(turns_BxT)[..., None], jnp.sin(turns_BxT)[..., None]
    right_BxTxK, down_BxTxK = (
        cos * offsets_BxTxKx2[..., 0] + sin * offsets_BxTxKx2[..., 1],
        cos * offsets_BxTxKx2[..., 1] - sin * offsets_BxTxKx2[..., 0],
    )
    half_sides_BxTx1 = sides_BxT[..., None] / 2
    covered = (jnp.abs(right_BxTxK) <= half_sides_BxTx1) & (jnp.abs(down_BxTxK) <= half_sides_BxTx1)
    contains_middle_BxTxK = (jnp.abs(offsets_BxTxKx2) <= axis.stride / 2).all(axis=-1)
    mask_BxTxK = (covered | contains_middle_BxTxK) & (half_sides_BxTx1 > 0)
    return jnp.pad(mask_BxTxK, ((0, 0), (0, 0), (axis.num_leading_positions, 0)))


def sum_glyph_attention_mass(view: StateView, batch: Batch, key: Any) -> tuple[dict, None]:
    """Sum the attention mass on the glyphs while the true strings are read: the step of an evaluation."""
    masses = {
        site: attention_mass_within(weights, glyph_mask(site.key, batch))
        for site, weights in capture_weights(view, model_inputs(batch)).items()
    }
    return {"glyphs": jnp.sum(jnp.asarray(batch["sides"]) > 0), **attention_mass_sums(masses)}, None


def glyph_mass_report(sums: Mapping[str, np.ndarray], rows: object) -> EvaluationReport:
    """Report `glyph_mass`, the mean over glyphs of the attention mass of the head that has the most."""
    mass, site, layer, head = head_with_most_mass(sums)
    note = f"{site}, layer {layer}, head {head}; {int(sums['glyphs'])} glyphs"
    return EvaluationReport({"glyph_mass": mass / max(float(sums["glyphs"]), 1)}, note=note)


def edit_distance(output: str, reference: str) -> int:
    """Compute the Levenshtein distance: the fewest insertions, deletions and substitutions (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))
    for number, glyph in enumerate(output, 1):
        above, row = row, [number]
        for column, reference_glyph in enumerate(reference):
            row.append(min(above[column] + (glyph != reference_glyph), above[column + 1] + 1, row[column] + 1))
    return row[-1]


def string_report(outputs: Sequence[str], references: Sequence[str], *, num_samples: int) -> EvaluationReport:
    """Report the share of correct strings, and `character_accuracy` = 1 - edits / characters of the references.

    Args:
        outputs: The recognized strings.
        references: The true strings.
        num_samples: The number of samples.
    """
    pairs = list(zip(outputs, references, strict=True))
    exact = float(np.mean([output == reference for output, reference in pairs]))
    glyphs = 1 - sum(edit_distance(*pair) for pair in pairs) / max(sum(map(len, references)), 1)
    samples = [{"target": reference, "output": output} for output, reference in pairs[:num_samples]]
    return EvaluationReport({"exact_match": exact, "character_accuracy": glyphs}, samples, note=f"{len(pairs)} strings")
