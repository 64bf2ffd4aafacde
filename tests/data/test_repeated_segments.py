"""Random symbols that repeat: what can be foretold, and what the splits share."""

from pathlib import Path

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.datasets.synthetic_symbols import ALPHABET, SPLITS, RepeatedSegmentsDatasetConfig
from transformer.data.datasets.text import open_text_dataset

OPTIONS = "repeated/num_symbols=16,min_segment_length=3,max_segment_length=7,length=20,train=600,validation=40,test=40"


def periods(text: str, least: int, most: int) -> list[int]:
    """Every number of symbols after which a text comes again."""
    return [p for p in range(least, most + 1) if text[p:] == text[:-p]]


def test_a_document_is_one_random_segment_over_and_over(tmp_path: Path) -> None:
    train = open_text_dataset(OPTIONS, prepared_dir=str(tmp_path)).split("train")
    assert {len(text) for text in train} == {20}
    shortest = [periods(text, 3, 7)[0] for text in train]
    assert np.bincount(shortest, minlength=8)[3:] == pytest.approx([120] * 5, abs=40)
    segments = "".join(text[:period] for text, period in zip(train, shortest, strict=True))
    counts = [segments.count(symbol) for symbol in ALPHABET[:16]]
    assert sum(counts) == len(segments)
    assert min(counts) > 0.8 * len(segments) / 16


def test_the_least_loss_is_that_of_knowing_every_probability() -> None:
    config = RepeatedSegmentsDatasetConfig(
        num_symbols=16, min_segment_length=4, max_segment_length=9, length=30, train=3000
    )
    # The probability of a document is the mean over segments' lengths of that of its segment, if it repeats so.
    nats = []
    for text in config.draw("train"):
        fits = np.array(periods(text, 4, 9))
        nats.append(-np.log(np.sum(16.0**-fits) / 6) - np.log(16))
    assert np.mean(nats) == pytest.approx((6.5 - 1) * np.log(16) + np.log(6), abs=0.3)


def test_documents_are_a_function_of_their_seed_and_no_split_holds_anothers(tmp_path: Path) -> None:
    text = open_text_dataset(OPTIONS, prepared_dir=str(tmp_path))
    assert text.source_description == "seed 0"
    assert open_text_dataset(OPTIONS, prepared_dir=str(tmp_path)).splits == text.splits
    assert [len(text.split(name)) for name in SPLITS] == [600, 40, 40]
    drawn = [document for name in SPLITS for document in text.split(name)]
    drawn += open_text_dataset(f"{OPTIONS},seed=1", prepared_dir=str(tmp_path)).split("train")
    # Of 16^3 segments of three symbols some come twice.
    longer = [document for document in drawn if periods(document, 3, 7)[0] > 5]
    assert len(set(longer)) == len(longer) > 100


def test_it_opens_without_options() -> None:
    sizes = {
        name: len(documents) for name, documents in open_text_dataset("repeated", prepared_dir="unused").splits.items()
    }
    assert sizes == {"train": 16384, "validation": 512, "test": 512}
    assert len(ALPHABET) > 400
    assert all(symbol.isalnum() for symbol in ALPHABET)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("num_symbosl=16", "did you mean 'num_symbols'"),
        ("symbols", "must give a whole number"),
        ("num_symbols=-3", "must give a whole number"),
        ("num_symbols=1", "num_symbols=1 must be at least 2"),
        ("num_symbols=9999", "num_symbols=9999 must be at most"),
        ("min_segment_length=1", "min_segment_length=1"),
        ("min_segment_length=30,max_segment_length=20", "min_segment_length=30, max_segment_length=20"),
        ("length=24", "length=24"),
        ("test=0", "test=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: str, says: str) -> None:
    with pytest.raises(UserError, match="repeated") as caught:
        open_text_dataset(f"repeated/{options}", prepared_dir="unused")
    assert says in str(caught.value)
