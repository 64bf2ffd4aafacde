"""Tokenize a corpus into token shards: once, by several processes, in bounded memory, and resumed after a kill.

Each part of about 64 MiB of text becomes one shard, which depends on the text and the tokenizer alone and is written
under its own name at once. A kill loses the shards under way, and the next call makes those that are missing.
"""

import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer.config import UserError, to_config
from transformer.data.batches import fingerprint
from transformer.data.corpus import (
    PIECE_BYTES,
    CorpusFile,
    FileRange,
    Piece,
    corpus_fingerprint,
    describe_files,
    divide_files,
    hash_samples,
    read_pieces,
)
from transformer.data.token_shards import (
    FORMAT_VERSION,
    INDEX_FILE,
    ShardIndex,
    TokenShards,
    has_token_shards,
    shard_name,
    token_dtype,
)
from transformer.data.tokenizers.load import copy_tokenizer, load_tokenizer, tokenizer_digests
from transformer.data.tokenizers.tokenizer import Tokenizer, note_special_token_counts, special_token_pattern
from transformer.storage.json_reading import read_regular_file
from transformer.storage.paths import claim_when_free, parse_path, storage_of

PART_BYTES = 1 << 26
"""About the bytes of text of a shard."""
_BATCH_BYTES = 4 * PIECE_BYTES  # of text that is tokenized at once
_COUNTED_TOKENS = 1 << 20  # that are compared with the end token at once
_LOCK = "tokenizing.lock"
_WAIT_SECONDS = 2.0


class TokenizingProgress(NamedTuple):
    """How far the tokenizing of a corpus is.

    Attributes:
        num_shards: The number of finished shards.
        total_shards: The number of all shards.
        num_tokens: The number of tokens of the finished shards.
    """

    num_shards: int
    total_shards: int
    num_tokens: int


class Shard(NamedTuple):
    """A finished shard: its numbers of tokens and documents, its SHA-256, and that of its samples.

    `special_tokens` says how often its text has the characters of each special token.
    """

    num_tokens: int
    num_documents: int
    sha256: str
    samples_sha256: str
    special_tokens: Mapping[str, int]


def tokenizer_fingerprint(directory: Path) -> str:
    """Return the SHA-256 of the tokenizer in a directory."""
    return fingerprint(
        item for name_and_digest in sorted(tokenizer_digests(directory).items()) for item in name_and_digest
    )


def shards_folder(shards_dir: Path, files: Sequence[CorpusFile], tokenizer_sha256: str, part_bytes: int) -> Path:
    """Return the folder of a corpus' token shards, whose name is a hash of the files' content and the tokenizer."""
    address = fingerprint((FORMAT_VERSION, part_bytes, corpus_fingerprint(files), tokenizer_sha256))
    return shards_dir / f"tokens-{address[:16]}"


def tokenize_corpus(
    files: Sequence[CorpusFile],
    tokenizer_dir: Path,
    shards_dir: Path,
    *,
    num_processes: int = 1,
    report: Callable[[TokenizingProgress], None] = lambda progress: None,
    part_bytes: int = PART_BYTES,
) -> TokenShards:
    """Return the token shards of a corpus, from the folder where an earlier call has left them, whole or in part.

    A call beside another one for the same corpus waits for it.

    Args:
        files: The files of the corpus.
        tokenizer_dir: The directory of the tokenizer.
        shards_dir: The folder in which the shards of every corpus have a folder of their own.
        num_processes: The number of processes that tokenize; 1 is this one.
        report: A function that is called at the start and after every shard.
        part_bytes: About the bytes of text of a shard.

    Raises:
        UserError: If the text cannot be read or has no tokens, a file changes in between, or the tokenizer has no end
            token; and if a process is killed.
    """
    digest = tokenizer_fingerprint(tokenizer_dir)
    folder = shards_folder(shards_dir, files, digest, part_bytes)
    if has_token_shards(folder):
        return TokenShards(folder)
    tokenizer = load_tokenizer(tokenizer_dir)
    end_id = tokenizer.eos_id
    if end_id is None:
        raise UserError(
            f"the tokenizer in {tokenizer_dir} has no end token, which token shards need after every document"
        )
    with claim_when_free(folder, _LOCK, _WAIT_SECONDS, functools.partial(_print_waiting, folder)):
        if has_token_shards(folder):
            return TokenShards(folder)
        # Of writes that a kill has cut off: nobody else writes here.
        for name, _, _ in storage_of(folder).versions(folder, ("*.new",)):
            with contextlib.suppress(FileNotFoundError):
                parse_path(name).unlink()
        parts = divide_files(files, part_bytes)
        shards: list[Shard | None] = [None] * len(parts)
        num_finished = num_tokens = 0
        report(TokenizingProgress(num_finished, len(parts), num_tokens))
        jobs = _ShardWriter(str(folder), str(tokenizer_dir))
        for shard_number, shard in _write_shards(jobs, parts, num_processes):
            shards[shard_number] = shard
            num_finished, num_tokens = num_finished + 1, num_tokens + shard.num_tokens
            report(TokenizingProgress(num_finished, len(parts), num_tokens))
        if not num_tokens:
            raise UserError(f"{files[0].name}{' and the others' if len(files) > 1 else ''} have no text: give some")
        if (changed := _find_changed_file(files)) is not None:
            raise UserError(f"{changed} has changed while it was tokenized: start again")
        copy_tokenizer(tokenizer_dir, folder)
        finished_shards = [shard for shard in shards if shard is not None]
        index = ShardIndex(
            version=FORMAT_VERSION,
            corpus_sha256=corpus_fingerprint(files),
            tokenizer_sha256=digest,
            vocab_size=tokenizer.vocab_size,
            end_id=end_id,
            num_tokens=tuple(shard.num_tokens for shard in finished_shards),
            num_documents=tuple(shard.num_documents for shard in finished_shards),
            shard_sha256=tuple(shard.sha256 for shard in finished_shards),
            samples_sha256=tuple(shard.samples_sha256 for shard in finished_shards),
            index_sha256="",
        )
        index = dataclasses.replace(index, index_sha256=index.compute_digest())
        storage_of(folder).replace(folder / INDEX_FILE, f"{json.dumps(to_config(index))}\n".encode())
    special_tokens: Counter[str] = Counter()
    for shard in finished_shards:
        special_tokens.update(shard.special_tokens)
    remaining_files = "" if len(files) == 1 else f" and {len(files) - 1} more"
    note_special_token_counts(dict(special_tokens.most_common()), f"the text of {files[0].name}{remaining_files}")
    return TokenShards(folder)


def _find_changed_file(files: Sequence[CorpusFile]) -> str | None:
    """Return the name of the first file that is no longer as it was described; None if all are."""
    now = describe_files([file.path for file in files])
    return next((file.name for file, again in zip(files, now, strict=True) if file != again), None)


def _print_waiting(folder: Path) -> None:
    print(f"waiting for another process that tokenizes into {folder}", file=sys.stderr, flush=True)


def tokenize_pieces(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the tokens of pieces of a corpus in arrays, with the end token after every document that ends in one.

    About 1 MiB of text is tokenized at once, for which some tokenizers take a hundred times as much memory.

    Raises:
        UserError: If the text cannot be read or has a character without a token.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    end = np.array([tokenizer.eos_id], dtype)
    for batch in _batch_pieces(pieces):
        arrays = tokenizer.encode_to_arrays([piece.text for piece in batch], dtype)
        for tokens, piece in zip(arrays, batch, strict=True):
            yield tokens
            if piece.ends:
                yield end


def _batch_pieces(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in lists of about 1 MiB of text."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _ShardWriter:
    """Writes shards into a folder; each process has its own."""

    def __init__(self, folder: str, tokenizer_dir: str):
        self.arguments = folder, tokenizer_dir
        self._folder, self._tokenizer = parse_path(folder), load_tokenizer(parse_path(tokenizer_dir))
        self._special_tokens = special_token_pattern(self._tokenizer)

    def write(self, number: int, part: Sequence[FileRange]) -> Shard:
        """Write a shard, unless it is there."""
        path = self._folder / shard_name(number)
        dtype = token_dtype(self._tokenizer.vocab_size)
        special_tokens: Counter[str] = Counter()
        pieces = self._read_and_count(part, special_tokens)
        try:
            content = read_regular_file(path)
        except FileNotFoundError:
            buffer = io.BytesIO()
            for tokens in tokenize_pieces(pieces, self._tokenizer):
                buffer.write(tokens)
            content = buffer.getvalue()  # which copies nothing
            storage_of(path).replace(path, content)
        else:
            # The tokens that an interrupted call has left do not show what was plain characters.
            for _ in pieces:
                pass
        tokens = np.frombuffer(content, dtype)
        blocks = (tokens[start : start + _COUNTED_TOKENS] for start in range(0, len(tokens), _COUNTED_TOKENS))
        documents = sum(np.count_nonzero(block == self._tokenizer.eos_id) for block in blocks)
        samples = hash_samples(lambda start, stop: content[start:stop], len(content))
        return Shard(len(tokens), int(documents), hashlib.sha256(content).hexdigest(), samples, special_tokens)

    def _read_and_count(self, part: Sequence[FileRange], counts: Counter[str]) -> Iterator[Piece]:
        """Yield the pieces of a part, adding to `counts` how often they have the characters of special tokens."""
        for file_range in part:
            for piece in read_pieces(file_range):
                counts.update(self._special_tokens.findall(piece.text))
                yield piece


def _write_shards(
    writer: _ShardWriter, parts: Sequence[Sequence[FileRange]], num_processes: int
) -> Iterator[tuple[int, Shard]]:
    """Write all shards, and yield each with its number as it is finished."""
    if num_processes == 1:
        for number, part in enumerate(parts):
            yield number, writer.write(number, part)
        return
    earlier_children = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_processes, len(parts)), multiprocessing.get_context("spawn"), _initialize_worker, writer.arguments
    )
    try:
        waiting = {pool.submit(_write_shard, number, part): number for number, part in enumerate(parts)}
        for finished in concurrent.futures.as_completed(waiting):
            yield waiting[finished], finished.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            "a process that tokenizes was killed, maybe for want of memory; start the same command again to go on, "
            "with fewer processes"
        ) from error
    finally:
        for process in set(multiprocessing.active_children()) - earlier_children:
            process.terminate()
        pool.shutdown(cancel_futures=True)


_writer: _ShardWriter


def _initialize_worker(folder: str, tokenizer_dir: str) -> None:
    global _writer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process is one of those that were asked for
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after_parent, args=(parent.sentinel,), daemon=True).start()
    _writer = _ShardWriter(folder, tokenizer_dir)


def _exit_after_parent(sentinel: Any) -> None:
    """End this process when the one that started it has ended, however that was."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _write_shard(number: int, part: Sequence[FileRange]) -> Shard:
    return _writer.write(number, part)
