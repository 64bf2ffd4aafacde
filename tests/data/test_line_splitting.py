r"""Lines end with "\n" alone: every reader of lines has as many as the bytes say, and all that stands on them."""

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest

from launch.flag_parsing import parse_arguments
from launch.generate import COMMAND, arrange_answers_by_line, read_texts
from transformer.config import UserError
from transformer.data.datasets import multi30k
from transformer.data.datasets.glue import read_glue
from transformer.data.datasets.local_files import read_fields, read_lines
from transformer.data.datasets.text_files import read_text_splits
from transformer.data.datasets.tfds_records import _read_class_names
from transformer.data.line_splitting import split_lines
from transformer.data.tokenizers.huggingface_tokenizers import load_wordpiece_tokenizer
from transformer.tasks.word_alignment_evaluation import read_alignment_files

# What str.splitlines, text mode or a database of Unicode takes for the end of a line; within a line of ours.
NO_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
LETTERS = "ab é中😀\u200b\ufeff\u00a0" + NO_ENDS
WORDPIECE = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


def random_lines(seed: int, *, blank: bool) -> list[str]:
    r"""Lines of random characters, each with a letter in it but for blank ones, and none that ends with "\r"."""
    drawn = random.Random(seed)

    def line() -> str:
        inner = "".join(drawn.choices(LETTERS, k=drawn.randrange(8)))
        return f"x{inner}y"

    return ["" if blank and drawn.random() < 0.3 else line() for _ in range(drawn.randrange(1, 9))]


SEEDS = range(300)


def test_lines_are_those_of_the_bytes() -> None:
    for seed in SEEDS:
        lines = random_lines(seed, blank=True)
        whole = "".join(f"{line}\n" for line in lines)
        assert split_lines(whole) == lines
        assert split_lines(whole.replace("\n", "\r\n")) == lines
        assert split_lines(whole + "last") == [*lines, "last"]
    assert split_lines("") == []
    assert split_lines("\n") == [""]


def test_standard_input_has_an_answer_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        lines = random_lines(seed, blank=True)
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        texts = read_texts(parse_arguments(COMMAND, ["--workdir=run"]))
        assert texts == lines
        if not any(lines):
            continue
        # Two samples of each, of which one has a line end in it. A carriage return is escaped, too.
        answers = [answer for text in texts if text for answer in (f"{text}!", f"{text}\n?")]
        printed = "".join(f"{line}\n" for line in arrange_answers_by_line(texts, answers))
        assert printed.count("\n") == 2 * content.count(b"\n")
        escaped = [line.replace("\r", r"\r") for line in lines]
        expected = [shown for line in escaped for shown in ((f"{line}!", rf"{line}\n?") if line else ("", ""))]
        assert printed.split("\n")[:-1] == expected


def test_an_empty_standard_input_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UserError, match=r"^standard input is empty: write one text per line, or pass --text=''$"):
        read_texts(parse_arguments(COMMAND, ["--workdir=run"]))


def test_readers_of_examples_keep_every_line(tmp_path: Path) -> None:
    for seed in SEEDS:
        lines = random_lines(seed, blank=False)
        count, whole = len(lines), "".join(f"{line}\n" for line in lines)
        file = tmp_path / "lines"
        file.write_bytes(whole.encode())
        assert read_lines(file) == lines
        (tmp_path / "caption.gz").write_bytes(gzip.compress(whole.encode()))
        assert multi30k.read_lines(tmp_path / "caption.gz") == multi30k.read_lines(file) == lines
        columns = tmp_path / "columns.tsv"
        columns.write_bytes("".join(f"{line}\t{number}\n" for number, line in enumerate(lines)).encode())
        expected = [(line, str(number)) for number, line in enumerate(lines)]
        assert read_fields(columns, ("text", "label")) == expected
        with (tmp_path / "columns.csv").open("w", encoding="utf-8", newline="") as table:
            csv.writer(table).writerows(enumerate(lines))
        assert read_fields(tmp_path / "columns.csv", ("label", "text")) == [(n, line) for line, n in expected]
        # As it stands in the file, and escaped as JSON may.
        for ascii_only in (False, True):
            objects = tmp_path / "objects.jsonl"
            rows = [json.dumps({"text": t, "label": n}, ensure_ascii=ascii_only) for t, n in expected]
            objects.write_bytes("".join(f"{row}\n" for row in rows).encode())
            assert read_fields(objects, ("text", "label")) == expected
        (tmp_path / "book.txt").write_bytes(whole.encode())
        held = {name: file for name in ("validation", "test")}
        documents = read_text_splits(tmp_path / "book.txt", held).splits
        assert documents == {split: [whole] for split in ("train", "validation", "test")}
        (tmp_path / "CoLA" / "raw").mkdir(parents=True, exist_ok=True)
        for part in ("in_domain_train", "in_domain_dev", "out_of_domain_dev"):
            sentences = "".join(f"source\t1\t*\t{line}\n" for line in lines)
            (tmp_path / "CoLA" / "raw" / f"{part}.tsv").write_bytes(sentences.encode())
        assert [each.text for each in read_glue("CoLA", str(tmp_path))["train"]] == lines
        if count > 1:
            links = tmp_path / "links"
            links.write_bytes(b"0-0\n" * count)
            assert [(pair.source, pair.target) for pair in read_alignment_files(file, file, links)] == [
                (line, line) for line in lines
            ]


def test_texts_that_are_cut_lose_nothing(tmp_path: Path) -> None:
    for seed in range(0, 300, 10):
        whole = "".join(f"{line}\n" for n in range(40) for line in random_lines(seed * 40 + n, blank=True))
        (tmp_path / "book.txt").write_bytes(whole.encode())
        read = read_text_splits(tmp_path / "book.txt")
        assert not read.named_splits
        assert "".join(text for split in ("train", "validation", "test") for text in read.splits[split]) == whole


def test_names_a_line_are_as_many_as_the_file_has(tmp_path: Path) -> None:
    for seed in SEEDS:
        names = list(dict.fromkeys(random_lines(seed, blank=False)))
        content = "".join(f"{name}\n" for name in names).encode()
        (tmp_path / "label.labels.txt").write_bytes(content)
        assert _read_class_names(tmp_path, "label", {"numClasses": len(names)}) == tuple(names)
        (tmp_path / "vocab.txt").write_bytes("".join(f"{token}\n" for token in WORDPIECE).encode() + content)
        made = load_wordpiece_tokenizer(tmp_path / "vocab.txt")
        assert made.pieces(range(made.vocab_size)) == [*WORDPIECE, *names]
