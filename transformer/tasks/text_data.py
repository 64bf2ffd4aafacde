"""Text for language models: the config that their tasks share, the splits as token numbers, and their labels."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from transformer.config import (
    BatchSize,
    NonNegativeFloat,
    PositiveInt,
    Range,
    UserError,
    VocabSize,
)
from transformer.data.batches import fingerprint
from transformer.data.datasets.local_files import join_notes
from transformer.data.datasets.split_overlap import describe_overlap, long_lines
from transformer.data.datasets.text import open_text_dataset
from transformer.data.labeled_text_batches import TokenTypeRule
from transformer.data.text_batches import TokenStream, join_documents
from transformer.data.token_mixture import TokenMixture
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import (
    Tokenizer,
    count_special_tokens,
    has_tokenizer,
    note_special_token_counts,
)
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer, character_tokenizer, train_byte_bpe
from transformer.storage.paths import storage_of
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.dataset_config import TextDatasetConfig

_LONGEST_TITLE = 60


class TokenizerKind(enum.Enum):
    """The tokenizer of a text.

    Attributes:
        BPE: Byte-level byte-pair encoding trained on the training text.
        CHARACTERS: The characters of all splits.
        BYTES: The 256 bytes.
        EXISTING: The tokenizer that the run directory holds already, written by `launch.convert` or copied by
            `config.initialize_from.copy_tokenizer`.
    """

    BPE = "bpe"
    CHARACTERS = "characters"
    BYTES = "bytes"
    EXISTING = "existing"


@dataclasses.dataclass(frozen=True)
class TextConfig(TextDatasetConfig):
    """A text, its tokenizer, and the shape of its batches.

    Attributes:
        dataset: "python_docs", "repeated" (random symbols that repeat; "repeated/num_symbols=32,max_segment_length=16"
            sets its sizes), "tinyshakespeare", "wikitext-2", a text or .jsonl file or a folder of them, the name of a
            TFDS text data set, or the folder of a prepared one (transformer.data.datasets.text).
        tokenizer: The kind of tokenizer.
        vocab_size: The vocabulary size of a trained BPE.
        context_length: Tokens in a row of a batch.
        batch_size: Rows in a batch.
        probe_length: Tokens of an excerpt of the validation text whose maps are stored, at most `context_length`.
        logits_at_once: About how many logits the loss holds at one time on one device; None means 2^30 on GPUs, else
            2^27. Fewer take less memory and more time.
        z_loss: The weight of the mean of log(Z)^2 in the training loss, with Z the denominator of a predicted token's
            softmax (Chowdhery et al. 2022, PaLM, section 5, with 1e-4).
    """

    dataset: str = "python_docs"
    tokenizer: TokenizerKind = TokenizerKind.BPE
    vocab_size: VocabSize = 4096
    context_length: Annotated[int, Range(2)] = 128
    batch_size: BatchSize = 16
    probe_length: Annotated[int, Range(2)] = 48
    logits_at_once: PositiveInt | None = None
    z_loss: NonNegativeFloat = 0.0


Documents = Sequence[np.ndarray]


class EncodedText(NamedTuple):
    """A text as token numbers, in memory or, for training, in token shards.

    Attributes:
        tokenizer: Its tokenizer.
        splits: The documents of every split, each an array of token numbers; of a training split in token shards, the
            first.
        split_note: How the splits were cut, in words; empty if the data set has them.
        train_shards: The token shards of the training split; None if all of it is in memory.
    """

    tokenizer: Tokenizer
    splits: Mapping[str, Documents]
    split_note: str = ""
    train_shards: TokenMixture | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """The SHA-256 of every split's tokens."""
        of_shards = {} if self.train_shards is None else {"train": self.train_shards.fingerprint}
        return {name: fingerprint(documents) for name, documents in self.splits.items()} | of_shards

    @property
    def split_sizes(self) -> dict[str, int]:
        """The number of tokens of each split."""
        of_shards = {} if self.train_shards is None else {"train": len(self.train_shards)}
        return {name: sum(map(len, documents)) for name, documents in self.splits.items()} | of_shards

    def train_stream(self, dataset: str) -> TokenStream:
        """Return the training text as one stream of tokens, with an end token, if there is one, after each document.

        Args:
            dataset: What the config calls the data set, for the message.

        Raises:
            UserError: If the text is of several data sets in token shards.
        """
        if self.train_shards is None:
            return join_documents(self.splits["train"], self.tokenizer.eos_id)
        if len(self.train_shards.sets) > 1:
            raise UserError(
                f"config.task.dataset={dataset} are several data sets of token shards, and segments that follow one "
                "another are of one: name one, which may be a folder or a pattern"
            )
        return self.train_shards.sets[0]


def load_encoded_text(config: TextConfig, directory: Path, roles: tuple[str, ...]) -> EncodedText:
    """Open the text, train or load the run's tokenizer, and encode the splits.

    A newly trained tokenizer is saved in the run directory. It has an end token if the training text has several
    documents.

    Args:
        config: The text and its tokenizer.
        directory: The run directory.
        roles: The special tokens that a trained tokenizer needs, such as "mask".

    Raises:
        UserError: If data are missing, a split does not exist or is empty, or the tokenizer is `existing` and the run
            directory has none.
    """
    prepared_dir = str(storage_of(directory).scratch(directory / "data"))
    text = open_text_dataset(
        config.dataset, data_dir=config.data_dir, prepared_dir=prepared_dir, held_out=config.held_out
    )
    splits = {name: text.split(name) for name in ("train", *config.eval_splits)}
    for name, texts in splits.items():
        if not any(map(str.strip, texts)):
            raise UserError(f"{config.dataset} has an empty split {name!r}: give it text")
    roles = tuple(dict.fromkeys((*roles, "end"))) if len(splits["train"]) > 1 else roles
    tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, splits, roles)
    encoded: dict[str, Documents] = {name: tokenizer.encode_to_arrays(list(texts)) for name, texts in splits.items()}
    lines = {name: long_lines(texts) for name, texts in splits.items()}
    return EncodedText(
        tokenizer, encoded, join_notes((text.split_note, describe_overlap(lines, "lines of 40 letters and more")))
    )


def load_or_train_tokenizer(
    directory: Path, kind: TokenizerKind, vocab_size: int, splits: Mapping[str, Sequence[str]], roles: tuple[str, ...]
) -> Tokenizer:
    """Load the run's tokenizer, or train one and save it in the run directory.

    Args:
        directory: The run directory.
        kind: The kind of tokenizer to train.
        vocab_size: The vocabulary size of a trained BPE.
        splits: The texts by split.
        roles: The special tokens of a trained tokenizer.

    Raises:
        UserError: If the kind is `existing` and the run directory has no tokenizer.
    """
    if has_tokenizer(directory):
        tokenizer = load_tokenizer(directory)
    else:
        tokenizer = _train(kind, vocab_size, splits, roles)
        tokenizer.save(directory)
    note_special_tokens(tokenizer, splits.get("train", ()), directory)
    return tokenizer


def note_special_tokens(tokenizer: Tokenizer, texts: Iterable[str], directory: Path) -> None:
    """Print, when a run begins or is converted, how often its training text has the characters of special tokens."""
    if (directory / "checkpoints").exists():
        return
    note_special_token_counts(count_special_tokens(tokenizer, texts), "the training text")


def _train(
    kind: TokenizerKind, vocab_size: int, splits: Mapping[str, Sequence[str]], roles: tuple[str, ...]
) -> Tokenizer:
    match kind:
        case TokenizerKind.BPE:
            return train_byte_bpe(iter(splits["train"]), vocab_size, roles)
        case TokenizerKind.CHARACTERS:
            # The characters of the held-out splits belong to the alphabet as well.
            return character_tokenizer((text for texts in splits.values() for text in texts), roles)
        case TokenizerKind.BYTES:
            return byte_tokenizer(roles)
        case TokenizerKind.EXISTING:
            raise UserError(
                "config.task.tokenizer=existing, but the run directory holds none: the command convert and "
                "config.initialize_from.copy_tokenizer=True bring one along, or say bpe, characters or bytes"
            )


def pad_texts(
    rows: Sequence[Sequence[int]], tokenizer: Tokenizer, token_types: TokenTypeRule | None = None
) -> dict[str, np.ndarray]:
    """Pad texts of unequal lengths to one batch.

    Args:
        rows: The token numbers of each text.
        tokenizer: The tokenizer, for its pad token; 0 where it has none.
        token_types: The rule of the token types; None if there are none.

    Returns:
        `tokens` [B, T] and `lengths` [B], and with `token_types` also `types` [B, T].
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.full((len(rows), lengths.max()), tokenizer.pad_id or 0, np.int32)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    types = {} if token_types is None else {"types": token_types.types(tokens, lengths)}
    return {"tokens": tokens, "lengths": lengths, **types}


def evenly_spaced_excerpts(documents: Documents, count: int, length: int) -> np.ndarray:
    """Cut excerpts, evenly spaced over all that lie within one document.

    If every document is shorter than an excerpt, excerpts of the joined documents are taken.

    Args:
        documents: The documents' token numbers.
        count: The number of excerpts.
        length: Tokens of an excerpt.

    Returns:
        Token numbers [count, length].

    Raises:
        UserError: If all documents together have fewer than `length` tokens.
    """
    if all(len(document) < length for document in documents):
        documents = [join_documents(documents, None)]
    starts = np.array([max(len(document) - length + 1, 0) for document in documents])
    if not starts.sum():
        raise UserError(
            f"the validation text has {len(documents[0])} tokens, fewer than the {length} of a stretch that is mapped: "
            "lower config.task.probe_length, or give more text"
        )
    start_numbers = np.linspace(0, starts.sum() - 1, count).astype(int)
    document_numbers = np.searchsorted(np.cumsum(starts), start_numbers, side="right")
    first = start_numbers - (np.cumsum(starts) - starts)[document_numbers]
    return np.stack([documents[n][start : start + length] for n, start in zip(document_numbers, first, strict=True)])


class RepeatedSequences(NamedTuple):
    """Random tokens that repeat, on which a head can only copy by content.

    Attributes:
        tokens: Token numbers [count, length].
        periods: The period of each row.
    """

    tokens: np.ndarray
    periods: tuple[int, ...]


def make_repeated_sequences(tokenizer: Tokenizer, count: int, length: int) -> RepeatedSequences:
    """Make rows of random ordinary tokens that repeat, to find induction heads (Olsson et al. 2022).

    The period of the first row is half its length; later rows have shorter ones, down to a quarter, so that a head that
    copies can be distinguished from one that attends at a fixed distance. They are the same for all runs with one
    vocabulary. Tokens are drawn without replacement if the vocabulary is large enough, so that each occurs once in a
    period (Olsson et al. draw independently).

    Args:
        tokenizer: The tokenizer, whose special tokens are left out.
        count: The number of rows.
        length: Tokens in a row.
    """
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))
    longest, shortest = max(-(-length // 2), 2), max(-(-length // 4), 2)
    periods = tuple(longest - number % (longest - shortest + 1) for number in range(count))
    random = np.random.default_rng(0)
    segments = [random.choice(ordinary, period, replace=len(ordinary) < period) for period in periods]
    rows = [np.resize(segment, length) for segment in segments]
    return RepeatedSequences(np.array(rows, np.int32).reshape(count, length), periods)


def label_repeated_sequences(labels: AxisLabels, repeated: RepeatedSequences) -> AxisLabels:
    """Add titles and periods to labels whose last examples are repeated sequences.

    Args:
        labels: The labels of all examples.
        repeated: The repeated sequences.
    """
    random, periods = repeated
    if not len(random):
        return labels
    texts = len(labels.titles) - len(random)
    return dataclasses.replace(
        labels,
        titles=(*labels.titles[:texts], *(f"random tokens, repeated every {period}" for period in periods)),
        periods=(*[None] * texts, *periods),
    )


def token_axis_labels(
    tokenizer: Tokenizer, rows: Sequence[Sequence[int]], titles: Sequence[str] | None = None
) -> AxisLabels:
    """Return the labels of texts' tokens, on the axis `tokens`.

    Args:
        tokenizer: The tokenizer.
        rows: The token numbers of each text.
        titles: The titles of the texts, of which the first 60 characters are kept; by default their first words.
    """
    tokens = tuple(tuple(tokenizer.labels(row)) for row in rows)
    if titles is None:
        titles = [_beginning(tokenizer, row) for row in rows]
    return AxisLabels(tokens={"tokens": tokens}, titles=tuple(title[:_LONGEST_TITLE] for title in titles))


def _beginning(tokenizer: Tokenizer, row: Sequence[int]) -> str:
    """Return the first words of a text, without an incomplete character."""
    text = tokenizer.decode(list(row)[:12]).rstrip("\ufffd")
    return " ".join(text[:40].split()) or "text"


def bytes_per_token(tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of bytes that each token adds to a text [V], to convert nats per token to bits per byte."""
    return np.array([len(added) for added in tokenizer.token_bytes()], np.int32)


def mean_token_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Compute means from sums over tokens.

    Args:
        sums: `loss` in nats, `accuracy` as the number of correct tokens, `tokens`, and `bytes` of text.

    Returns:
        `loss` in nats per token, `perplexity` = exp(loss), `bits_per_byte` and `accuracy`.
    """
    loss = sums["loss"] / max(sums["tokens"], 1)
    return {
        "loss": loss,
        "perplexity": float(np.exp(min(loss, 700.0))),
        "bits_per_byte": sums["loss"] / max(sums["bytes"], 1) / float(np.log(2)),
        "accuracy": sums["accuracy"] / max(sums["tokens"], 1),
    }
