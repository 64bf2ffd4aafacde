"""Token shards: a corpus as token numbers in files of flat arrays, of which any range is read without the rest.

A folder holds `00000.tokens`, `00001.tokens`, ..., each an array of little-endian uint16 (uint32 for vocabularies
beyond 65,536), the tokenizer, and `index.json`, which is written last: a folder with it is whole. Every document ends
with the tokenizer's end token, which no text encodes to, so that documents need no index of their own. The index has a
SHA-256 of all that it says and of samples of every shard, which are compared whenever the folder is opened: 0.05 s
of a processor for 5 GB of tokens in 150 shards.

Flat files were chosen over array_record (0.8.6). Windows of 2,048 tokens in a random order are read at 370 million
tokens per second of a processor by open and pread, and at 94 million (compressed) or 180 million (not) from
array_record with a window a record, which fixes the length of windows when the text is tokenized. numpy.memmap reads
735 million, but the pages that it has read count as the process's memory, which then grows with the corpus. On disk the
arrays take 1.4 times the compressed records.
"""

import concurrent.futures
import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np

from transformer.config import NonNegativeInt, Range, Sha256, UserError, VocabSize, hash_config, to_config
from transformer.data.corpus import hash_samples
from transformer.data.tokenizers.tokenizer import TokenNumber
from transformer.storage.json_reading import parse_dataclass, read_json_object, read_regular_file
from transformer.storage.paths import storage_of

INDEX_FILE = "index.json"
FORMAT_VERSION = 2
_SUFFIX = ".tokens"
_SAMPLING_THREADS = 16  # since a bucket answers slowly
_AGAIN = "remove the folder and tokenize again"


@dataclasses.dataclass(frozen=True)
class ShardIndex:
    """The content of index.json.

    Attributes:
        version: The version of the format.
        corpus_sha256: The SHA-256 of the kinds, sizes and samples of the files.
        tokenizer_sha256: The SHA-256 of the tokenizer's files.
        vocab_size: The number of tokens of the tokenizer.
        end_id: The end token, which follows every document.
        num_tokens: The number of tokens of each shard.
        num_documents: The number of documents that end in each shard.
        shard_sha256: The SHA-256 of each shard.
        samples_sha256: The SHA-256 of the first, middle and last 64 KiB of each shard.
        index_sha256: The SHA-256 of all of the above.
    """

    version: Annotated[int, Range(FORMAT_VERSION, FORMAT_VERSION)]
    corpus_sha256: Sha256
    tokenizer_sha256: Sha256
    vocab_size: VocabSize
    end_id: TokenNumber
    num_tokens: tuple[NonNegativeInt, ...]
    num_documents: tuple[NonNegativeInt, ...]
    shard_sha256: tuple[Sha256, ...]
    samples_sha256: tuple[Sha256, ...]
    index_sha256: Sha256

    def compute_digest(self) -> str:
        """Return the SHA-256 of all that the index says."""
        return hash_config({name: value for name, value in to_config(self).items() if name != "index_sha256"})


def _read_index(path: Path) -> ShardIndex:
    """Read an index, and check that it is of this version, whole and unchanged.

    Raises:
        UserError: If it is not.
    """
    fields = read_json_object(path)
    version = fields.get("version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise UserError(f"{path} is of version {version} of token shards, where {FORMAT_VERSION} is read: {_AGAIN}")
    index = parse_dataclass(ShardIndex, fields, str(path))
    columns = (index.num_tokens, index.num_documents, index.shard_sha256, index.samples_sha256)
    if len(set(map(len, columns))) > 1:
        raise UserError(f"{path} is not usable: its lists differ in length")
    if index.end_id >= index.vocab_size:
        raise UserError(f"{path} is not usable: end_id={index.end_id} is beyond its vocabulary")
    if index.compute_digest() != index.index_sha256:
        raise UserError(f"{path} was changed, for its SHA-256 differs: {_AGAIN}")
    return index


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type of the stored token numbers of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"{number:05d}{_SUFFIX}"


def has_token_shards(folder: Path) -> bool:
    """Whether a folder holds token shards, all of them."""
    return (folder / INDEX_FILE).is_file()


class TokenShards:
    """The tokens of all shards of a folder, one after another, read from disk or bucket on access.

    Args:
        folder: The folder.

    Raises:
        UserError: If it has no index or a damaged one, or a shard is missing, of another size or with other samples.
    """

    def __init__(self, folder: Path):
        if not has_token_shards(folder):
            raise UserError(f"{folder} holds no {INDEX_FILE}: its token shards are not finished: tokenize again")
        self.folder, self.index = folder, _read_index(folder / INDEX_FILE)
        counts = self.index.num_tokens
        self.dtype = token_dtype(self.index.vocab_size)
        self._storage, self._paths = storage_of(folder), [folder / shard_name(n) for n in range(len(counts))]
        self._starts = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
        sizes = {Path(name).name: size for name, _, size in self._storage.versions(folder, (f"*{_SUFFIX}",))}
        for path, count in zip(self._paths, counts, strict=True):
            num_bytes, expected_bytes = sizes.get(path.name), count * self.dtype.itemsize
            if num_bytes != expected_bytes:
                has = (
                    "is missing"
                    if num_bytes is None
                    else f"has {num_bytes:,} bytes where its index says {expected_bytes:,}"
                )
                raise UserError(f"{path} {has}: {_AGAIN}")
        with concurrent.futures.ThreadPoolExecutor(_SAMPLING_THREADS) as pool:
            samples = pool.map(self._hash_samples, range(len(counts)))
            for path, digest, expected in zip(self._paths, samples, self.index.samples_sha256, strict=True):
                if digest != expected:
                    raise UserError(f"{path} is not what its index says, for samples of it differ: {_AGAIN}")

    def _hash_samples(self, number: int) -> str:
        def read(start: int, stop: int) -> bytes:
            return self._storage.read_range(self._paths[number], start, min(stop, size))

        size = self.index.num_tokens[number] * self.dtype.itemsize
        return hash_samples(read, size)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return sum(self.index.num_documents)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the shards' own, of the end token and of the type of the numbers."""
        return hashlib.sha256(repr((self.dtype.str, self.index.end_id, self.index.shard_sha256)).encode()).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens `start` to `stop` - 1, [stop - start] int32.

        Raises:
            UserError: If a shard has become shorter, or has a number beyond the vocabulary.
        """
        parts, size = [], self.dtype.itemsize
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, last = self._starts[number], min(stop, int(self._starts[number + 1]))
            path = self._paths[number]
            content = self._storage.read_range(path, int(start - first) * size, int(last - first) * size)
            if len(content) < (last - start) * size:
                raise UserError(f"{path} has become shorter than its index says: {_AGAIN}")
            parts.append(np.frombuffer(content, self.dtype))
            start, number = last, number + 1
        tokens = np.concatenate(parts) if parts else np.zeros(0, self.dtype)
        self._check_range(tokens)
        return tokens.astype(np.int32)

    def _check_range(self, tokens: np.ndarray) -> None:
        """Check stored numbers, before a large one could turn negative as an int32.

        Raises:
            UserError: If one is beyond the vocabulary.
        """
        if len(tokens) and tokens.max() >= self.index.vocab_size:
            raise UserError(
                f"{self.folder} is damaged: it has the token {tokens.max()} where its vocabulary has "
                f"{self.index.vocab_size:,}: {_AGAIN}"
            )

    def check_content(self) -> None:
        """Read all shards, and compare them with their SHA-256, their numbers of documents and the vocabulary.

        Raises:
            UserError: If one differs.
        """
        for path, digest, documents in zip(self._paths, self.index.shard_sha256, self.index.num_documents, strict=True):
            content = read_regular_file(path)
            if hashlib.sha256(content).hexdigest() != digest:
                raise UserError(f"{path} is damaged, for its SHA-256 differs: {_AGAIN}")
            tokens = np.frombuffer(content, self.dtype)
            self._check_range(tokens)
            if (num_ends := np.count_nonzero(tokens == self.index.end_id)) != documents:
                raise UserError(f"{path} has {num_ends:,} documents where its index says {documents:,}: {_AGAIN}")


def split_documents(tokens: np.ndarray, end_id: int) -> list[np.ndarray]:
    """Split tokens at the end tokens, which are left out; documents without a token too.

    Args:
        tokens: Token numbers [N].
        end_id: The end token.
    """
    documents = np.split(tokens, np.flatnonzero(tokens == end_id) + 1)
    without_end = [document[:-1] if len(document) and document[-1] == end_id else document for document in documents]
    return [document for document in without_end if len(document)]
