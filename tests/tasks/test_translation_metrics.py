"""What is measured of translations: scores, their groups, and which output belongs to which pair."""

from typing import Any

import jax
import numpy as np
import pytest
import sacrebleu

from transformer.config import UserError
from transformer.data.batches import BucketedPairBatches, OneEpoch
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.tasks.task import Batch, Evaluation
from transformer.tasks.translation_data import TranslationConfig, TranslationSplit, encode_pairs, word_of_each_piece
from transformer.tasks.translation_metrics import (
    alignment_evaluation,
    bleu,
    make_decoding_strategy,
    translation_evaluation,
    translation_report,
)

PAD, END = 0, 2
OUTPUTS = ["Der Hund läuft schnell nach Haus .", "eine rote Katze sitzt auf der Matte", "Guten Morgen , Welt !"]
REFERENCES = ["der Hund läuft schnell nach Hause .", "eine rote Katze saß auf der Matte", "Guten Morgen, Welt!"]


@pytest.mark.parametrize("tokenizer", ["13a", "none"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_bleu_is_sacrebleus_and_says_how(tokenizer: str, lowercase: bool) -> None:
    score, signature = bleu(OUTPUTS, REFERENCES, tokenizer, lowercase)
    direct = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], tokenize=tokenizer, lowercase=lowercase, force=True)
    assert score == direct.score
    assert 0 < score < 100
    parts = dict(part.split(":", 1) for part in signature.split("|"))
    assert parts["tok"] == tokenizer
    assert parts["case"] == ("lc" if lowercase else "mixed")
    assert parts["nrefs"] == "1"
    assert parts["version"] == sacrebleu.__version__


def test_bleu_by_hand() -> None:
    # Matches of 1- to 4-grams: 4 / 5, 3 / 4, 2 / 3, 1 / 2; no brevity penalty: (1 / 5)^(1 / 4).
    score, _ = bleu(["a b c d x"], ["a b c d e"], "none", False)
    assert score == pytest.approx(100 * 0.2**0.25)


def pair(
    source: str, target: str, language: str, kind: str | None = None, links: WordAlignment | None = None
) -> SentencePair:
    return SentencePair(source, target, language, kind, links)


GROUPED = [
    pair("one", "eins", "de", "number"),
    pair("two", "zwei", "de", "number"),
    pair("at one", "um eins", "de", "time"),
    pair("one", "un", "fr", "number"),
]


def test_exact_match_of_all_of_languages_and_of_kinds() -> None:
    outputs = ["eins", "drei", "um eins", "deux"]
    report = translation_report(TranslationConfig(), GROUPED, outputs, num_samples=2)
    exact = {name: value for name, value in report.scalars.items() if name.startswith("exact_match")}
    assert exact == {
        "exact_match": 0.5,
        "exact_match/de": pytest.approx(2 / 3),
        "exact_match/de/number": 0.5,
        "exact_match/de/time": 1.0,
        "exact_match/fr": 0.0,
        "exact_match/fr/number": 0.0,
    }
    assert {name for name in report.scalars if name.startswith("bleu")} == {"bleu", "bleu/de", "bleu/fr"}
    direct = sacrebleu.corpus_bleu(outputs[:3], [[p.target for p in GROUPED[:3]]], force=True).score
    assert report.scalars["bleu/de"] == direct
    assert report.samples == [
        {"source": "one", "target": "eins", "output": "eins", "language": "de"},
        {"source": "two", "target": "zwei", "output": "drei", "language": "de"},
    ]
    assert report.note.startswith("4 sentences, BLEU nrefs:1|case:mixed")


def test_one_language_without_kinds_is_one_group() -> None:
    pairs = [pair("a", "b", "de"), pair("c", "d", "de")]
    report = translation_report(TranslationConfig(), pairs, ["b", "x"], num_samples=0)
    assert set(report.scalars) == {"bleu", "exact_match"}
    assert report.samples == []


def test_groups_of_source_lengths_are_scored_where_they_are_asked_for() -> None:
    pairs = [pair(*sentences(words), "de") for words in (1, 2, 3, 4, 5, 7, 9)]
    outputs = [known.target for known in pairs]
    outputs[1] = outputs[3] = outputs[4] = "x"
    plain = translation_report(TranslationConfig(), pairs, outputs, num_samples=0).scalars
    found = translation_report(TranslationConfig(), pairs, outputs, num_samples=0, length_bounds=(2, 4, 6)).scalars
    assert {name: found[name] for name in plain} == plain
    assert {name: value for name, value in found.items() if name not in plain and "exact" in name} == {
        "exact_match/length_1_2": 0.5,
        "exact_match/length_3_4": 0.5,
        "exact_match/length_5_6": 0.0,
        "exact_match/length_7_up": 1.0,
    }
    direct = sacrebleu.corpus_bleu(outputs[5:], [[known.target for known in pairs[5:]]], force=True).score
    assert found["bleu/length_7_up"] == direct
    # No source is as long as that: there is no such group, rather than one without a score.
    far = translation_report(TranslationConfig(), pairs, outputs, num_samples=0, length_bounds=(9, 12)).scalars
    assert {name for name in far if name not in plain} == {"bleu/length_1_9", "exact_match/length_1_9"}


@pytest.mark.parametrize("bounds", [(4, 4), (8, 4)])
def test_bounds_of_lengths_that_do_not_rise_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"length_bounds=\(.*\) must rise"):
        TranslationConfig(length_bounds=bounds)


def test_a_bound_of_no_word_is_refused() -> None:
    with pytest.raises(UserError, match=r"length_bounds\[0\]=0 must be at least 1"):
        TranslationConfig(length_bounds=(0, 4))


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return train_bpe(10 * [text for length in range(1, 9) for text in sentences(length)], 100)


def sentences(words: int) -> tuple[str, str]:
    return " ".join(f"s{n}" for n in range(words)), " ".join(f"t{n}" for n in range(words))


@pytest.fixture(scope="module")
def mixed(tokenizer: FastTokenizer) -> TranslationSplit:
    """Pairs of many lengths, so that they fall into several buckets; the last fits none."""
    random = np.random.default_rng(0)
    pairs = [pair(*sentences(int(n)), "de") for n in random.integers(1, 6, 21)]
    pairs.append(pair(*sentences(40), "de"))
    return TranslationSplit("validation", pairs, encode_pairs(tokenizer, pairs))


CONFIG = TranslationConfig(bucket_lengths=(4, 8, 16), tokens_per_batch=32, num_beams=1)


def unused(*_: Any) -> Any:
    raise AssertionError("these tests say themselves what a model would have said")


def finish(evaluation: Evaluation, rows: list[dict[str, Any]]) -> dict[str, float]:
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
    return dict(evaluation.finish({}, joined).scalars)


def perfect(batch: Batch) -> dict[str, np.ndarray]:
    """What a perfect model would say: the labels; in rows that are padding, nonsense."""
    tokens = np.full((len(batch["index"]), max(CONFIG.bucket_lengths)), 5, np.int32)
    tokens[:, : batch["labels"].shape[1]] = batch["labels"]
    tokens[batch["index"] < 0] = 5
    return {"index": batch["index"], "tokens": tokens}


def test_an_evaluation_sees_every_pair_in_one_shape(tokenizer: FastTokenizer, mixed: TranslationSplit) -> None:
    evaluation = translation_evaluation(CONFIG, tokenizer, mixed, unused, num_samples=0)
    assert {batch["source"].shape for batch in evaluation.batches} == {(8, 16)}
    indices = [int(index) for batch in evaluation.batches for index in batch["index"] if index >= 0]
    assert indices == list(range(len(mixed.pairs) - 1))  # the last pair fits no batch
    scalars = finish(evaluation, [perfect(batch) for batch in evaluation.batches])
    assert scalars["exact_match"] == pytest.approx(21 / 22)  # and counts as empty


def test_outputs_find_their_pairs_in_whatever_order_they_come(
    tokenizer: FastTokenizer, mixed: TranslationSplit
) -> None:
    evaluation = translation_evaluation(CONFIG, tokenizer, mixed, unused, num_samples=0)
    shuffled = list(OneEpoch(BucketedPairBatches(mixed.encoded, lengths=CONFIG.bucket_lengths, tokens=32, seed=5)))
    order = [int(index) for batch in shuffled for index in batch["index"] if index >= 0]
    assert order != sorted(order)
    assert any((batch["index"] < 0).any() for batch in shuffled)
    rows = [perfect(batch) for batch in shuffled]
    assert finish(evaluation, rows)["exact_match"] == pytest.approx(21 / 22)
    wrong = [{**row, "index": np.roll(row["index"], 1)} for row in rows]
    assert finish(evaluation, wrong)["exact_match"] < 0.9


def test_what_comes_after_the_end_is_not_said(tokenizer: FastTokenizer) -> None:
    pairs = [pair("s0", "t0 t1", "de")]
    split = TranslationSplit("test", pairs, encode_pairs(tokenizer, pairs))
    evaluation = translation_evaluation(CONFIG, tokenizer, split, unused, num_samples=1, at_end=True)
    ids = [*split.encoded.targets[0], *split.encoded.targets[0]]
    tokens = np.full((1, 16), PAD, np.int32)
    tokens[0, : len(ids)] = ids
    assert ids.count(END) == 2
    report = evaluation.finish({}, {"index": np.array([0]), "tokens": tokens})
    assert report.samples[0]["output"] == "t0 t1"
    assert (evaluation.at_end, evaluation.split) == (True, "test")


def test_one_beam_is_greedy() -> None:
    assert type(make_decoding_strategy(TranslationConfig(num_beams=1))).__name__ == "GreedySearch"
    assert make_decoding_strategy(TranslationConfig(num_beams=3, length_penalty=0.2)).num_beams == 3


def linked(words: int) -> SentencePair:
    """Words in reverse order: what the diagonal cannot find."""
    known = tuple((words - 1 - n, n) for n in range(words))
    return pair(*sentences(words), "de", "number", WordAlignment(known, known))


@pytest.mark.parametrize("fits_test", [True, False])
def test_the_aligning_head_is_chosen_on_validation_and_reported_on_test(
    tokenizer: FastTokenizer, fits_test: bool
) -> None:
    validation, test = (
        TranslationSplit(name, pairs, encode_pairs(tokenizer, pairs))
        for name, pairs in (("validation", [linked(3), linked(4)]), ("test", [linked(5), linked(30), linked(2)]))
    )
    evaluation = alignment_evaluation(CONFIG, tokenizer, validation, test)
    assert evaluation.at_end
    rows, layers, heads = [], 2, 2
    for batch in evaluation.batches:
        count, length = batch["source"].shape
        weights = np.full((count, layers, heads, length, length), 0.01)
        for row, index in enumerate(batch["index"]):
            if index < 0:
                continue
            source, target = (
                word_of_each_piece(tokenizer.pieces(x[row][x[row] != PAD])) for x in (batch["source"], batch["labels"])
            )
            for query, word in enumerate(target):
                for key, of_source in enumerate(source):
                    reverse = word >= 0 and of_source == max(source) - word
                    weights[row, 1, 0, query, key] += reverse if index < 2 or fits_test else word == of_source
                    # Right on the test pairs, and on more of all pairs than a head that is right on validation alone.
                    weights[row, 0, 1, query, key] += word == of_source if index == 1 else reverse
        rows.append({"index": batch["index"], "weights": {"decoder/cross": weights}})
    scalars = finish(evaluation, rows)
    assert (scalars["alignment_layer"], scalars["alignment_head"]) == (1, 0)
    assert scalars["alignment_error_rate_validation"] == 0
    # Of the pairs of 5 and 2 words (that of 30 fits no batch) the diagonal finds the middle word alone.
    diagonal = pytest.approx(1 - 2 / 14)
    assert scalars["alignment_error_rate_diagonal"] == diagonal
    assert scalars["alignment_error_rate"] == (0 if fits_test else diagonal)


def test_pairs_of_unknown_links_are_left_out_of_the_alignment(tokenizer: FastTokenizer) -> None:
    pairs = [linked(3), pair("s0", "t0", "de"), linked(2)]
    split = TranslationSplit("test", pairs, encode_pairs(tokenizer, pairs))
    evaluation = alignment_evaluation(CONFIG, tokenizer, split, split)
    indices = [int(index) for batch in evaluation.batches for index in batch["index"] if index >= 0]
    assert sorted(indices) == [0, 1, 2, 3]
