"""Caption metrics: BLEU-1 to BLEU-4, exact match, and the attention mass on the cell that a noun names."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import sacrebleu
from jaxtyping import Array, Bool, Float, Int

from transformer.data.synthetic_scenes import SceneGenerator
from transformer.tasks.attention_mass import (
    NO_CELL,
    attention_mass_sums,
    attention_mass_within,
    capture_weights,
    cell_of_patch,
    head_with_most_mass,
)
from transformer.tasks.sequence_generation_base import model_inputs, predicted_step_mask
from transformer.tasks.task import Batch, EvaluationReport, EvaluationStep, StateView

_PENALTY = "penalty/"


def corpus_bleu(outputs: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], str]:
    """Compute `bleu_1` to `bleu_4` of a corpus, in percent, over whitespace tokens.

    BLEU-n = BP exp((1/n) sum_{m <= n} log p_m) (Papineni et al. 2002, section 2.3), without smoothing.

    Args:
        outputs: The decoded texts.
        references: One reference for each text.

    Returns:
        The scores by name, and sacreBLEU's signature.
    """
    scores, signature = {}, ""
    for order in range(1, 5):
        # force: no warning that the text is tokenized already.
        metric = sacrebleu.metrics.BLEU(tokenize="none", smooth_method="none", max_ngram_order=order, force=True)
        scores[f"bleu_{order}"] = metric.corpus_score(list(outputs), [list(references)]).score
        signature = str(metric.get_signature())
    return scores, signature


def caption_report(outputs: Sequence[str], references: Sequence[str], *, num_samples: int) -> EvaluationReport:
    """Report exact match and BLEU of captions.

    Args:
        outputs: The captions, tokens separated by spaces.
        references: The true captions.
        num_samples: The number of captions to include as samples.

    Returns:
        The report.
    """
    scores, signature = corpus_bleu(outputs, references)
    pairs = list(zip(outputs, references, strict=True))
    exact = float(np.mean([output == reference for output, reference in pairs]))
    samples = [{"target": reference, "output": output} for output, reference in pairs[:num_samples]]
    return EvaluationReport({"exact_match": exact, **scores}, samples, note=f"{len(pairs)} captions, BLEU {signature}")


def named_cell_mask(named_BxT: Int[Array, "B T"], cells_K: Int[np.ndarray, " K"]) -> Bool[Array, "B T K"]:
    """Return which grid positions lie in the cell that each word names.

    Args:
        named_BxT: The cell that each word names, or `NO_CELL`.
        cells_K: The cell of each grid position.

    Returns:
        A mask [batch, word, grid position], False throughout for words that name no cell.
    """
    return (named_BxT[..., None] == cells_K) & (named_BxT != NO_CELL)[..., None]


def doubly_stochastic_penalty(
    weights_LxBxHxTxK: Float[Array, "L B H T K"], counts_BxT: Bool[Array, "B T"]
) -> Float[Array, "L H"]:
    """Compute the penalty sum_i (1 - sum_t w_ti)^2 of each layer and head (Xu et al. 2015, equation 14).

    Args:
        weights_LxBxHxTxK: The weights [layer, batch, head, word, grid position].
        counts_BxT: Which words count.

    Returns:
        The penalty [layer, head], summed over the batch.
    """
    over_words_LxBxHxK = jnp.sum(jnp.where(counts_BxT[None, :, None, :, None], weights_LxBxHxTxK, 0), axis=3)
    return jnp.sum(jnp.square(1 - over_words_LxBxHxK), axis=(1, 3))


def attention_mass_step(scene_generator: SceneGenerator) -> EvaluationStep:
    """Return the evaluation step that sums attention mass at the nouns of the true captions."""

    def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, None]:
        named_BxT, counts_BxT = jnp.asarray(batch["named"]), predicted_step_mask(batch)
        weights = capture_weights(view, model_inputs(batch))
        cells = {
            site: cell_of_patch(site.key, side=scene_generator.grid_size, size=scene_generator.image_size)
            for site in weights
        }
        masses = {
            site: attention_mass_within(weights[site], named_cell_mask(named_BxT, cells[site])) for site in weights
        }
        penalties = {_PENALTY + site.name: doubly_stochastic_penalty(weights[site], counts_BxT) for site in weights}
        counts = {"nouns": jnp.sum(named_BxT != NO_CELL), "examples": jnp.int32(len(named_BxT))}
        return {**counts, **attention_mass_sums(masses), **penalties}, None

    return step


def attention_mass_report(sums: Mapping[str, np.ndarray], rows: object) -> EvaluationReport:
    """Report the head with the most mass on the named cells.

    `attention_mass/noun` is its mean over nouns, `doubly_stochastic` its mean penalty over examples.
    """
    mass, site, layer, head = head_with_most_mass(sums)
    penalty = float(sums[_PENALTY + site][layer, head]) / float(sums["examples"])
    return EvaluationReport(
        {"attention_mass/noun": mass / max(float(sums["nouns"]), 1), "doubly_stochastic": penalty},
        note=f"{site}, layer {layer}, head {head}; {int(sums['nouns'])} nouns of {int(sums['examples'])} captions",
    )
