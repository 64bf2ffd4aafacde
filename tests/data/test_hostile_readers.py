"""Hostile and damaged data of every kind that is read: each is refused in one line that names the file."""

import gzip
import io
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from transformer.config import UserError
from transformer.data.corpus import FileRange, describe_files, read_pieces
from transformer.data.datasets.fine_tuning import FineTuningProblem, open_examples
from transformer.data.datasets.image_datasets import open_image_dataset
from transformer.data.datasets.image_files import Resizing
from transformer.data.datasets.question_answering import read_questions
from transformer.data.datasets.word_labels import read_conll
from transformer.data.token_shards import TokenShards
from transformer.data.tokenize_corpus import tokenize_corpus
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer

Change = Callable[[Path], object]


def refused(read: Callable[[], object], name: str) -> None:
    with pytest.raises(UserError) as caught:
        read()
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 1500


EXAMPLES = [json.dumps({"text": f"text {number}", "label": "ab"[number % 2]}) for number in range(100)]
LINES = {
    "cut off": b'{"text": "a", "label": ',
    "a list": b'["a", "b"]',
    "a number": b"7",
    "a text": b'"a"',
    "null": b"null",
    "no fields": b"{}",
    "no label": b'{"text": "a"}',
    "no text": b'{"label": "a"}',
    "text of null": b'{"text": null, "label": "a"}',
    "text of a list": b'{"text": ["a"], "label": "a"}',
    "text of truth": b'{"text": true, "label": "a"}',
    "text of spaces": b'{"text": "  ", "label": "a"}',
    "text of a no-break space": b'{"text": "\\u00a0", "label": "a"}',
    "label of a list": b'{"text": "a", "label": ["a"]}',
    "label of an object": b'{"text": "a", "label": {"a": 1}}',
    "other label": b'{"text": "a", "label": "c"}',
    "label in capitals": b'{"text": "a", "label": "A"}',
    "empty label": b'{"text": "a", "label": ""}',
    "label of truth": b'{"text": "a", "label": true}',
    "two objects": b'{"text": "a", "label": "b"}{}',
    "single quotes": b"{'text': 'a', 'label': 'b'}",
    "a comment": b"// text",
    "a comma at the end": b'{"text": "a", "label": "a",}',
    "half a surrogate pair": b'{"text": "\\ud800", "label": "a"}',
    "deep": b"[" * 100_000,
    "a huge number": b'{"text": "a", "label": %s}' % (b"9" * 5000),
    "an empty line": b"",
    "names in capitals": b'{"Text": "a", "Label": "a"}',
    "a name twice": b'{"text": "a", "label": "a", "label": "b"}',
    "a raw zero byte": b'{"text": "a\0b", "label": "a"}',
    "no UTF-8": b'{"text": "caf\xe9", "label": "a"}',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_lines_of_objects(line: bytes, tmp_path: Path) -> None:
    lines = [each.encode() for each in EXAMPLES]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*lines[:50], line, *lines[51:]]))
    refused(lambda: open_examples("x.jsonl", data_dir=str(tmp_path), classes=("a", "b")), "x.jsonl")


ROWS = "".join(f"text {number}\t{'ab'[number % 2]}\n" for number in range(100))
TABLES = {
    "one column": ROWS + "x\n",
    "an empty label": ROWS + "x\t\n",
    "an empty text": ROWS + "\ta\n",
    "commas": ROWS.replace("\t", ","),
    "a tab in quotes": ROWS + '"x\ty"\ta\n',
    "half a header": "text\tclass\n" + ROWS,
    "a header twice": "text\tlabel\n" * 2 + ROWS,
    "a header in capitals": "Text\tLabel\n" + ROWS,
    "a column twice": "text\tlabel\tlabel\n" + ROWS.replace("\n", "\tb\n"),
    "carriage returns": ROWS.replace("\n", "\r"),
    "UTF-16": ROWS.encode("utf-16"),
    "compressed": gzip.compress(ROWS.encode()),
    "nothing": "",
    "line ends": "\n\n",
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_tables(content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: open_examples("x.tsv", data_dir=str(tmp_path), classes=("a", "b")), "x.tsv")


NO_FILES: dict[str, Change] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link out": lambda path: path.symlink_to("/etc/hosts"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("name", ["x.tsv", "x.jsonl"])
def test_what_is_no_file(name: str, make: Change, tmp_path: Path) -> None:
    make(tmp_path / name)
    problem = FineTuningProblem.REGRESSION
    refused(lambda: open_examples(name, data_dir=str(tmp_path), problem=problem), name)


CONTEXT = "ann met bob and eve"


def squad(changes: Mapping[str, Any], paragraph: Mapping[str, Any] | None = None) -> dict[str, Any]:
    question = {"question": "who", "answers": [{"text": "ann", "answer_start": 0}], **changes}
    question = {name: value for name, value in question.items() if value is not ...}
    return {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question], **(paragraph or {})}]}]}


QUESTIONS = {
    "a list": [1],
    "no data": {"version": "1"},
    "data of an object": {"data": {}},
    "an article of null": {"data": [None]},
    "no paragraphs": {"data": [{}]},
    "a context of a number": squad({}, {"context": 5}),
    "an empty context": squad({}, {"context": ""}),
    "questions of null": squad({}, {"qas": None}),
    "no questions": squad({}, {"qas": []}),
    "a question of a list": squad({"question": ["who"]}),
    "answers of null": squad({"answers": None}),
    "answers of Hugging Face": squad({"answers": {"text": ["ann"], "answer_start": [0]}}),
    "answers of texts": squad({"answers": ["ann"]}),
    "no answers": squad({"answers": ...}),
    "an answer": squad({"answers": ..., "answer": "ann"}),
    "impossible without answers": squad({"answers": ..., "is_impossible": True}),
    "a start of a text": squad({"answers": [{"text": "ann", "answer_start": "0"}]}),
    "a start of truth": squad({"answers": [{"text": "nn", "answer_start": True}]}),
    "a fractional start": squad({"answers": [{"text": "ann", "answer_start": 0.0}]}),
    "a negative start": squad({"answers": [{"text": "eve", "answer_start": -3}]}),
    "a start beyond": squad({"answers": [{"text": "x", "answer_start": 10**30}]}),
    "no text": squad({"answers": [{"answer_start": 0}]}),
    "an empty text": squad({"answers": [{"text": "", "answer_start": 0}]}),
    "a text of a space": squad({"answers": [{"text": " ", "answer_start": 3}]}),
    "a second answer elsewhere": squad({"answers": [{"text": t, "answer_start": 0} for t in ("ann", "bob")]}),
    "a place in UTF-16": squad({"answers": [{"text": "ann", "answer_start": 3}]}, {"context": "🙂 ann"}),
}


@pytest.mark.parametrize("document", QUESTIONS.values(), ids=QUESTIONS)
def test_documents_of_questions(document: object, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(document))
    refused(lambda: read_questions(tmp_path / "x.json"), "x.json")


WORDS = "EU B-ORG\nrejects O\n\nPeter B-PER\n"
TAGGED = {
    "a word alone": WORDS + "word\n",
    "a label alone": WORDS + "\tO\n",
    "a no-break space between": WORDS + "word\u00a0O\n",
    "an ideographic space between": WORDS + "word\u3000O\n",
    "a line of a no-break space": "EU O\n\u00a0\nrejects O\n",
    "documents without words": "-DOCSTART- -X- O\n\n",
    "a comment": "# sent_id = 1\n" + WORDS,
    "commas": "EU,B-ORG\n",
    "no UTF-8": WORDS.encode() + b"\xff O\n",
    "compressed": gzip.compress(WORDS.encode()),
    "nothing": "",
}


@pytest.mark.parametrize("content", TAGGED.values(), ids=TAGGED)
def test_words_with_labels(content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: read_conll(tmp_path / "x.conll"), "x.conll")


COLUMNS = {
    "numbers": pyarrow.array([1, 2]),
    "bytes": pyarrow.array([b"a"]),
    "lists": pyarrow.array([["a"]]),
    "structs": pyarrow.array([{"text": "a"}]),
    "nothing": pyarrow.nulls(3),
    "a dictionary of numbers": pyarrow.array([1, 2]).dictionary_encode(),
    "a dictionary of no UTF-8": pyarrow.array([b"\xff"] * 3).view(pyarrow.string()).dictionary_encode(),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_texts(column: pyarrow.Array, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet")
    refused(lambda: read_corpus(tmp_path / "x.parquet"), "x.parquet")


@pytest.mark.parametrize("damage", ["cut off", "long footer", "zeros", "magic alone"])
def test_parquet_files(damage: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"] * 50}), tmp_path / "x.parquet")
    content = (tmp_path / "x.parquet").read_bytes()
    damaged = {
        "cut off": content[:-20],
        "long footer": content[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1",
        "zeros": bytes(1000),
        "magic alone": b"PAR1PAR1",
    }
    (tmp_path / "x.parquet").write_bytes(damaged[damage])
    refused(lambda: read_corpus(tmp_path / "x.parquet"), "x.parquet")


def read_corpus(path: Path) -> list[str]:
    (file,) = describe_files([path])
    return [piece.text for piece in read_pieces(FileRange(file, 0, file.size))]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").mkdir()
    byte_tokenizer(("end",)).save(tmp_path / "tokenizer")
    (tmp_path / "x.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(100)))
    files = describe_files([tmp_path / "x.jsonl"])
    return tokenize_corpus(files, tmp_path / "tokenizer", tmp_path / "shards", part_bytes=1000).folder


INDEXES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another end": lambda index: {"end_id": 10},
    "a negative end": lambda index: {"end_id": -1},
    "an end of a text": lambda index: {"end_id": "256"},
    "an end of truth": lambda index: {"end_id": True},
    "a small vocabulary": lambda index: {"vocab_size": 256},
    "a huge vocabulary": lambda index: {"vocab_size": 2**40},
    "more documents": lambda index: {"num_documents": [count + 1 for count in index["num_documents"]]},
    "documents in another order": lambda index: {"num_documents": index["num_documents"][::-1]},
    "tokens in another order": lambda index: {"num_tokens": index["num_tokens"][::-1]},
    "digests in another order": lambda index: {"shard_sha256": index["shard_sha256"][::-1]},
    "samples in another order": lambda index: {"samples_sha256": index["samples_sha256"][::-1]},
    "a shard less": lambda index: {name: each[:-1] for name, each in index.items() if isinstance(each, list)},
    "another corpus": lambda index: {"corpus_sha256": "0" * 64},
    "another tokenizer": lambda index: {"tokenizer_sha256": "f" * 64},
    "another version": lambda index: {"version": 3},
    "a version of truth": lambda index: {"version": True},
    "an unknown key": lambda index: {"more": 1},
    "huge counts": lambda index: {"num_tokens": [2**31 - 1] * len(index["num_tokens"])},
    "fractional counts": lambda index: {"num_tokens": [float(count) for count in index["num_tokens"]]},
}


@pytest.mark.parametrize("change", INDEXES.values(), ids=INDEXES)
def test_indexes_of_shards(change: Callable[[dict[str, Any]], dict[str, Any]], shards: Path) -> None:
    index = json.loads((shards / "index.json").read_text())
    (shards / "index.json").write_text(json.dumps({**index, **change(index)}))
    refused(lambda: TokenShards(shards), "index.json")


SHARDS: dict[str, Change] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0\0"),
    "odd": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "turned": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("damage", SHARDS.values(), ids=SHARDS)
def test_shards(damage: Change, shards: Path) -> None:
    damage(shards / "00001.tokens")
    refused(lambda: TokenShards(shards), "00001.tokens")


def png(width: int = 6, height: int = 6, pixels: bytes | None = None, *chunks: bytes) -> bytes:
    rows = zlib.compress((b"\0" + bytes(3 * width)) * height) if pixels is None else pixels
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *chunks, _chunk(b"IDAT", rows), _chunk(b"IEND", b"")])


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


BOMB = zlib.compress(bytes(100 << 20), 1)
IMAGES: dict[str, bytes | Change] = {
    "nothing": b"",
    "a text": b"hello",
    "a GIF": b"GIF89a" + bytes(20),
    "a TIFF": b"II*\0" + bytes(30),
    "cut off": png(50, 50)[:60],
    "a large header": png(100_000, 100_000, b""),
    "a long header": png(2**31 - 1, 1, b""),
    "no size": png(0, 0, b""),
    "no pixels": png(6, 6, b""),
    "a large text": png(6, 6, None, _chunk(b"zTXt", b"a\0\0" + BOMB)),
    "a large profile": png(6, 6, None, _chunk(b"iCCP", b"a\0\0" + BOMB)),
    "a large file": lambda path: (path.write_bytes(b""), os.truncate(path, 70 << 20)),
    "a huge file": lambda path: (path.write_bytes(b""), os.truncate(path, 1 << 36)),
    **NO_FILES,
}


@pytest.mark.parametrize("content", IMAGES.values(), ids=IMAGES)
def test_images(content: bytes | Change, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    for number in range(4):
        path = tmp_path / "pets" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    path = tmp_path / "pets" / "train" / "a" / "x.png"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    refused(lambda: open_image_dataset("pets", data_dir=str(tmp_path), resizing=Resizing(4)), "pets/train")


def packed(*members: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"set/{'ab'[number % 2]}/{number}.png")
            member.size = len(png())
            archive.addfile(member, io.BytesIO(png()))
        for member in members:
            archive.addfile(member)
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    described = tarfile.TarInfo(name)
    described.type, described.linkname, described.size = kind, link, size
    return described


ARCHIVES = {
    "nothing": b"",
    "a text": b"hello",
    "zeros": bytes(2000),
    "cut off in a file": gzip.compress(packed()[:700]),
    "cut off in the compression": gzip.compress(packed())[:100],
    "a link": packed(member("set/a/x.png", tarfile.SYMTYPE, "/etc/passwd")),
    "a hard link": packed(member("set/a/x.png", tarfile.LNKTYPE, "set/a/0.png")),
    "a device": packed(member("set/a/x.png", tarfile.CHRTYPE)),
    "a pipe": packed(member("set/a/x.png", tarfile.FIFOTYPE)),
    "a way out": packed(member("../../x.png")),
    "no class": packed(member("x.png")),
    "another kind": packed(member("set/a/x.gif")),
    "an empty image": packed(member("set/a/x.png")),
    "a huge file": packed()[:-10240] + member("set/a/x.png", size=1 << 40).tobuf(tarfile.GNU_FORMAT),
    "a huge name": packed()[:4096] + member("x", tarfile.GNUTYPE_LONGNAME, size=1 << 32).tobuf(tarfile.GNU_FORMAT),
    "huge attributes": packed()[:4096] + member("x", tarfile.XHDTYPE, size=1 << 32).tobuf(tarfile.GNU_FORMAT),
}


@pytest.mark.parametrize("content", ARCHIVES.values(), ids=ARCHIVES)
def test_archives_of_images(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "train.tar").write_bytes(content)
    refused(lambda: open_image_dataset("pets", data_dir=str(tmp_path)), "train.tar")
