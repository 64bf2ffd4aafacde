"""What is measured of translations: BLEU, exact match, and the alignment that cross-attention shows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import sacrebleu

from transformer.attention.capture import Capture
from transformer.data.batches import EncodedPairs, OneEpoch, TokenBatches
from transformer.data.datasets.translation import Pair
from transformer.data.tokenizer import BEGIN, END, PAD, Tokenizer
from transformer.decode.beam import Beam
from transformer.decode.generate import Chooser, Tokens, generate
from transformer.decode.greedy import Greedy
from transformer.tasks.alignment import (
    alignment_error_rate,
    attention_links,
    diagonal_links,
    word_weights,
)
from transformer.tasks.contract import Batch, Evaluation, Report, View
from transformer.tasks.translation_data import Split, TranslationConfig, words_of

SPECIAL_TOKENS = Tokens(pad=PAD, begin=BEGIN, end=END)
CROSS = "decoder/cross"


def chooser(config: TranslationConfig) -> Chooser:
    """Greedy for one beam, else beam search."""
    return Greedy() if config.beams == 1 else Beam(config.beams, config.length_penalty)


def bleu(
    outputs: Sequence[str], references: Sequence[str], tokenizer: str, lowercase: bool
) -> tuple[float, str]:
    """Corpus BLEU by sacreBLEU (Post 2018), and its signature."""
    # force: text that is tokenised already is scored as such on purpose, and the signature says it.
    metric = sacrebleu.metrics.BLEU(tokenize=tokenizer, lowercase=lowercase, force=True)
    score = metric.corpus_score(list(outputs), [list(references)])
    return score.score, str(metric.get_signature())


def translation_report(
    config: TranslationConfig, pairs: Sequence[Pair], outputs: Sequence[str], *, shown: int
) -> Report:
    """BLEU and exact match of all pairs, of each language and of each kind; the first `shown` as samples."""
    groups: dict[str, list[int]] = {"": list(range(len(pairs)))}
    for index, pair in enumerate(pairs):
        groups.setdefault(f"_{pair.language}", []).append(index)
        if pair.kind is not None:
            groups.setdefault(f"_{pair.language}_{pair.kind}", []).append(index)
    if len({pair.language for pair in pairs}) == 1 and len(groups) == 2:
        groups = {"": groups[""]}
    scalars, signature = {}, ""
    for suffix, members in groups.items():
        found = [outputs[i] for i in members]
        truth = [pairs[i].target for i in members]
        score, signature = bleu(found, truth, config.bleu_tokenizer, config.bleu_lowercase)
        scalars[f"bleu{suffix}"] = score
        scalars[f"exact_match{suffix}"] = float(np.mean([a == b for a, b in zip(found, truth, strict=True)]))
    samples = [
        {
            "source": pairs[i].source,
            "target": pairs[i].target,
            "output": outputs[i],
            "language": pairs[i].language,
        }
        for i in range(min(shown, len(pairs)))
    ]
    return Report(scalars, samples, note=f"{len(pairs)} sentences, BLEU {signature}")


def translation_evaluation(
    config: TranslationConfig,
    tokenizer: Tokenizer,
    split: Split,
    batches: OneEpoch,
    *,
    shown: int,
    at_end: bool = False,
) -> Evaluation:
    """Translate a split and compare with its references; a source too long for every batch counts as empty."""
    chosen, longest = chooser(config), max(config.lengths)

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, dict]:
        source = jnp.asarray(batch["source"])
        length = min(source.shape[1] + config.extra_length, longest)
        rollout = generate(
            view.model,
            view.variables,
            {"source": source},
            chooser=chosen,
            length=length,
            tokens=SPECIAL_TOKENS,
        )
        best_BxT = jnp.pad(rollout.tokens[:, 0], ((0, 0), (0, longest - length)), constant_values=PAD)
        return {}, {"index": batch["index"], "tokens": best_BxT}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
        outputs = [""] * len(split.pairs)
        for index, tokens in zip(rows["index"], rows["tokens"], strict=True):
            if index >= 0:
                outputs[index] = tokenizer.decode(tokens)
        return translation_report(config, split.pairs, outputs, shown=shown)

    return Evaluation("translation", split.name, batches, step, finish, at_end, config.evaluated_parameters)


def alignment_evaluation(
    config: TranslationConfig, tokenizer: Tokenizer, validation: Split, test: Split
) -> Evaluation:
    """The error rate of the alignment that one head of cross-attention shows, references given.

    The head is the best on the validation pairs; its error is reported on the test pairs, beside the diagonal's.
    Pairs without known links, or too long for every batch, are left out.
    """
    longest = max(config.lengths)
    kept, also = _linked(validation, longest), _linked(test, longest)
    pairs = [*kept.pairs, *also.pairs]
    encoded = EncodedPairs(
        [*kept.encoded.sources, *also.encoded.sources], [*kept.encoded.targets, *also.encoded.targets]
    )
    batches = TokenBatches(encoded, lengths=(longest,), tokens=config.tokens_per_batch, seed=None)

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, dict]:
        inputs = {name: jnp.asarray(batch[name]) for name in ("source", "target")}
        _, aux = view.model.apply(view.variables, inputs, train=False, capture=Capture((CROSS,)))
        weights_LxBxHxTxS = aux.maps[CROSS].weights
        return {}, {"index": batch["index"], "weights": jnp.moveaxis(weights_LxBxHxTxS, 0, 1)}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
        words = [
            (words_of(tokenizer.pieces(source)), words_of(tokenizer.pieces(target)))
            for source, target in zip(encoded.sources, encoded.targets, strict=True)
        ]
        diagonal = [diagonal_links(max(s) + 1, max(t) + 1) for s, t in words]
        _, layers, heads = rows["weights"].shape[:3]
        found: dict[tuple[int, int], list] = {
            (x, y): [set()] * len(pairs) for x in range(layers) for y in range(heads)
        }
        for index, weights_LxHxTxS in zip(rows["index"], rows["weights"], strict=True):
            if index >= 0:
                for layer, head in found:
                    linked = attention_links(word_weights(weights_LxHxTxS[layer, head], *words[index]))
                    found[layer, head][index] = linked
        known = [pair.links for pair in pairs]
        cut = len(kept.pairs)
        errors = {head: alignment_error_rate(links[:cut], known[:cut]) for head, links in found.items()}
        best = min(errors, key=errors.__getitem__)
        return Report(
            {
                "alignment_error_rate": alignment_error_rate(found[best][cut:], known[cut:]),
                "alignment_error_rate_diagonal": alignment_error_rate(diagonal[cut:], known[cut:]),
                "alignment_error_rate_validation": errors[best],
                "alignment_layer": best[0],
                "alignment_head": best[1],
            },
            note=f"layer {best[0]}, head {best[1]}, chosen on {cut} validation pairs; {len(pairs) - cut} test pairs",
        )

    return Evaluation(
        "alignment", test.name, OneEpoch(batches), step, finish, True, config.evaluated_parameters
    )


def _linked(split: Split, longest: int) -> Split:
    """The pairs whose links are known and whose sides fit `longest`."""
    sides = zip(split.pairs, split.encoded.sources, split.encoded.targets, strict=True)
    fits = [pair.links is not None and max(len(s), len(t)) <= longest for pair, s, t in sides]
    return split.part([i for i, kept in enumerate(fits) if kept])
