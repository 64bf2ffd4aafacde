"""Measures of captions: BLEU of one to four words, whole captions, and where attention lies when a thing is named."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import sacrebleu
from jaxtyping import Array, Int

from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, between
from transformer.data.scenes import SceneKind
from transformer.tasks.contract import Batch, EvaluationStep, Report, View

# The axes of the maps that are measured: words of a caption against places of a picture.
LOOKED = ("target", "grid")
# What `named` holds at the words that name no thing.
NO_CELL = -1
_MASS, _PENALTY = "mass/", "penalty/"


def bleu(outputs: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], str]:
    """`bleu_1` to `bleu_4` of a corpus, in percent, of words as they stand; and how sacreBLEU counted them.

    BLEU-n = BP exp((1/n) sum_{m <= n} log p_m) (Papineni et al. 2002, section 2.3), nothing smoothed.
    """
    scores, signature = {}, ""
    for order in range(1, 5):
        # force: no warning that the text is tokenised already.
        metric = sacrebleu.metrics.BLEU(tokenize="none", smooth_method="none", max_ngram_order=order, force=True)
        scores[f"bleu_{order}"] = metric.corpus_score(list(outputs), [list(references)]).score
        signature = str(metric.get_signature())
    return scores, signature


def caption_report(outputs: Sequence[str], references: Sequence[str], *, shown: int) -> Report:
    """The share of captions that are the reference word for word, BLEU, and the first `shown` to read."""
    scores, signature = bleu(outputs, references)
    pairs = list(zip(outputs, references, strict=True))
    exact = float(np.mean([output == reference for output, reference in pairs]))
    samples = [{"target": reference, "output": output} for output, reference in pairs[:shown]]
    return Report({"exact_match": exact, **scores}, samples, note=f"{len(pairs)} captions, BLEU {signature}")


def cells_of(axis: Axis, kind: SceneKind) -> Int[np.ndarray, " K"]:
    """The cell in which the middle of each place of a grid lies; `NO_CELL` for positions that are no place."""
    if axis.shape is None:
        raise ValueError(f"the axis {axis.name!r} of kind {axis.kind.value} has no shape: it is no grid")
    row, column = (
        np.clip((axis.offset + axis.stride * (np.arange(count) + 0.5)) // kind.pixels, 0, kind.side - 1)
        for count in axis.shape
    )
    cells = (kind.side * row[:, None] + column).astype(np.int32).ravel()
    return np.concatenate([np.full(axis.leading, NO_CELL, np.int32), cells])


def noun_mass(weights_LxBxHxTxK: Array, named_BxT: Array, cells_K: Array) -> Array:
    """For each layer and head [L, H] the sum, over all nouns, of the attention within the cells that they name."""
    inside_BxTxK = (named_BxT[..., None] == cells_K) & (named_BxT != NO_CELL)[..., None]
    return jnp.sum(jnp.where(inside_BxTxK[None, :, None], weights_LxBxHxTxK, 0), axis=(1, 3, 4))


def doubly_stochastic(weights_LxBxHxTxK: Array, counts_BxT: Array) -> Array:
    """For each layer and head the sum over examples of sum_i (1 - sum_t w_ti)^2 (Xu et al. 2015, equation 14)."""
    over_words_LxBxHxK = jnp.sum(jnp.where(counts_BxT[None, :, None, :, None], weights_LxBxHxTxK, 0), axis=3)
    return jnp.sum(jnp.square(1 - over_words_LxBxHxK), axis=(1, 3))


def looking_step(kind: SceneKind, inputs: Callable[[Batch], dict[str, Array]], pad: int) -> EvaluationStep:
    """The step that sums what attention does at the words of the true captions, `named` saying which are nouns."""

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, None]:
        sites = between(view.model.sites, *LOOKED)
        capture = Capture(tuple(site.name for site in sites))
        _, aux = view.model.apply(view.variables, inputs(batch), train=False, capture=capture)
        named_BxT, counts_BxT = jnp.asarray(batch["named"]), jnp.asarray(batch["labels"]) != pad
        sums: dict[str, Array] = {"nouns": jnp.sum(named_BxT != NO_CELL), "examples": jnp.int32(len(named_BxT))}
        for site in sites:
            weights = aux.maps[site.name].weights
            assert weights is not None
            sums[_MASS + site.name] = noun_mass(weights, named_BxT, jnp.asarray(cells_of(site.key, kind)))
            sums[_PENALTY + site.name] = doubly_stochastic(weights, counts_BxT)
        return sums, None

    return step


def looking_report(sums: Mapping[str, np.ndarray], rows: object) -> Report:
    """`noun_mass`, its mean over nouns, and `doubly_stochastic`, its mean over examples, of the head of most mass."""
    masses = {
        (name.removeprefix(_MASS), *place): float(of_site[place]) / max(float(sums["nouns"]), 1)
        for name, of_site in sums.items()
        if name.startswith(_MASS)
        for place in np.ndindex(np.shape(of_site))
    }
    site, layer, head = best = max(masses, key=masses.__getitem__)
    penalty = float(sums[_PENALTY + site][layer, head]) / float(sums["examples"])
    return Report(
        {"noun_mass": masses[best], "doubly_stochastic": penalty},
        note=f"{site}, layer {layer}, head {head}; {int(sums['nouns'])} nouns of {int(sums['examples'])} captions",
    )
