"""Translation metrics: BLEU, exact match, and the alignment error rate of cross-attention."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.capture import Capture
from transformer.attention.sites import sites_between
from transformer.data.batches import BucketedPairBatches, EncodedPairs, OneEpoch
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.generation import DecodingStrategy, SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, EvaluationStep, StateView
from transformer.tasks.text_generation import output_vocabulary_size
from transformer.tasks.translation_data import (
    TARGET_OVER_SOURCE,
    TranslationConfig,
    TranslationSplit,
    pad_begin_end_ids,
    word_of_each_piece,
)
from transformer.tasks.translation_decoding import make_coverage_penalty
from transformer.tasks.unknown_words import UnknownWordReplacer

WordPair = tuple[int, int]  # (source word, target word)


def translation_evaluation(
    config: TranslationConfig,
    tokenizer: Tokenizer,
    split: TranslationSplit,
    step: EvaluationStep,
    *,
    num_samples: int,
    at_end: bool = False,
    length_bounds: Sequence[int] = (),
    replacer: UnknownWordReplacer | None = None,
) -> Evaluation:
    """Return an evaluation that translates a split and compares with its references.

    A source too long for every batch counts as an empty translation. With a replacer, the report also has the BLEU
    before its replacements, `bleu_unreplaced`, and the share of words that it replaces, `unknown_words`.

    Args:
        config: The task's config.
        tokenizer: The tokenizer.
        split: The split.
        step: The step of `make_decoding_step`.
        num_samples: The number of samples in the report.
        at_end: Whether it runs only at the end of training.
        length_bounds: Bounds of the groups of source lengths, as in `translation_report`.
        replacer: Replaces the unknown words; the step must have it too.
    """

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        outputs = [""] * len(split.pairs)
        for index, tokens in zip(rows["index"], rows["tokens"], strict=True):
            if index >= 0:
                outputs[index] = tokenizer.decode(tokens)
        if replacer is None:
            return translation_report(
                config, split.pairs, outputs, num_samples=num_samples, length_bounds=length_bounds
            )
        unreplaced, _ = _compute_bleu(config, split.pairs, outputs, range(len(outputs)))
        for index, tokens, positions in zip(rows["index"], rows["tokens"], rows["positions"], strict=True):
            if index >= 0:
                outputs[index] = replacer.decode(split.pairs[index], tokens, positions)
        report = translation_report(config, split.pairs, outputs, num_samples=num_samples, length_bounds=length_bounds)
        share = replacer.unknown_share(rows["tokens"][rows["index"] >= 0])
        return report._replace(scalars={**report.scalars, "bleu_unreplaced": unreplaced, "unknown_words": share})

    batches = evaluation_batches(config, split.encoded)
    return Evaluation("translation", split.name, batches, step, finish, at_end, config.eval_parameters)


def alignment_evaluation(
    config: TranslationConfig, tokenizer: Tokenizer, validation: TranslationSplit, test: TranslationSplit
) -> Evaluation:
    """Return an evaluation of the alignment error rate of the model's attention of target over source.

    The attention is that of teacher forcing. The head with the lowest error rate on the validation pairs, among all
    such attention modules, is chosen; its error rate on the test pairs is reported, together with that of the diagonal.
    Pairs without known links, or too long for every batch, are left out. A model without such attention skips the
    evaluation.

    Args:
        config: The task's config.
        tokenizer: The tokenizer.
        validation: The pairs on which a head is chosen.
        test: The pairs on which it is measured.
    """
    longest = max(config.bucket_lengths)
    validation_linked, test_linked = _select_linked_pairs(validation, longest), _select_linked_pairs(test, longest)
    pairs = [*validation_linked.pairs, *test_linked.pairs]
    encoded = dataclasses.replace(
        validation_linked.encoded,
        sources=[*validation_linked.encoded.sources, *test_linked.encoded.sources],
        targets=[*validation_linked.encoded.targets, *test_linked.encoded.targets],
    )

    def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
        inputs = {name: jnp.asarray(batch[name]) for name in ("source", "target")}
        sites = [site.name for site in sites_between(view.model.sites, *TARGET_OVER_SOURCE)]
        _, aux = view.model.apply(view.variables, inputs, train=False, capture=Capture(tuple(sites)))
        # [layer, example, ...]: examples come first, as in all rows.
        weights = {site: jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), aux.maps[site].weights) for site in sites}
        return {}, {"index": batch["index"], "weights": weights}

    def finish(sums: Any, rows: Mapping[str, Any]) -> EvaluationReport:
        words = [
            (word_of_each_piece(tokenizer.pieces(source)), word_of_each_piece(tokenizer.pieces(target)))
            for source, target in zip(encoded.sources, encoded.targets, strict=True)
        ]
        diagonal = [diagonal_links(max(s) + 1, max(t) + 1) for s, t in words]
        linked: dict[tuple[str, int, int], list] = {
            (site, layer, head): [set()] * len(pairs)
            for site, weights in rows["weights"].items()
            for layer, head in np.ndindex(weights.shape[1:3])
        }
        for row, index in enumerate(rows["index"]):
            if index >= 0:
                for (site, layer, head), links in linked.items():
                    word_weights = word_attention_weights(rows["weights"][site][row, layer, head], *words[index])
                    links[index] = argmax_links(word_weights)
        alignments = [pair.word_alignment for pair in pairs if pair.word_alignment is not None]
        num_validation = len(validation_linked.pairs)
        errors = {
            head: alignment_error_rate(links[:num_validation], alignments[:num_validation])
            for head, links in linked.items()
        }
        best = min(errors, key=errors.__getitem__)
        site, layer, head = best
        return EvaluationReport(
            {
                "alignment_error_rate": alignment_error_rate(
                    linked[best][num_validation:], alignments[num_validation:]
                ),
                "alignment_error_rate_diagonal": alignment_error_rate(
                    diagonal[num_validation:], alignments[num_validation:]
                ),
                "alignment_error_rate_validation": errors[best],
                "alignment_layer": layer,
                "alignment_head": head,
            },
            note=f"{site}, layer {layer}, head {head}, chosen on {num_validation} validation pairs; "
            f"{len(pairs) - num_validation} test pairs",
        )

    return Evaluation(
        "alignment",
        test.name,
        evaluation_batches(config, encoded),
        step,
        finish,
        True,
        config.eval_parameters,
        required_axes=TARGET_OVER_SOURCE,
    )


def translation_report(
    config: TranslationConfig,
    pairs: Sequence[SentencePair],
    outputs: Sequence[str],
    *,
    num_samples: int,
    length_bounds: Sequence[int] = (),
) -> EvaluationReport:
    """Report BLEU and exact match of all pairs and of each language, and exact match of each kind of sentence.

    Args:
        config: The task's config, for the options of BLEU.
        pairs: The sentence pairs.
        outputs: The translations.
        num_samples: The number of samples.
        length_bounds: Bounds of source lengths in words; (4, 8) also reports the pairs whose sources have 1 to 4, 5 to
            8, and 9 or more words.
    """
    all_pairs = tuple(range(len(pairs)))
    score, signature = _compute_bleu(config, pairs, outputs, all_pairs)
    scalars = {"bleu": score, "exact_match": _exact_match(pairs, outputs, all_pairs)}
    languages = _groups(pairs, lambda pair: pair.language)
    if len(languages) > 1:
        for language, members in languages.items():
            scalars[f"bleu/{language}"], _ = _compute_bleu(config, pairs, outputs, members)
            scalars[f"exact_match/{language}"] = _exact_match(pairs, outputs, members)
    for kind, members in _groups(pairs, lambda pair: pair.kind and f"{pair.language}/{pair.kind}").items():
        scalars[f"exact_match/{kind}"] = _exact_match(pairs, outputs, members)
    if length_bounds:
        for length, members in _groups(pairs, lambda pair: _length_name(pair, length_bounds)).items():
            scalars[f"bleu/{length}"], _ = _compute_bleu(config, pairs, outputs, members)
            scalars[f"exact_match/{length}"] = _exact_match(pairs, outputs, members)
    samples = [
        {
            "source": pairs[i].source,
            "target": pairs[i].target,
            "output": outputs[i],
            "language": pairs[i].language,
        }
        for i in range(min(num_samples, len(pairs)))
    ]
    return EvaluationReport(scalars, samples, note=f"{len(pairs)} sentences, BLEU {signature}")


def evaluation_batches(config: TranslationConfig, pairs: EncodedPairs) -> OneEpoch:
    """Return the batches of an evaluation, of one shape, so that it compiles once.

    Without gradients four times the rows of training fit.
    """
    longest = max(config.bucket_lengths)
    batches = BucketedPairBatches(pairs, lengths=(longest,), tokens=4 * config.tokens_per_batch, seed=None)
    return OneEpoch(batches)


def make_decoding_step(
    config: TranslationConfig, tokenizer: Tokenizer, replacer: UnknownWordReplacer | None = None
) -> EvaluationStep:
    """Return the step that decodes a batch: rows of the best `tokens`, and the `index` of each pair.

    With a replacer, the rows also have the `positions` of the source that the tokens attend to.
    """
    strategy = make_decoding_strategy(config)
    decoding = config.decoding
    tokens = SpecialTokens(*pad_begin_end_ids(tokenizer), other_end_ids=decoding.end_ids)

    def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
        inputs = {"source": jnp.asarray(batch["source"])}
        rollout = generate(
            view.model,
            view.variables,
            inputs,
            strategy=strategy,
            length=inputs["source"].shape[1],
            tokens=tokens,
            constraints=decoding.constraints(tokenizer, output_vocabulary_size(view, inputs), begins=True),
            coverage=make_coverage_penalty(view, inputs["source"], tokenizer, config.coverage_penalty),
        )
        rollout = rollout._replace(tokens=tokens.with_one_end(rollout.tokens))
        rows = {"index": batch["index"], "tokens": rollout.tokens[:, 0]}
        if replacer is not None:
            rows["positions"] = replacer.attended_positions(view, inputs["source"], rollout.tokens[:, 0])
        return {}, rows

    return step


def make_decoding_strategy(config: TranslationConfig) -> DecodingStrategy:
    """Return the decoding strategy: greedy for one beam, else beam search."""
    if config.num_beams == 1:
        return GreedySearch()
    return config.decoding.beam_search(config.num_beams, config.length_penalty)


def bleu(outputs: Sequence[str], references: Sequence[str], tokenizer: str, lowercase: bool) -> tuple[float, str]:
    """Compute corpus BLEU with sacreBLEU (Post 2018).

    Args:
        outputs: The translations.
        references: One reference for each.
        tokenizer: The name of sacreBLEU's tokenizer.
        lowercase: Whether case is ignored.

    Returns:
        BLEU, from 0 to 100, and the signature of sacreBLEU.
    """
    from sacrebleu.metrics import BLEU  # with lxml, a tenth of what a mistake in a config waits for

    # force: no warning for text that is tokenized already; the signature states the tokenizer.
    metric = BLEU(tokenize=tokenizer, lowercase=lowercase, force=True)
    score = metric.corpus_score(list(outputs), [list(references)])
    return score.score, str(metric.get_signature())


def word_attention_weights(
    weights_TxS: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> np.ndarray:
    """Convert attention between pieces to attention between words (Zenkel et al. 2019).

    The weights of the pieces of a source word are summed; those of the pieces of a target word are averaged.

    Args:
        weights_TxS: The weights between pieces.
        source_words: The word of each source piece; -1 for a piece of no word.
        target_words: The word of each target piece; -1 for a piece of no word.

    Returns:
        The weights [target words, source words].
    """
    sources, targets = max(source_words) + 1, max(target_words) + 1
    summed = np.zeros((sources, len(target_words)))
    for column, word in enumerate(source_words):
        if word >= 0:
            summed[word] += weights_TxS[: len(target_words), column]
    averaged = np.zeros((targets, sources))
    for word in range(targets):
        averaged[word] = summed[:, [i for i, w in enumerate(target_words) if w == word]].mean(axis=1)
    return averaged


def argmax_links(weights_of_words: np.ndarray) -> set[WordPair]:
    """Link every target word to the source word with the largest weight."""
    return {(int(source), target) for target, source in enumerate(weights_of_words.argmax(axis=1))}


def diagonal_links(source_words: int, target_words: int) -> set[WordPair]:
    """Link every target word to the source word at the same relative position."""
    stretch = (source_words - 1) / max(target_words - 1, 1)
    return {(round(target * stretch), target) for target in range(target_words)}


def alignment_error_rate(predicted: Sequence[set[WordPair]], gold: Sequence[WordAlignment]) -> float:
    """Compute AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), summed over sentence pairs (Och and Ney 2003, equation 8).

    Args:
        predicted: The predicted links A of each pair.
        gold: The gold alignments of each pair: the sure ones S, and the possible ones P, which include S.
    """
    agreed = total = 0
    for links, truth in zip(predicted, gold, strict=True):
        agreed += len(links.intersection(truth.sure)) + len(links.intersection(truth.possible))
        total += len(links) + len(truth.sure)
    return 1 - agreed / total


def _select_linked_pairs(split: TranslationSplit, longest: int) -> TranslationSplit:
    """Return the pairs that have known links and at most `longest` tokens on each side."""
    sides = zip(split.pairs, split.encoded.sources, split.encoded.targets, strict=True)
    fits = [pair.word_alignment is not None and max(len(s), len(t)) <= longest for pair, s, t in sides]
    return split.part([i for i, fits_pair in enumerate(fits) if fits_pair])


def _groups(pairs: Sequence[SentencePair], name: Callable[[SentencePair], str | None]) -> dict[str, tuple[int, ...]]:
    """Group the indices of pairs by a name, in the order of each name's first pair; a name of None is left out."""
    groups: dict[str, tuple[int, ...]] = {}
    for index, pair in enumerate(pairs):
        key = name(pair)
        if key is not None:
            groups[key] = (*groups.get(key, ()), index)
    return groups


def _length_name(pair: SentencePair, bounds: Sequence[int]) -> str:
    """Return the name of a source's length group, as in "length_5_8"; after the last bound, "length_9_up"."""
    words = len(pair.source.split())
    minimum = 1 + max((bound for bound in bounds if bound < words), default=0)
    maximum = min((bound for bound in bounds if bound >= words), default=None)
    return f"length_{minimum}_{'up' if maximum is None else maximum}"


def _compute_bleu(
    config: TranslationConfig, pairs: Sequence[SentencePair], outputs: Sequence[str], members: Sequence[int]
) -> tuple[float, str]:
    translations, references = [outputs[i] for i in members], [pairs[i].target for i in members]
    return bleu(translations, references, config.bleu_tokenizer, config.bleu_lowercase)


def _exact_match(pairs: Sequence[SentencePair], outputs: Sequence[str], members: Sequence[int]) -> float:
    return float(np.mean([outputs[i] == pairs[i].target for i in members]))
