"""Labels of words: entities against regular expressions, files in CoNLL format, batches, generated sentences."""

import re
from pathlib import Path

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.datasets.local_files import NOTHING_HELD_OUT
from transformer.data.datasets.synthetic_entities import LABELS, NAMES, sample_entities
from transformer.data.datasets.word_labels import labels_of_words, open_word_labels, read_conll
from transformer.data.labeled_words import (
    EncodedWords,
    EntitySpan,
    LabeledWords,
    TokenLabelBatches,
    entity_spans,
    marks_entities,
)

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-ORG
rejects VBZ O
German JJ B-MISC

Peter\tNNP\tB-PER
Blackburn NNP I-PER


"""
CLASSES = ("O", "B-PER", "I-PER", "B-ORG", "B-MISC")


def test_entities_are_those_that_a_regular_expression_finds() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        labels = [str(label) for label in random.choice(["O", "B-X", "I-X", "B-Y", "I-Y"], random.integers(1, 12))]
        # One letter a word: b and i of X, c and j of Y.
        letters = "".join({"O": "o", "B-X": "b", "I-X": "i", "B-Y": "c", "I-Y": "j"}[label] for label in labels)
        expected = [
            EntitySpan("X" if match.group()[0] in "bi" else "Y", match.start(), match.end())
            for match in re.finditer("bi*|i+|cj*|j+", letters)
        ]
        assert entity_spans(labels) == expected


@pytest.mark.parametrize(
    ("classes", "expected"), [(("O", "B-PER"), True), (("O", "DT"), False), (("DT", "NN"), False), (("B-X",), False)]
)
def test_entities_are_marked_by_b_i_and_o(classes: tuple[str, ...], expected: bool) -> None:
    assert marks_entities(classes) == expected


def test_a_conll_file_has_a_word_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(CONLL)
    assert read_conll(tmp_path / "train.conll") == [
        (("EU", "rejects", "German"), ("B-ORG", "O", "B-MISC")),
        (("Peter", "Blackburn"), ("B-PER", "I-PER")),
    ]


def test_columns_are_parted_by_tabs_and_spaces_alone(tmp_path: Path) -> None:
    words = ["New\u00a0York", "a\u2003b", "x\u3000y", "c\u2028d", "e\x0cf", "\u0085g", "h\x1ci"]
    (tmp_path / "train.conll").write_bytes("".join(f" {word} \t B-LOC \r\n" for word in words).encode())
    assert read_conll(tmp_path / "train.conll") == [(tuple(words), ("B-LOC",) * len(words))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU B-ORG\rin O\r\rBonn B-LOC\r", r"line 1 has a carriage return within it: end lines with a line feed"),
        ("EU B-ORG\nin\rO\n", r"line 2 has a carriage return within it"),
        ("EU B-ORG\nNew York B-LOC\n", r"line 2 has 3 columns and line 1 has 2: every word has as many"),
        ("EU NNP B-ORG\n\nin\t\tO\n", r"line 3 has 2 columns and line 1 has 3"),
        ("New York\tB-LOC\nLos Angeles\tB-LOC\n", r"line 1 has tabs between columns and a space within 'New York'"),
        ("EU\tNNP\tB-ORG\nNew York\tB-LOC\n", r"line 2 has tabs between columns and a space within 'New York'"),
        ("EU B-ORG\n\u00a0\n", r"line 2 has one column"),
        ("EU B-ORG\n\u00a0 O\n", r"line 2 has no visible character in its word"),
    ],
    ids=[
        "old ends",
        "one old end",
        "a space in a word",
        "an empty cell",
        "two words",
        "two words of one",
        "no label",
        "white space",
    ],
)
def test_lines_that_would_lose_words_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_bytes(content.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_conll(tmp_path / "train.conll")
    assert "\n" not in str(caught.value)


def test_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, content in {"word": "EU\n", "empty": "\n\n", "good": CONLL}.items():
        (tmp_path / f"{name}.conll").write_text(content)

    def opened(name: str, classes: tuple[str, ...] = CLASSES) -> object:
        return open_word_labels(f"{name}.conll", data_dir=str(tmp_path), classes=classes)

    with pytest.raises(UserError, match=r"word\.conll: line 1 has one column: it needs a word"):
        opened("word")
    with pytest.raises(UserError, match=r"empty\.conll is empty: it needs a line for each word"):
        opened("empty")
    assert labels_of_words("good.conll", str(tmp_path), NOTHING_HELD_OUT) == tuple(sorted(CLASSES))
    with pytest.raises(
        UserError, match=r"has the label 'B-MISC', which is none of config\.task\.classes \(.* are B-MISC, "
    ):
        opened("good", CLASSES[:4])
    with pytest.raises(UserError, match=r"'grammar/entity' is unknown: did you mean 'grammar/entities'"):
        open_word_labels("grammar/entity")
    with pytest.raises(UserError, match=r"classes=\('O',\) goes with files of your own alone"):
        open_word_labels("grammar/entities", classes=("O",))


def test_a_name_is_of_a_person_as_often_as_of_a_place() -> None:
    random = np.random.default_rng(0)
    counts = np.zeros((len(NAMES), len(LABELS)))
    for _ in range(2000):
        ((words, labels),) = sample_entities(random)
        for word, label in zip(words, labels, strict=True):
            assert (label == 0) == (word not in NAMES)
            if label:
                counts[NAMES.index(word), label] += 1
    shares = counts[:, 1:] / counts.sum(axis=1, keepdims=True)
    assert np.ptp(shares, axis=0).max() < 0.12  # no name says more than another
    assert shares.mean(axis=0).max() < 0.5


def test_a_batch_has_the_labels_of_first_tokens_and_counts_no_other() -> None:
    first, second = LabeledWords(("a", "b"), (3, 4)), LabeledWords(("a", "b"), (2, 1))
    words = [EncodedWords(first, [1, 5, 6, 7, 2], [1, 3]), EncodedWords(second, [1, 5, 2], [1, -1])]
    batches = TokenLabelBatches(words, lengths=(6,), rows=3, seed=None)
    batch = batches[0]
    order = list(batch["index"])
    for row, labels, counts in ((order.index(0), {1: 3, 3: 4}, [1, 3]), (order.index(1), {1: 2}, [1])):
        assert np.flatnonzero(batch["counts"][row]).tolist() == counts
        assert {place: batch["labels"][row, place] for place in counts} == labels
    assert not batch["counts"][order.index(-1)].any()


def test_a_cut_text_loses_the_words_behind_the_cut() -> None:
    text = LabeledWords(("a", "b", "c"), (0, 1, 2))
    words = EncodedWords(text, [1, 5, 6, 7, 8, 2], [1, 3, 4])
    assert words.cut(6, [2]) is words
    assert words.cut(5, [2]) == (text, [1, 5, 6, 7, 2], [1, 3, -1])
    assert words.cut(4, [2]) == (text, [1, 5, 6, 2], [1, -1, -1])
    assert words.cut(5, [2, 1]) == (text, [1, 5, 6, 2, 1], [1, -1, -1])


@pytest.mark.parametrize("scheme", [{}, {"E": "L", "S": "U"}, {"I": "M"}])
def test_schemes_with_ends_and_single_words_mark_the_same_entities(scheme: dict[str, str]) -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        plain: list[str] = []
        longer: list[str] = []
        expected = []
        while len(plain) < 12:
            kind, length = random.choice(["PER", "LOC", ""]), int(random.integers(1, 4))
            if not kind:
                plain.append("O")
                longer.append("O")
                continue
            expected.append(EntitySpan(kind, len(plain), len(plain) + length))
            plain += [f"{'I' if number else 'B'}-{kind}" for number in range(length)]
            marks = ["S"] if length == 1 else ["B", *["I"] * (length - 2), "E"]
            longer += [f"{scheme.get(mark, mark)}-{kind}" for mark in marks]
        assert entity_spans(plain) == entity_spans(longer) == expected
        assert marks_entities(["O", *longer])


def test_marks_out_of_place_are_read_as_conlleval_reads_them() -> None:
    # An end that nothing began, one behind an end, and one of another type are entities of their own.
    assert entity_spans(["E-X", "E-X", "B-X", "E-Y", "S-X", "I-X"]) == [
        EntitySpan("X", 0, 1),
        EntitySpan("X", 1, 2),
        EntitySpan("X", 2, 3),
        EntitySpan("Y", 3, 4),
        EntitySpan("X", 4, 5),
        EntitySpan("X", 5, 6),
    ]
    assert not marks_entities(["O", "NN", "B-X"])
