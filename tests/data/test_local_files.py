"""Files of a user's own: pairs, labeled texts, texts; how they are cut, and what is told of those that are unfit."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from transformer.config import UserError
from transformer.data.corpus import find_corpus_files
from transformer.data.datasets.local_files import NOTHING_HELD_OUT, HeldOutFiles, read_fields
from transformer.data.datasets.split_overlap import describe_overlap
from transformer.data.datasets.text import open_text_dataset
from transformer.data.datasets.text_classification import class_names, labels_of_texts, open_labeled_texts
from transformer.data.datasets.text_files import read_text_splits
from transformer.data.datasets.translation import SentencePair, TranslationDataset, open_translation_dataset

COUNT = 200
PAIRS = [(f"the {number} foxes", f"die {number} Füchse") for number in range(COUNT)]
LABELED = [(f"text {number}", "odd" if number % 2 else "even") for number in range(COUNT)]


def lines(texts: Sequence[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def objects(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return lines([json.dumps(dict(zip(names, row, strict=True))) for row in rows])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    sources, targets = zip(*PAIRS, strict=True)
    contents = {
        "train.en": lines(sources),
        "train.de": lines(targets).replace("\n", "\r\n"),
        "pairs.tsv": lines([f"{source}\t{target}\tsomebody" for source, target in PAIRS]),
        "named.tsv": lines(["id\tde\ten", *(f"1\t{target}\t{source}" for source, target in PAIRS)]),
        "pairs.csv": lines(["en,de", *(f'"{source}",{target}' for source, target in PAIRS)]),
        "pairs.jsonl": objects(("source", "target"), PAIRS),
        "translation.jsonl": objects(("translation",), [[{"en": source, "de": target}] for source, target in PAIRS]),
        "labeled.tsv": lines(["\t".join(row) for row in LABELED]),
        "labeled.jsonl": objects(("text", "label"), LABELED),
        "numbers.jsonl": objects(("label", "text"), [(number % 2, text) for number, (text, _) in enumerate(LABELED)]),
        "dev.tsv": "a dev pair\tein Paar\n",
        "books/one.txt": "one\n" * 100,
        "books/more/two.jsonl": objects(("text",), [(f"two {number}\n",) for number in range(40)]),
        "book.txt": "the validation text\n",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode())
    return tmp_path


def pairs(
    name: str, folder: Path, languages: Any = None, held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> TranslationDataset:
    return open_translation_dataset(
        name, data_dir=str(folder), prepared_dir=str(folder / "none"), languages=languages, held_out=held_out
    )


def said(act: Any) -> str:
    with pytest.raises(UserError) as told:
        act()
    assert "\n" not in str(told.value)
    return str(told.value)


def test_pairs_are_the_same_from_every_kind_of_file(files: Path) -> None:
    parallel = pairs("train.en,train.de", files)
    assert parallel.languages == ("en", "de")
    read = {split: list(parallel.split(split)) for split in parallel.splits}
    assert sorted(pair for part in read.values() for pair in part) == sorted(
        SentencePair(*pair, "de") for pair in PAIRS
    )
    for name in ("named.tsv", "pairs.csv", "translation.jsonl"):
        opened = pairs(name, files, ("en", "de"))
        assert {split: list(opened.split(split)) for split in opened.splits} == read
    for name in ("pairs.tsv", "pairs.jsonl"):
        opened = pairs(name, files)
        assert opened.languages == ("source", "target")
        assert [[pair[:2] for pair in opened.split(split)] for split in opened.splits] == [
            [pair[:2] for pair in part] for part in read.values()
        ]
    assert not (files / "none").exists()


def test_the_split_of_an_example_depends_on_its_text_alone(files: Path) -> None:
    before = {pair: split for split in ("train", "validation", "test") for pair in pairs(PARALLEL, files).split(split)}
    assert {split: list(before.values()).count(split) for split in ("train", "validation", "test")} == {
        "train": 177,
        "validation": 11,
        "test": 12,
    }
    # Another translation of a sentence goes where the sentence goes, and nothing moves.
    sources, targets = (list(side) for side in zip(*PAIRS, strict=True))
    (files / "train.en").write_text(lines([*sources[::-1], sources[0]]))
    (files / "train.de").write_text(lines([*targets[::-1], "anders"]))
    after = {pair: split for split in ("train", "validation", "test") for pair in pairs(PARALLEL, files).split(split)}
    assert {pair: split for pair, split in after.items() if pair in before} == before
    assert after[SentencePair(sources[0], "anders", "de")] == before[SentencePair(sources[0], targets[0], "de")]


PARALLEL = "train.en,train.de"


def test_splits_may_have_files_of_their_own(files: Path) -> None:
    opened = pairs(PARALLEL, files, held_out=HeldOutFiles("dev.tsv"))
    assert opened.split("validation") == [SentencePair("a dev pair", "ein Paar", "de")]
    cut = pairs(PARALLEL, files)
    assert opened.split("test") == cut.split("test")
    assert len(opened.split("train")) == len(cut.split("train")) + len(cut.split("validation"))
    both = pairs(PARALLEL, files, held_out=HeldOutFiles("dev.tsv", "pairs.tsv"))
    assert [len(both.split(split)) for split in both.splits] == [COUNT, 1, COUNT]
    assert HeldOutFiles("dev.tsv").describe("place") == "train, test cut by place; validation from dev.tsv"
    assert HeldOutFiles("dev.tsv", "x").describe("place") == "validation from dev.tsv; test from x"


def test_labeled_texts_have_the_classes_that_a_config_names(files: Path) -> None:
    opened = {
        name: open_labeled_texts(f"{name}", data_dir=str(files), classes=classes)
        for name, classes in (
            ("labeled.tsv", ("even", "odd")),
            ("labeled.jsonl", ("even", "odd")),
            ("numbers.jsonl", ("0", "1")),
        )
    }
    first = opened["labeled.tsv"]
    assert first.classes == ("even", "odd")
    every = sorted(each for split in first.splits.values() for each in split)
    assert every == sorted((text, int(label == "odd")) for text, label in LABELED)
    assert all(each.splits == first.splits for each in opened.values())
    assert sum(len(split) > 0 for split in first.splits.values()) == 3
    assert labels_of_texts("labeled.tsv", str(files), NOTHING_HELD_OUT) == ("even", "odd")
    told = said(lambda: open_labeled_texts("labeled.tsv", data_dir=str(files), classes=("even", "od")))
    assert "example 2 has the label 'odd', which is none of config.task.classes (the labels of the file are" in told
    assert told.endswith("are even, odd): did you mean 'od'?")
    for classes in ((), ("a",), ("a", "a")):
        assert "at least two, all different" in said(lambda classes=classes: class_names("x.tsv", classes))
    assert "word_order has its own" in said(lambda: class_names("word_order", ("a", "b")))


def texts(name: str, folder: Path, held_out: HeldOutFiles = NOTHING_HELD_OUT) -> dict[str, list[str]]:
    opened = open_text_dataset(name, data_dir=str(folder), prepared_dir=str(folder / "none"), held_out=held_out)
    return {split: list(documents) for split, documents in opened.splits.items()}


def test_a_folder_holds_texts_and_objects(files: Path) -> None:
    splits = texts("books", files)
    # By their paths: more/two.jsonl, each of whose lines is a document, stands before one.txt.
    assert splits["train"][:40] == [f"two {number}\n" for number in range(40)]
    assert splits["train"][-1] + "".join([*splits["validation"], *splits["test"]]) == "one\n" * 100
    assert texts("books", files, HeldOutFiles("book.txt", "book.txt"))["train"][-1] == "one\n" * 100
    # What validation does not take of the cut, training does.
    held = texts("books", files, HeldOutFiles("book.txt"))
    assert held["validation"] == ["the validation text\n"]
    assert abs(len("".join(held["test"])) - len("".join(splits["test"]))) <= len("one\n")
    held = texts("books", files, HeldOutFiles(test="book.txt"))
    total = sum(len(text) for split in splits.values() for text in split)
    assert held["test"] == ["the validation text\n"]
    assert 0.94 < sum(map(len, held["train"])) / total < 0.96
    assert sum(len(text) for split in ("train", "validation") for text in held[split]) == total


UNFIT_PAIRS = {
    "short": (b"a\nb\n", b"a\n", "train.en has 2 lines and "),
    "an empty line": (b"a\n\nc\n\n\n", b"a\nb\nc\nd\ne\n", "train.en: line 2, and 2 more, is empty"),
    "empty": (b"", b"a\n", "train.en is empty"),
    "blank": (b"\n\n", b"a\n", "train.en is empty"),
    "latin": (b"caf\xe9\n", b"a\n", "as UTF-8 text"),
    "few": (
        b"a\n",
        b"b\n",
        "has too few examples: of 1 none is left for validation; give more, or files of their own by",
    ),
}


@pytest.mark.parametrize("case", UNFIT_PAIRS)
def test_parallel_files_that_are_unfit_are_told_in_one_line(case: str, files: Path) -> None:
    source, target, says = UNFIT_PAIRS[case]
    (files / "train.en").write_bytes(source)
    (files / "train.de").write_bytes(target)
    told = said(lambda: pairs(PARALLEL, files))
    assert says in told
    if case == "short":
        assert "train.de has 1:" in told


UNFIT_FIELDS = {
    "x.tsv": {
        b"": "x.tsv is empty",
        b"source\ttarget\n": "has a line with the names of its columns and no examples",
        b"a\tb\nc\n": "line 2 has 1 of the columns that source, target need",
        b"a\tb\n\nc\td\n": "line 2 has 1 of the columns",
        b"a\t \n": "x.tsv: line 1 has an empty target",
        b"target\tsource\na\t\n": "x.tsv: line 2 has an empty source",
        b"source\ttrget\na\tb\n": "x.tsv: its first line names source but not target: let it name all",
    },
    "x.jsonl": {
        b"": "x.jsonl is empty",
        b'{"source": "a"}\n': "line 1 has no field 'target'; its fields are source",
        b'{"source": "a", "target": null}\n': "line 1 has no text in 'target' but a NoneType",
        b'{"source": "a", "target": true}\n': "has no text in 'target' but a bool",
        b'{"source": "a", "target": NaN}\n': "line 1 has no text in 'target' but NaN: fill or remove it",
        b'{"source": 1e999, "target": "b"}\n': "line 1 has no text in 'source' but Infinity",
        b'{"source": "a", "target": ""}\n': "line 1 has an empty target",
        b'{"source": "a", "target": "\\ud800"}\n': "line 1 is not usable: it holds half a surrogate pair",
        b'{"source": \n': "line 1 is not JSON",
        b"[1]\n": "line 1 is no JSON object but a list",
        b"[" * 9999 + b"\n": "too deep in one another",
        b'{"source": "a", "target": "b"}\n\n{"source": "a", "target": "b"}\n': "line 2 is empty",
    },
    "x.xml": {b"a,b\n": "'x.xml' is no translation set: write phrases, copy, "},
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name in UNFIT_FIELDS for content in UNFIT_FIELDS[name]]
)
def test_fields_that_are_unfit_are_told_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert UNFIT_FIELDS[name][content] in said(lambda: pairs(f"{name}", tmp_path))


def test_names_that_lead_nowhere_or_out_of_the_folder_are_refused(files: Path) -> None:
    folder = files / "books"
    assert "there is no file" in said(lambda: pairs("train.en,train.fr", files))
    assert "names no pairs" in said(lambda: pairs("a.en,b.de,c.fr", files))
    assert "contradicts" in said(lambda: pairs(PARALLEL, files, ("de", "en")))
    for name in (f"{files}/pairs.tsv", "../pairs.tsv"):
        assert "leads out of" in said(lambda name=name: pairs(name, folder))
    for name in (f"{files}/book.txt", "../book.txt"):
        assert "leads out of" in said(lambda name=name: texts(name, folder))
    (folder / "link.txt").symlink_to(files / "book.txt")
    assert "link.txt leads out of" in said(lambda: texts("books", files))
    # Without a folder of the data, a file is what the name says.
    assert len(open_translation_dataset(f"{files}/pairs.tsv", prepared_dir="none").split("train")) == 177
    for held_out in (HeldOutFiles("x"), HeldOutFiles(test="x")):
        for act in (
            lambda held=held_out: pairs("copy", files, held_out=held),
            lambda held=held_out: open_labeled_texts("word_order", held_out=held),
            lambda held=held_out: texts("python_docs", files, held),
        ):
            assert "goes with files of your own alone" in said(act)


def test_texts_that_are_unfit_are_told_in_one_line(tmp_path: Path) -> None:
    for name, content, says in (
        ("a/train.txt", b"", "train.txt is empty"),
        ("b/x.txt", b" \n\n", "x.txt is empty"),
        ("c/x.jsonl", b'{"texts": "a"}\n', "has no field 'text'; its fields are texts"),
        ("d/x.md", b"a", "d holds 1 file of other kinds than .txt, .jsonl (1 .md): x.md; convert or remove them"),
        ("g/README.md", b"a", "holds no .txt file, and no .jsonl"),
        ("e/x.txt", b"one line", "too few lines"),
        ("f/x.txt", b"\xff\xfe", "as UTF-8 text"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
        assert says in said(lambda name=name: texts(str(Path(name).parent), tmp_path))
    assert "does not exist" in said(lambda: texts("absent.jsonl", tmp_path))
    assert "does not exist" in said(lambda: texts("e", tmp_path, HeldOutFiles("absent")))


def test_text_on_one_line_is_too_few_lines_and_not_too_little_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("word " * 17_600)
    assert said(lambda: read_text_splits(path)) == (
        f"{path} has too few lines: its 88,000 characters are cut at line ends, and stand in 1 line, so nothing is "
        "left for validation; break it into more lines, or give files by config.task.validation_files"
    )
    path.write_text("end\n" + "word " * 17_600 + "\n")
    (tmp_path / "dev.txt").write_text("a line\n")
    told = said(lambda: read_text_splits(path, {"validation": tmp_path / "dev.txt"}))
    assert "88,005 characters are cut at line ends, and stand in 2 lines, so nothing is left for test; " in told
    assert told.endswith("or give files by config.task.test_files")
    path.write_text("word\n" * 17_600)
    assert all(read_text_splits(path).splits.values())


ACCENTED = [f"café naïf numéro {number} à Zürich" for number in range(300)]
SPELLINGS = (
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: text.replace(" ", "  "),
    lambda text: text.replace(" ", "\u00a0"),
)


@pytest.mark.parametrize("respell", SPELLINGS, ids=("nfd", "double spaces", "no-break spaces"))
def test_two_spellings_of_a_text_are_in_one_split(respell: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "twins.tsv").write_text(lines([f"{text}\todd" for text in ACCENTED + list(map(respell, ACCENTED))]))
    opened = open_labeled_texts("twins.tsv", data_dir=str(tmp_path), classes=("even", "odd"))
    splits = {split: {text for text, _ in examples} for split, examples in opened.splits.items()}
    for split, texts_of_split in splits.items():
        others = set().union(*(other for name, other in splits.items() if name != split))
        assert texts_of_split
        assert not {respell(text) for text in texts_of_split} & others
    # A text that is composed and has single spaces stays where it was: the digest is that of the text itself.
    for text in ACCENTED:
        part = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) % 20
        assert text in splits[{18: "validation", 19: "test"}.get(part, "train")]


@pytest.mark.parametrize("respell", SPELLINGS, ids=("nfd", "double spaces", "no-break spaces"))
def test_an_overlap_is_counted_in_every_spelling(respell: Callable[[str], str]) -> None:
    splits = {"train": ACCENTED[:20], "validation": list(map(respell, ACCENTED[15:30]))}
    assert describe_overlap(splits, "texts") == "5 of 15 validation texts are in train as well"
    in_tuples = {name: [(text, "second") for text in each] for name, each in splits.items()}
    assert describe_overlap(in_tuples, "texts") == "5 of 15 validation texts are in train as well"
    # Case is kept: "US" and "us" are two texts.
    assert not describe_overlap({"train": ["US"], "validation": ["us"]}, "texts")


def test_a_column_or_field_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.tsv").write_text("text\tlabel\tlabel\n" + "one\ta\tb\n" * 100)
    (tmp_path / "twice.jsonl").write_text('{"text": "one", "label": "a", "label": "b"}\n' * 100)
    for name, says in (
        ("twice.tsv", "its first line names the column label twice: rename one of them"),
        ("twice.jsonl", "line 1 is not usable: it has the key 'label' twice in one object"),
    ):
        told = said(lambda name=name: open_labeled_texts(name, data_dir=str(tmp_path), classes=("a", "b")))
        assert says in told


@pytest.mark.parametrize("name", ["old.tsv", "old.jsonl", "old.en,old.de"])
def test_lines_that_end_with_carriage_returns_alone_are_refused(name: str, tmp_path: Path) -> None:
    for file in ("old.tsv", "old.jsonl", "old.en", "old.de"):
        line = '{"source": "a", "target": "b"}' if file.endswith("l") else "one\tother"
        (tmp_path / file).write_bytes(f"{line}\r{line}\r".encode())
    told = said(lambda: pairs(name, tmp_path))
    assert "ends its lines with carriage returns alone: end them with line feeds" in told


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("text,label\na,x\nb,y\n", [("a", "x"), ("b", "y")]),
        ("id,label,text\n1,x,a\n2,y,b\n", [("a", "x"), ("b", "y")]),
        ("a,x\nb,y\n", [("a", "x"), ("b", "y")]),  # without names: in their order
        ('text,label\n"one, ""two""\nthree",x\n', [('one, "two"\nthree', "x")]),
        ("\ufefftext,label\r\na,x\r\n", [("a", "x")]),
        ('text,label\na "quoted" word,x\n', [('a "quoted" word', "x")]),
        (f"text,label\n{'a' * 200_000},x\n", [("a" * 200_000, "x")]),
    ],
)
def test_a_csv_is_read_by_the_names_of_its_columns(tmp_path: Path, table: str, expected: list[tuple[str, str]]) -> None:
    path = tmp_path / "examples.CSV"
    path.write_bytes(table.encode())
    assert read_fields(path, ("text", "label")) == expected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('text,label\n"a\nb",x\nc\n', "line 4 has 1 of the columns that text, label need, which commas part"),
        ('text,label\na,x\n"b"c,y\n', "line 3 cannot be read .*: put a cell with commas, quotation marks or line ends"),
        ('text,label\na,"x\n', "line 2 cannot be read .*: put a cell"),
        ('text,label\n"a\nb",x\n"c\nd",\n', "line 4 has an empty label: fill or remove it"),
        ("text,other\na,x\n", "its first line names text but not label"),
        ("text,label,text\na,x,b\n", "its first line names the column text twice"),
        ("text,label\n", "has a line with the names of its columns and no examples"),
        (",\n", "is empty: it needs a line for each example"),
        ("", "is empty: it needs a line for each example"),
    ],
)
def test_a_csv_that_is_damaged_is_refused_with_its_line(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "examples.csv"
    path.write_text(table)
    with pytest.raises(UserError, match=message):
        read_fields(path, ("text", "label"))


@pytest.mark.parametrize("name", ["mine.csv", "mine.TSV", "mine.json"])
def test_a_table_is_no_plain_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text,label\na,x\n")
    advice = rf'{name} is no plain text: write a \.jsonl with \{{"text": "..."\}} in each line'
    with pytest.raises(UserError, match=advice):
        read_text_splits(tmp_path / name)
    with pytest.raises(UserError, match=advice):
        find_corpus_files(name, str(tmp_path))
