"""The files of a corpus: how they are found, known and divided, and that their pieces are their texts."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from transformer.config import UserError
from transformer.data import corpus
from transformer.data.corpus import (
    CorpusFile,
    FileRange,
    corpus_fingerprint,
    describe_files,
    divide_files,
    find_corpus_files,
    read_pieces,
    sample_texts,
)
from transformer.data.parquet_metadata import ColumnChunk, page_sizes, read_column_chunks
from transformer.data.tokenizers.train_tokenizer import train_byte_bpe

# Line ends beside white space of every kind, lines that are long, and letters of one to four bytes.
TEXT = "\ufeff" + "".join(
    f"Line {n}: é ü 你好 🙂{' ' * (n % 3)}\n{'　' * (n % 2)}{'\n' * (n % 4 == 3)}{'x' * (n % 50)} end\r\n"
    for n in range(150)
)
DOCUMENTS = ["one", "", "two\nlines\u2028here", "  ", "three é" * 40, "four"]


def write_corpus(folder: Path, suffix: str) -> Path:
    path = folder / f"corpus{suffix}"
    match suffix:
        case ".txt":
            path.write_text(TEXT, encoding="utf-8", newline="")
        case ".jsonl":
            lines = [json.dumps({"id": 1, "text": text}, ensure_ascii=False) for text in DOCUMENTS]
            path.write_text("\n".join([*lines[:3], "", *lines[3:]]), encoding="utf-8")  # a line is empty, the last open
        case _:
            pyarrow.parquet.write_table(pyarrow.table({"id": range(6), "text": DOCUMENTS}), path, row_group_size=2)
    return path


def joined(parts: Sequence[Sequence[FileRange]]) -> list[str]:
    """The documents of all parts, and what follows the last of them."""
    documents = [""]
    for piece in (piece for part in parts for each in part for piece in read_pieces(each)):
        documents[-1] += piece.text
        if piece.ends:
            documents.append("")
    return documents


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
def test_the_parts_of_a_file_have_each_document_once_however_they_are_cut(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = describe_files([write_corpus(tmp_path, suffix)])
    wanted = [TEXT[1:]] if suffix == ".txt" else [text for text in DOCUMENTS if text.strip()]
    for piece_bytes, part_bytes in ((16, 64), (16, 1 << 20), (1 << 18, 30), (1 << 18, 1000)):
        monkeypatch.setattr(corpus, "PIECE_BYTES", piece_bytes)
        parts = divide_files([file], part_bytes)
        assert joined(parts) == [*wanted, ""]
        assert all(sum(stop - start for _, start, stop in part) <= part_bytes for part in parts)


def test_a_line_is_in_one_of_two_parts_at_whatever_byte_they_meet(tmp_path: Path) -> None:
    (file,) = describe_files([write_corpus(tmp_path, ".jsonl")])
    for cut in range(1, file.size):  # also where a line begins
        parts = [[FileRange(file, 0, cut)], [FileRange(file, cut, file.size)]]
        assert joined(parts) == [*(text for text in DOCUMENTS if text.strip()), ""]


def test_a_text_that_is_cut_has_the_tokens_of_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT[1:].replace("\r\n", "\n")
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8", newline="")
    monkeypatch.setattr(corpus, "PIECE_BYTES", 100)
    pieces = [
        piece.text for part in divide_files(describe_files([path]), 999) for each in part for piece in read_pieces(each)
    ]
    assert len(pieces) > 40
    tokenizer = train_byte_bpe([text], 400)
    assert [number for ids in tokenizer.encode(pieces) for number in ids] == tokenizer.encode([text])[0]


def test_a_line_without_end_is_cut_between_two_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("é你🙂" * 100, encoding="utf-8")
    monkeypatch.setattr(corpus, "PIECE_BYTES", 10)
    monkeypatch.setattr(corpus, "_SEARCH_BYTES", (8, 16))
    pieces = list(read_pieces(FileRange(*describe_files([path]), 0, path.stat().st_size)))
    assert "".join(piece.text for piece in pieces) == "é你🙂" * 100
    assert max(len(piece.text.encode()) for piece in pieces) <= 10 + 16


def test_small_files_share_a_part_and_keep_their_order() -> None:
    files = [CorpusFile(f"{name}.txt", size, "") for name, size in (("a", 3), ("b", 4), ("c", 25), ("d", 1))]
    parts = [[(file.name, start, stop) for file, start, stop in part] for part in divide_files(files, 10)]
    assert parts == [
        [("a.txt", 0, 3), ("b.txt", 0, 4)],
        [("c.txt", 0, 8)],
        [("c.txt", 8, 16)],
        [("c.txt", 16, 25), ("d.txt", 0, 1)],
    ]


def test_files_are_found_by_name_folder_and_pattern(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.txt", "sub/c.parquet", "valid.txt", ".hidden.txt", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    found = find_corpus_files(str(tmp_path))
    assert {split: [file.name for file in files] for split, files in found.items()} == {
        "train": ["a.txt", "b.jsonl", "c.parquet"],
        "validation": ["valid.txt"],
    }
    assert [file.name for file in find_corpus_files(f"{tmp_path}/*.txt")["train"]] == ["a.txt", "valid.txt"]
    assert [file.name for file in find_corpus_files("*/*.parquet", str(tmp_path))["train"]] == ["c.parquet"]
    (tmp_path / "odd[1].txt").write_text("text")
    assert [file.name for file in find_corpus_files(f"{tmp_path}/odd[1].txt")["train"]] == ["odd[1].txt"]


def test_a_corpus_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    content = bytes(range(32, 127)) * 5000
    (tmp_path / "sub").mkdir()
    same = [tmp_path / "a.txt", tmp_path / "sub" / "b.txt"]
    for path in same:
        path.write_bytes(content)
    first, second = (corpus_fingerprint(describe_files([path])) for path in same)
    assert first == second
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        same[1].write_bytes(changed)
        assert corpus_fingerprint(describe_files([same[1]])) != first


def test_a_sample_is_bounded_and_from_the_whole_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PIECE_BYTES", 200)
    numbers = list(range(5000))
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in numbers[:2500]))
    table = pyarrow.table({"text": [f"{n}\n" for n in numbers[2500:]]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet", row_group_size=500, compression="none")
    files = describe_files([tmp_path / "a.txt", tmp_path / "b.parquet"])
    sampled = "".join(sample_texts(files, 4000))
    assert 2000 <= len(sampled) <= 6000
    seen = {int(line) for line in sampled.split()}
    assert any(n < 300 for n in seen)
    assert {n // 500 for n in seen} >= set(range(9))
    assert "".join(sample_texts(files, 10**6)) == "".join(f"{n}\n" for n in numbers)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.txt",
            b"caf\xe9 au lait",
            "a.txt, byte 0: this is not UTF-8 text (invalid continuation byte at 3 from there)",
        ),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"txet": "b"}\n',
            "a.jsonl, byte 14: the line has no field 'text'; its fields are txet",
        ),
        ("a.jsonl", b'{"text": 5}\n', "a.jsonl, byte 0: the line has no text in 'text' but a int; its fields are text"),
        ("a.jsonl", b"{", "a.jsonl, byte 0 is not JSON"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as a .parquet file"),
        ("a.txt", b"", "a.txt is empty: give it text, or remove it"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(read_pieces(FileRange(*describe_files([path]), 0, len(content))))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_missing_or_has_no_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file matches"):
        find_corpus_files(f"{tmp_path}/*.txt")
    with pytest.raises(UserError, match="there is no file"):
        describe_files(find_corpus_files(f"{tmp_path}/a.txt")["train"])
    pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), tmp_path / "a.parquet")
    (file,) = describe_files([tmp_path / "a.parquet"])
    with pytest.raises(UserError, match="has no column 'text' of strings; its columns are content"):
        list(read_pieces(FileRange(file, 0, file.size)))
    (tmp_path / "b.txt").write_text("a longer text")
    (file,) = describe_files([tmp_path / "b.txt"])
    (tmp_path / "b.txt").write_text("a")
    with pytest.raises(UserError, match="has become shorter than 13 bytes while it was read"):
        list(read_pieces(FileRange(file, 0, file.size)))


def parquet_texts(path: Path) -> list[str]:
    (file,) = describe_files([path])
    return [piece.text for piece in read_pieces(FileRange(file, 0, file.size))]


STRINGS = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())


@pytest.mark.parametrize("kind", [*STRINGS, pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str)
def test_texts_of_every_type_of_strings_are_read(kind: pyarrow.DataType, tmp_path: Path) -> None:
    texts = [f"document {number % 7} é" for number in range(300)]
    for options in ({}, {"row_group_size": 70}, {"compression": "zstd", "data_page_version": "2.0"}):
        array = pyarrow.array(texts).cast(kind)
        pyarrow.parquet.write_table(pyarrow.table({"id": range(300), "text": array}), tmp_path / "a.parquet", **options)
        assert pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").schema_arrow.field("text").type == kind
        assert parquet_texts(tmp_path / "a.parquet") == texts


def test_a_parquet_that_is_no_utf_8_or_ambiguous_is_refused(tmp_path: Path) -> None:
    texts = pyarrow.array([b"one", b"tw\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "bytes.parquet")
    with pytest.raises(UserError, match=r"bytes\.parquet, row group 0: its column 'text' has a text that is not UTF-8"):
        parquet_texts(tmp_path / "bytes.parquet")
    twice = pyarrow.table([pyarrow.array(["one"]), pyarrow.array(["other"])], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(UserError, match=r"twice\.parquet has 2 columns 'text': give the others other names"):
        parquet_texts(tmp_path / "twice.parquet")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_sizes_of_pages_are_those_of_the_file(version: str, dictionary: bool, tmp_path: Path) -> None:
    table = pyarrow.table({"id": range(3000), "text": [f"{n % 900} document {'x' * (n % 90)}" for n in range(3000)]})
    options = {"data_page_version": version, "use_dictionary": dictionary, "row_group_size": 1500}
    options |= {"data_page_size": 3000, "write_batch_size": 50}
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", **options, write_statistics=True, compression="zstd")
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata
    content = (tmp_path / "a.parquet").read_bytes()
    chunks = read_column_chunks(io.BytesIO(content), len(content), "text")
    assert len(chunks) == metadata.num_row_groups == 2
    chunk = metadata.row_group(1).column(1)
    start = chunk.dictionary_page_offset if dictionary else chunk.data_page_offset
    assert chunks[1] == (start, start + chunk.total_compressed_size, metadata.row_group(1).num_rows)
    ends, sizes = [], []
    with (tmp_path / "a.parquet").open("rb") as file:
        for size in page_sizes(file, chunks[1]):
            sizes.append(size)
            ends.append(file.tell() + size.compressed)
    # Page behind page the headers lead to the column's end, and their sizes add up to what its metadata says.
    assert ends[-1] == chunks[1].stop
    assert len(sizes) > (1 if dictionary else 10)
    headers = chunk.total_compressed_size - sum(size.compressed for size in sizes)
    assert sum(size.uncompressed for size in sizes) + headers == chunk.total_uncompressed_size


def test_a_page_that_would_fill_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "a.parquet"
    # As a value and as the dictionary of many rows: 1 MiB in a few hundred bytes.
    value = "x" * (1 << 20)
    for texts in ([value], ["short", value, value]):
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), bomb, compression="zstd")
        assert bomb.stat().st_size < 5_000
        assert sum(map(len, parquet_texts(bomb))) == sum(map(len, texts))
        with monkeypatch.context() as patch:
            patch.setattr(corpus, "_MAX_PAGE_BYTES", 1 << 16)
            patch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", None)
            with pytest.raises(UserError, match=r"row group 0: a page of its column 'text' has 1,048,\d+ bytes, more"):
                parquet_texts(bomb)


def test_rows_are_decoded_together_as_far_as_their_pages_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One long value in the dictionary of many rows.
    texts = ["x" * 1000] * 300
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    asked, iter_batches = [], pyarrow.parquet.ParquetFile.iter_batches

    def recorded(file: pyarrow.parquet.ParquetFile, rows: int, **options: object) -> object:
        asked.append(rows)
        return iter_batches(file, rows, **options)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", recorded)
    for most, rows in ((1 << 28, 64), (8_100, 8), (1_100, 1)):
        monkeypatch.setattr(corpus, "_MAX_PAGE_BYTES", most)
        assert parquet_texts(tmp_path / "a.parquet") == texts
        assert asked.pop() == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its metadata end too early"),
        (b"\x00", "the page at byte 0 has no size"),
        (bytes([0x15, 0, 0x15, 1, 0x15, 2, 0]), "the page at byte 0 has no size"),
        (bytes([0x15, *[0xFF] * 11]), "a number of more than 64 bits"),
        (bytes([0x1C] * 40), "nested too deep"),
        (bytes([0x19, 0xFC, *[0xFF] * 8, 0x01]), "too many fields"),
        (bytes([0x18, *[0xFF] * 9, 0x01]), "have a text of [0-9,]+ bytes"),
        (bytes([0x1D]), "a field of kind 13"),
    ],
)
def test_malformed_page_headers_are_errors(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(page_sizes(io.BytesIO(content), ColumnChunk(0, 10, 1)))


def test_a_damaged_footer_does_not_end_the_process(tmp_path: Path) -> None:
    table = pyarrow.table({"id": range(200), "text": [f"document {n} é" for n in range(200)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="gzip", row_group_size=50)
    content = (tmp_path / "a.parquet").read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    whole, random, refused = parquet_texts(tmp_path / "a.parquet"), np.random.default_rng(0), 0
    for place in random.integers(len(content) - footer, len(content), 300):
        damaged = bytearray(content)
        damaged[place] ^= 1 << random.integers(8)
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            # What is no number of a text, such as a name or a statistic, may differ.
            assert parquet_texts(tmp_path / "a.parquet") == whole
        except UserError:
            refused += 1
    assert refused > 50


def test_a_page_whose_checksum_differs_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["a text that is changed"] * 3})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="none", write_page_checksum=True)
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"a text that is changed", b"a text that is damaged", 1))
    with pytest.raises(UserError, match=r"a\.parquet cannot be read as a \.parquet file: .*CRC"):
        parquet_texts(tmp_path / "a.parquet")
