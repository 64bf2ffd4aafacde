"""Labeled texts: sentences made here, GLUE's files, and the batches of both."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.batches import OneEpoch
from transformer.data.datasets.glue import glue_metric
from transformer.data.datasets.text_classification import class_names, open_labeled_texts
from transformer.data.labeled_text_batches import LabeledText, LabeledTextBatches

REAL = Path(__file__).parents[2].parent / "shared/data/glue"
SST = {
    "train.tsv": "sentence\tlabel\na fine film \t1\nso dull \t0\n",
    "dev.tsv": "sentence\tlabel\nnot bad\t1\n",
    "test.tsv": "sentence\tlabel\nit 's \"good\t1\nno\x85more\t0\n",
}
COLA = {
    "in_domain_train.tsv": "gj04\t1\t\tThey left.\ngj04\t0\t*\tThey left it.\r\n",
    "in_domain_dev.tsv": "gj04\t1\t\tBill slept.\n",
    "out_of_domain_dev.tsv": "clc95\t0\t*\tIs it true\n",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for folder, texts in (("SST-2", SST), ("CoLA/raw", COLA)):
        (tmp_path / folder).mkdir(parents=True)
        for name, text in texts.items():
            (tmp_path / folder / name).write_bytes(text.encode())
    return tmp_path


def test_word_order_has_pairs_of_the_same_words_in_two_orders_and_classes() -> None:
    opened = open_labeled_texts("word_order/max_length=6,train=300,validation=20,test=20")
    assert [len(opened.split(name)) for name in ("train", "validation", "test")] == [600, 40, 40]
    assert opened.classes == class_names("word_order") == ("cat", "dog")
    train = opened.split("train")
    for one, other in zip(train[::2], train[1::2], strict=True):
        assert Counter(one.text.split()) == Counter(other.text.split())
        assert {one.label, other.label} == {0, 1}
    for text, label in train:
        words = text.split()
        animals = [word for word in words if word in ("dog", "cat")]
        assert words.index(animals[0]) < words.index("behind") < words.index(animals[1])
        assert animals[1] == opened.classes[label]
    assert {len(each.text.split()) for each in train} == {3, 4, 5, 6}
    assert open_labeled_texts(opened.name).splits == opened.splits
    other = open_labeled_texts("word_order/max_length=6,train=300,validation=20,test=20,seed=1")
    assert other.split("train") != train
    assert list(opened.split("test")) != list(opened.split("validation"))


def test_glue_is_read_as_its_files_have_it(files: Path) -> None:
    sst = open_labeled_texts("glue/SST-2", data_dir=str(files))
    assert sst.classes == ("negative", "positive")
    assert sst.split("train") == [LabeledText("a fine film", 1), LabeledText("so dull", 0)]
    assert sst.split("validation") == [LabeledText("not bad", 1)]
    # Quotation marks are text, and only a line feed ends a line.
    assert sst.split("test") == [LabeledText("it 's \"good", 1), LabeledText("no\x85more", 0)]
    cola = open_labeled_texts("glue/CoLA", data_dir=str(files))
    assert cola.classes == ("unacceptable", "acceptable")
    assert cola.split("train") == [LabeledText("They left.", 1), LabeledText("They left it.", 0)]
    assert cola.split("validation") == [LabeledText("Bill slept.", 1)]
    assert cola.split("test") == [LabeledText("Is it true", 0)]
    # What GLUE calls its development set, and how it scores a set.
    assert cola.split("development") == [LabeledText("Bill slept.", 1), LabeledText("Is it true", 0)]
    assert sst.split("development") == sst.split("test")
    assert [glue_metric(name) for name in ("glue/CoLA", "glue/SST-2", "word_order")] == ["matthews", "accuracy", None]


def test_a_test_set_without_labels_is_no_split(files: Path) -> None:
    (files / "SST-2/test.tsv").write_text("index\tsentence\n0\tuneasy mishmash\n")
    opened = open_labeled_texts("glue/SST-2", data_dir=str(files))
    assert set(opened.splits) == {"train", "validation", "development"}
    with pytest.raises(UserError, match="glue/SST-2 has no labeled split 'test': known: development, train, valid"):
        opened.split("test")
    # These are the files as GLUE hands them out, whose dev.tsv is its development set.
    assert opened.split("development") == opened.split("validation") == [LabeledText("not bad", 1)]


@pytest.mark.skipif(not REAL.is_dir(), reason="needs GLUE's files in ../shared/data/glue")
def test_the_real_sets_have_their_published_sizes() -> None:
    counts = {
        name: [
            len(open_labeled_texts(name, data_dir=str(REAL)).split(split)) for split in ("train", "validation", "test")
        ]
        for name in ("glue/SST-2", "glue/CoLA")
    }
    assert counts == {"glue/SST-2": [60_614, 6_735, 872], "glue/CoLA": [8_551, 527, 516]}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("word_ordr", "did you mean 'word_order'"),
        ("glue/SST2", "did you mean 'glue/SST-2'"),
        ("imdb", "config.task.dataset='imdb' is unknown: known: FILE.csv, FILE.jsonl, FILE.tsv, FOLDER, glue/CoLA, "),
        ("word_order/longst=5", "did you mean"),
        ("word_order/train=many", "must give a whole number, as in word_order/max_length=6,train=512"),
        ("word_order/min_length=2", "word_order.min_length=2 must be at least 3"),
        ("word_order/max_length=3,min_length=4", "min_length=4 and max_length=3"),
        ("word_order/test=0", "test=0 must be at least 1"),
        ("glue/CoLA", "glue/CoLA needs its files: give the folder that holds CoLA/raw/in_domain_train.tsv, "),
    ],
)
def test_what_is_no_set_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        open_labeled_texts(name)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "SST-2/dev.tsv",
            None,
            "no file .*SST-2/dev.tsv: give the folder that holds SST-2/train.tsv, .* by --data_dir",
        ),
        ("SST-2/dev.tsv", "index\tsentence\n0\tgood\n", "dev.tsv has no labels"),
        ("SST-2/dev.tsv", "text\tlabel\ngood\t1\n", "its first line names no column sentence"),
        ("SST-2/train.tsv", "sentence\tlabel\ngood\t1\nbad\t2\n", "line 3 has no label of 0, 1 and a sentence"),
        ("SST-2/train.tsv", "sentence\tlabel\ngood\n", "line 2 has no label"),
        ("SST-2/train.tsv", "sentence\tlabel\n", "train.tsv has no sentences"),
        ("SST-2/train.tsv", "sentence\tlabel\ngood\t1\n \t0\n", "train.tsv: line 3 has an empty sentence: fill or"),
        ("CoLA/raw/in_domain_dev.tsv", "gj04\t1\tBill slept.\n", "line 1 has no label"),
    ],
)
def test_a_file_that_is_not_as_expected_is_refused_in_one_line(
    file: str, text: str | None, says: str, files: Path
) -> None:
    if text is None:
        (files / file).unlink()
    else:
        (files / file).write_text(text)
    name = "glue/SST-2" if file.startswith("SST-2") else "glue/CoLA"
    with pytest.raises(UserError, match=says) as told:
        open_labeled_texts(name, data_dir=str(files))
    assert "\n" not in str(told.value)


TEXTS = [list(range(1, size + 1)) for size in (3, 5, 2, 4, 8, 3, 1)]
LABELS = [0, 1, 2, 0, 1, 2, 0]


def batches(seed: int | None) -> LabeledTextBatches:
    return LabeledTextBatches(TEXTS, LABELS, lengths=(8, 4), rows=2, seed=seed, pad=9)


@pytest.mark.parametrize("seed", [None, 0])
def test_an_epoch_has_every_text_once_in_the_shortest_length_that_holds_it(seed: int | None) -> None:
    seen = []
    for batch in OneEpoch(batches(seed)):
        assert batch["tokens"].shape in {(2, 4), (2, 8)}
        for tokens, length, label, index in zip(
            *(batch[n] for n in ("tokens", "lengths", "labels", "index")), strict=True
        ):
            assert (tokens[length:] == 9).all()
            if index < 0:
                assert (length, label) == (0, 0)
                continue
            seen.append(index)
            assert tokens[:length].tolist() == TEXTS[index]
            assert label == LABELS[index]
            assert len(tokens) == (4 if len(TEXTS[index]) <= 4 else 8)
    assert sorted(seen) == list(range(len(TEXTS)))
    assert (seen == [0, 2, 3, 5, 6, 1, 4]) == (seed is None)


def test_batches_are_a_function_of_seed_and_step_and_epochs_differ() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        source = batches(seed)
        steps = range(epoch * source.batches_per_epoch, (epoch + 1) * source.batches_per_epoch)
        return [int(number) for step in steps for number in source[step]["index"]]

    assert order(3, 0) == order(3, 0)
    assert len({tuple(order(seed, epoch)) for seed in (3, 4) for epoch in (0, 1)}) == 4


def test_texts_that_belong_together_lie_a_batch_apart_and_fit_one_length() -> None:
    source = LabeledTextBatches(TEXTS[:6], [0.5, 1.5, 2.5], lengths=(4, 8), rows=2, seed=None, pad=9, together=2)
    first, second = OneEpoch(source)
    # The longer of two texts decides: of 3 and 5, 2 and 4, 8 and 3 tokens only the second pair is short.
    assert (first["tokens"].shape, second["tokens"].shape) == ((4, 4), (4, 8))
    assert (first["index"].tolist(), second["index"].tolist()) == ([1, -1], [0, 2])
    assert first["lengths"].tolist() == [2, 0, 4, 0]
    assert second["lengths"].tolist() == [3, 8, 5, 3]
    assert second["tokens"][2].tolist() == [*TEXTS[1], 9, 9, 9]
    assert second["labels"].dtype == np.float32
    assert second["labels"].tolist() == [0.5, 2.5]
    assert (first["tokens"][[1, 3]] == 9).all()


def test_a_text_that_fits_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 8 tokens is longer"):
        LabeledTextBatches(TEXTS, LABELS, lengths=(4,), rows=2, seed=None)
