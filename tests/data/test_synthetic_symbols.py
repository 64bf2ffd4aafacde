"""Symbols said again or backwards: what the pairs are, what a token is, and that alignment knows the truth."""

from pathlib import Path

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.data.datasets.synthetic_symbols import ALPHABET, SPLITS, SymbolPairsDatasetConfig
from transformer.data.datasets.translation import SentencePair, TranslationDataset, open_translation_dataset
from transformer.tasks.translation import Translation
from transformer.tasks.translation_data import TranslationConfig, load_encoded_splits, word_of_each_piece

OPTIONS = "reversal/length=5,num_symbols=7,train=300,validation=30,test=40"


def opened(options: str = OPTIONS) -> TranslationDataset:
    return open_translation_dataset(options, prepared_dir="unused")


def test_a_target_is_its_source_backwards_word_by_word() -> None:
    found = opened()
    assert found.languages == ("symbols", "reversed")
    assert found.splits == SPLITS
    assert [len(found.split(name)) for name in SPLITS] == [300, 30, 40]
    train = found.split("train")
    for pair in train:
        source, target = pair.source.split(" "), pair.target.split(" ")
        assert len(source) == 5
        assert list(reversed(source)) == target
        assert (pair.language, pair.kind) == ("reversed", None)
    words = " ".join(pair.source for pair in train).split()
    counts = [words.count(symbol) for symbol in ALPHABET[:7]]
    assert sum(counts) == len(words) == 1500
    assert counts == pytest.approx([1500 / 7] * 7, abs=60)


def test_a_copy_is_its_source_word_by_word() -> None:
    copied = opened("copy/length=5,num_symbols=7,train=50")
    assert copied.languages == ("symbols", "copied")
    backwards = opened("reversal/length=5,num_symbols=7,train=50").split("train")
    for pair, reverse in zip(copied.split("train"), backwards, strict=True):
        assert pair.source == pair.target == reverse.source
        assert pair.word_alignment is not None
        assert pair.word_alignment.sure == tuple((place, place) for place in range(5))


def test_every_link_joins_a_word_with_itself() -> None:
    for pair in opened("reversal/length=6,min_length=2,num_symbols=300,train=200").split("train"):
        assert pair.word_alignment is not None
        assert pair.word_alignment.sure == pair.word_alignment.possible
        source, target = pair.source.split(), pair.target.split()
        assert sorted(j for _, j in pair.word_alignment.sure) == list(range(len(target)))
        assert all(source[i] == target[j] for i, j in pair.word_alignment.sure)
        assert all(i + j == len(source) - 1 for i, j in pair.word_alignment.sure)


def test_lengths_are_all_alike_or_equally_likely() -> None:
    lengths = [len(pair.source.split()) for pair in opened("reversal/min_length=3,length=7,train=2000").split("train")]
    assert np.bincount(lengths)[3:] == pytest.approx([400] * 5, abs=80)
    assert min(lengths) == 3
    tested = opened("copy/min_length=3,length=7,test_length=6,train=200,test=50")
    assert {len(pair.source.split()) for pair in tested.split("test")} == {6}
    assert {len(pair.source.split()) for pair in tested.split("train")} == set(range(3, 8))
    by_default = opened("reversal/train=50,test=1,validation=1").split("train")
    assert {len(pair.source.split()) for pair in by_default} == {12}
    assert len({symbol for pair in by_default for symbol in pair.source.split()}) == 16


def test_pairs_are_a_function_of_their_seed_and_no_split_holds_anothers() -> None:
    sizes = "reversal/train=300,validation=30,test=40"
    splits = [list(opened(sizes).split(name)) for name in SPLITS]
    assert splits == [list(opened(f"{sizes},seed=0").split(name)) for name in SPLITS]
    splits.append(list(opened(f"{sizes},seed=1").split("train")))
    sources = [pair.source for pairs in splits for pair in pairs]
    assert len(set(sources)) == len(sources) == 670


def encoded(dataset: str, directory: Path, vocabulary: int) -> tuple[Translation, SentencePair]:
    lengths = (1 + SymbolPairsDatasetConfig().length,)
    config = TranslationConfig(
        dataset=dataset,
        vocab_size=vocabulary,
        bucket_lengths=lengths,
        tokens_per_batch=26,
        num_beams=1,
        num_decoded_examples=2,
        num_probe_examples=2,
    )
    directory.mkdir()
    tokenizer, splits = load_encoded_splits(config, directory)
    return Translation(config, tokenizer, splits), splits["test"].pairs[0]


@pytest.mark.parametrize("symbols", [16, 300])
def test_every_symbol_is_one_token(tmp_path: Path, symbols: int) -> None:
    task, pair = encoded(f"reversal/num_symbols={symbols},train=400,test=40", tmp_path / "run", 2 * symbols + 5)
    batch = task.training_batches(0)[0]
    ends = {"source": task.interface.eos_id, "labels": task.interface.eos_id}
    assert {name: set(batch[name][:, -1].tolist()) for name in ends} == {name: {end} for name, end in ends.items()}
    np.testing.assert_array_equal(batch["labels"][:, :-1], batch["source"][:, -2::-1])
    pieces = task.tokenizer.pieces(task.tokenizer.encode([pair.source])[0])
    assert word_of_each_piece(pieces) == list(range(12))


def test_alignment_is_evaluated_and_labeled_with_the_truth(tmp_path: Path) -> None:
    task, _ = encoded("reversal/train=400,validation=8,test=8", tmp_path / "run", 37)
    assert "alignment" in [evaluation.name for evaluation in task.evaluations]
    site = Site("decoder/cross", Axis("target"), Axis("source"), ("0",), ("0",))
    labels = task.axis_labels([site])
    assert labels.gold_alignments is not None
    for links in labels.gold_alignments["decoder/cross"]:
        assert {(link.query, link.key) for link in links} == {(place, 11 - place) for place in range(12)}
        assert all(link.sure for link in links)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("lenght=5", "did you mean 'length'"),
        ("length", "must give a whole number"),
        ("num_symbols=-3", "must give a whole number"),
        ("num_symbols=1", "num_symbols=1 must be at least 2"),
        ("num_symbols=9999", "num_symbols=9999 must be at most"),
        ("length=0", "length=0"),
        ("min_length=0", "min_length=0 must be at least 1"),
        ("min_length=6,length=5", "min_length=6 must be at most length=5"),
        ("test_length=13", "test_length=13 must be at most length=12"),
        ("test=0", "test=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: str, says: str) -> None:
    with pytest.raises(UserError, match="reversal") as caught:
        opened(f"reversal/{options}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_has_one_direction_and_its_own_splits() -> None:
    with pytest.raises(UserError, match="goes from symbols to reversed: leave it out"):
        open_translation_dataset("reversal", prepared_dir="unused", languages=("reversed", "symbols"))
    assert (
        open_translation_dataset("reversal", prepared_dir="unused", languages=("symbols", "reversed")).name
        == "reversal"
    )
    with pytest.raises(UserError, match="did you mean 'train'"):
        opened().split("trian")
