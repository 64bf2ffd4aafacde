"""Tokenizing a corpus: byte for byte the same shards by any number of processes and after a kill at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.data.corpus import CorpusFile, describe_files
from transformer.data.token_shards import TokenShards
from transformer.data.tokenize_corpus import TokenizingProgress, tokenize_corpus
from transformer.data.tokenizers.train_tokenizer import add_special_tokens, byte_tokenizer, train_byte_bpe

PART_BYTES = 5_000
NUM_SHARDS = 20
PROGRAM = """
import sys
from pathlib import Path

from transformer.data.corpus import describe_files
from transformer.data.tokenize_corpus import tokenize_corpus

if __name__ == "__main__":
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    print("ready", flush=True)
    tokenize_corpus(
        describe_files([folder / "a.txt"]), folder / "tokenizer", folder / "killed", num_processes=processes,
        part_bytes=int(sys.argv[3]), report=lambda progress: print(progress.num_shards, flush=True),
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, its tokenizer, and its shards, made by this process at once."""
    folder = tmp_path_factory.mktemp("corpus")
    text = "".join(f"line {n} of {n * n} and of no more than {n % 97} words\n" for n in range(2_000))
    (folder / "a.txt").write_text(text)
    (folder / "tokenizer").mkdir()
    train_byte_bpe([text[:10_000]], 300).save(folder / "tokenizer")
    (folder / "program.py").write_text(PROGRAM)
    tokenized(folder)
    return folder


def tokenized(folder: Path, into: str = "whole", processes: int = 1) -> TokenShards:
    return tokenize_corpus(
        describe_files([folder / "a.txt"]),
        folder / "tokenizer",
        folder / into,
        num_processes=processes,
        part_bytes=PART_BYTES,
    )


def content(shards_dir: Path) -> dict[str, bytes]:
    """All files but the lock and those that a kill has left half written."""
    return {
        str(path.relative_to(shards_dir)): path.read_bytes()
        for path in sorted(shards_dir.rglob("*"))
        if path.is_file() and path.suffix not in (".lock", ".new")
    }


def killed(folder: Path, processes: int, delays: Sequence[float]) -> int:
    """Start tokenizing again and again, kill it after so many seconds each, and return how many were killed."""
    words = [sys.executable, str(folder / "program.py"), str(folder), str(processes), str(PART_BYTES)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    count = 0
    for delay in delays:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(delay)
            count += process.poll() is None
            process.send_signal(signal.SIGKILL)
    return count


def test_a_kill_at_any_moment_changes_no_byte(folder: Path) -> None:
    count = killed(folder, 1, (0.01, 0.04))
    assert count == 2
    tokenized(folder, "killed")
    assert content(folder / "killed") == content(folder / "whole")


@pytest.mark.slow
def test_twenty_kills_change_no_byte(folder: Path, tmp_path: Path) -> None:
    text = (folder / "a.txt").read_text() * 100
    (tmp_path / "a.txt").write_text(text)
    for name in ("tokenizer", "program.py"):
        (tmp_path / name).symlink_to(folder / name)
    draw = random.Random(0)
    count = sum(killed(tmp_path, processes, [draw.uniform(0, 0.3) for _ in range(10)]) for processes in (1, 2))
    assert count >= 10
    for into, processes in (("killed", 2), ("whole", 1)):
        tokenized(tmp_path, into, processes)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_several_processes_make_the_same_shards(folder: Path) -> None:
    assert len(tokenized(folder, "by two", 2).index.num_tokens) == NUM_SHARDS
    assert content(folder / "by two") == content(folder / "whole")


def test_what_is_tokenized_is_found_and_what_is_missing_is_made(folder: Path) -> None:
    shards = tokenized(folder, "found")
    made = {path: path.stat().st_mtime_ns for path in shards.folder.iterdir()}
    tokenized(folder, "found")
    assert {path: path.stat().st_mtime_ns for path in shards.folder.iterdir()} == made
    for name in ("index.json", "00003.tokens"):
        (shards.folder / name).unlink()
    (shards.folder / "00004.tokens.77.new").write_bytes(b"half")
    reports: list[TokenizingProgress] = []
    tokenize_corpus(
        describe_files([folder / "a.txt"]),
        folder / "tokenizer",
        folder / "found",
        part_bytes=PART_BYTES,
        report=reports.append,
    )
    assert content(folder / "found") == content(folder / "whole")
    assert [each.num_shards for each in reports] == list(range(NUM_SHARDS + 1))
    assert reports[-1] == TokenizingProgress(NUM_SHARDS, NUM_SHARDS, len(shards))
    assert (shards.folder / "00004.tokens").stat().st_mtime_ns == made[shards.folder / "00004.tokens"]
    assert not list(shards.folder.glob("*.new"))


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer.data.corpus._BLOCK_BYTES", 1 << 13)
    (tmp_path / "tokenizer").mkdir()
    byte_tokenizer(("end",)).save(tmp_path / "tokenizer")

    def peak(num_documents: int) -> int:
        path = tmp_path / f"{num_documents}.jsonl"
        path.write_text("".join(f'{{"text": "document {n:09d}"}}\n' for n in range(num_documents)))
        tracemalloc.start()
        try:
            shards = tokenize_corpus(
                describe_files([path]), tmp_path / "tokenizer", tmp_path / "shards", part_bytes=1 << 15
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert shards.num_documents == num_documents
        return peak

    few = peak(2_000)  # which fill two shards
    # Of ten times as many documents nothing stays but the shards' own numbers: less than two bytes a document.
    # What other threads of the process allocate meanwhile is in no two measurements.
    assert min(peak(20_000), peak(20_001)) < few + 2 * 18_000


def test_another_text_or_tokenizer_has_another_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "tokenizer").mkdir()
    byte_tokenizer(("end",)).save(tmp_path / "tokenizer")
    files = describe_files([tmp_path / "a.txt"])
    folders = {tokenize_corpus(files, each / "tokenizer", tmp_path / "shards").folder for each in (folder, tmp_path)}
    (tmp_path / "a.txt").write_text("test")
    folders.add(
        tokenize_corpus(describe_files([tmp_path / "a.txt"]), tmp_path / "tokenizer", tmp_path / "shards").folder
    )
    assert len(folders) == 3


def test_what_cannot_be_tokenized_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no end").mkdir()
    add_special_tokens(byte_tokenizer().backend, ()).save(tmp_path / "no end")
    files = describe_files([folder / "a.txt"])
    with pytest.raises(UserError, match="has no end token, which token shards need"):
        tokenize_corpus(files, tmp_path / "no end", tmp_path / "shards")
    before = [CorpusFile(each.name, each.size, "0" * 64) for each in files]
    with pytest.raises(UserError, match=r"a\.txt has changed while it was tokenized: start again"):
        tokenize_corpus(before, folder / "tokenizer", tmp_path / "shards")
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match=r"a\.jsonl have no text: give some"):
        tokenize_corpus(describe_files([tmp_path / "a.jsonl"]), folder / "tokenizer", tmp_path / "shards")
    (tmp_path / "b.txt").write_bytes(b"\xff\xff")
    for processes in (1, 2):
        with pytest.raises(UserError, match=r"b\.txt, byte 0: this is not UTF-8 text"):
            tokenize_corpus(
                describe_files([tmp_path / "b.txt"]), folder / "tokenizer", tmp_path / "shards", num_processes=processes
            )


def test_special_tokens_written_in_the_text_are_counted_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("one <end> two <end>\n" * 600)
    (tmp_path / "tokenizer").mkdir()
    byte_tokenizer(("end",)).save(tmp_path / "tokenizer")
    note = (
        f"the text of {tmp_path}/a.txt has <end> 1,200 times: these are read as plain characters, not as special tokens"
    )
    for into, processes in (("whole", 1), ("by two", 2)):
        shards = tokenized(tmp_path, into, processes)
        assert len(shards.index.num_tokens) > 1
        assert capsys.readouterr().err == f"{note}\n"
        tokenized(tmp_path, into, processes)
        assert capsys.readouterr().err == ""
    # Where a call was interrupted, the shards that it has left are counted too.
    (tmp_path / "whole" / shards.folder.name / "index.json").unlink()
    tokenized(tmp_path)
    assert capsys.readouterr().err == f"{note}\n"
