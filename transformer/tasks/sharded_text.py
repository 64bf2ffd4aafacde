"""Text for language models from token shards: tokenized once, read from disk, in memory independent of the corpus."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from transformer.config import PositiveFloat, Range, UserError
from transformer.data.batches import fingerprint
from transformer.data.corpus import CorpusFile, corpus_fingerprint, describe_files, find_corpus_files, sample_texts
from transformer.data.datasets.local_files import SPLITS, join_notes, locate_file
from transformer.data.token_mixture import TokenMixture, TokenRange
from transformer.data.token_shards import TokenShards, has_token_shards
from transformer.data.tokenize_corpus import TokenizingProgress, tokenize_corpus, tokenizer_fingerprint
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.load import copy_tokenizer, load_tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer, has_tokenizer
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer, character_tokenizer, train_byte_bpe
from transformer.data.tokenizing_progress import TokenizingProgressBar
from transformer.storage.disk_errors import refuse_unusable_storage
from transformer.storage.paths import parse_path
from transformer.tasks.text_data import Documents, EncodedText, TextConfig, TokenizerKind, load_encoded_text

TOKENIZER_SAMPLE_BYTES = 1 << 25
"""The bytes of training text that a tokenizer is trained on, from evenly spaced places."""
MAX_HELD_OUT_TOKENS = 1 << 20
"""The tokens of a validation or test split that are evaluated, at most."""
_CUT_FRACTION = 20  # one in so many tokens is held out for a split without files of its own


@dataclasses.dataclass(frozen=True)
class ShardedTextConfig(TextConfig):
    """A text that may be kept as token shards.

    Attributes:
        shards_dir: The folder, or gs://BUCKET/FOLDER, in which the text is kept as token shards: tokenized once and
            read from disk (transformer.tasks.sharded_text). `dataset` then names .txt, .jsonl or .parquet files,
            folders or patterns, several separated by commas. None tokenizes at every start, in memory, unless `dataset`
            names token shards.
        dataset_weights: The shares of several data sets in token shards. Empty is in proportion to their tokens.
        num_tokenizing_processes: The number of processes that make token shards.
    """

    shards_dir: str | None = None
    dataset_weights: tuple[PositiveFloat, ...] = ()
    num_tokenizing_processes: Annotated[int, Range(1, 2**10)] = 1


class CorpusSource(NamedTuple):
    """A corpus as `config.task.dataset` names it.

    Attributes:
        name: Its name there.
        folder: The folder of its token shards, if the name is that; then there are no files.
        files: The files of each split, otherwise.
    """

    name: str
    folder: Path | None
    files: Mapping[str, Sequence[Path]]


class ShardedText(NamedTuple):
    """A text in token shards.

    Attributes:
        tokenizer: Its tokenizer.
        train: The token shards of the training split.
        held_out: The documents of the evaluated splits, which are in memory.
        split_note: How the splits were cut, in words.
        corpora: The token shards of every corpus, by name and split.
    """

    tokenizer: Tokenizer
    train: TokenMixture
    held_out: Mapping[str, Documents]
    split_note: str
    corpora: Mapping[str, TokenShards]


def load_text(config: ShardedTextConfig, directory: Path, roles: tuple[str, ...]) -> EncodedText:
    """Open a config's text: its token shards, or, where it names none, the text in memory.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        roles: The special tokens that a trained tokenizer needs, such as "mask".

    Raises:
        UserError: As `load_sharded_text` and transformer.tasks.text_data.load_encoded_text.
    """
    if uses_token_shards(config):
        text = open_sharded_text(config, directory, roles)
        splits = {"train": text.train.documents(MAX_HELD_OUT_TOKENS), **text.held_out}
        return EncodedText(text.tokenizer, splits, text.split_note, text.train)
    if config.dataset_weights:
        raise UserError(
            f"config.task.dataset_weights={config.dataset_weights} are for token shards: name their folder by "
            "config.task.shards_dir"
        )
    return load_encoded_text(config, directory, roles)


def open_sharded_text(config: ShardedTextConfig, directory: Path | None, roles: tuple[str, ...]) -> ShardedText:
    """Open the token shards of a config's text, after tokenizing what is not tokenized yet, which shows its progress.

    Args:
        config: The config.
        directory: The run directory, whose tokenizer is used, or which receives one; None for none.
        roles: The special tokens that a trained tokenizer needs.
    """
    with TokenizingProgressBar() as report:
        return load_sharded_text(config, directory, roles=roles, report=report)


def make_token_shards(
    config: ShardedTextConfig, directory: Path | None, roles: tuple[str, ...] = ()
) -> Mapping[str, TokenShards]:
    """Return the token shards of a config's text by name, after tokenizing what is not tokenized yet.

    Args:
        config: The config.
        directory: The run directory, whose tokenizer is used; None trains one.
        roles: The special tokens that a trained tokenizer needs.

    Raises:
        UserError: If the config names no folder for them.
    """
    if config.shards_dir is None:
        raise UserError("tokenize needs a folder for the token shards: add --config.task.shards_dir=DIR")
    return open_sharded_text(config, directory, roles).corpora


def uses_token_shards(config: ShardedTextConfig) -> bool:
    """Whether a config's text is read from token shards: it names their folder, or that of the corpora to tokenize."""
    return config.shards_dir is not None or _shards_folder(config.dataset.split(",")[0], config.data_dir) is not None


def load_sharded_text(
    config: ShardedTextConfig,
    directory: Path | None,
    *,
    roles: tuple[str, ...] = (),
    report: Callable[[str, TokenizingProgress], None] = lambda name, progress: None,
) -> ShardedText:
    """Open the token shards of a text, after tokenizing what is not tokenized yet.

    The tokenizer is that of the run directory, else that of token shards that the config names, else one trained on a
    bounded sample and kept in `shards_dir`; a run directory without one receives it.

    Args:
        config: The text and its tokenizer. `dataset` names files, folders, patterns (transformer.data.corpus) or
            folders of token shards, separated by commas.
        directory: The run directory; None for none.
        roles: The special tokens that a trained tokenizer needs besides the end token.
        report: A function that is called with the name of a corpus and the progress of its tokenizing.

    Raises:
        UserError: If data are missing or cannot be read, there is no folder for token shards, the tokenizers differ,
            the number of weights does not fit, or a split is neither train, validation nor test.
    """
    shards_dir, weights = config.shards_dir, config.dataset_weights
    sources = [_find_source(name, config.data_dir) for name in config.dataset.split(",")]
    if weights and len(weights) != len(sources):
        raise UserError(
            f"config.task.dataset_weights={tuple(weights)} are {len(weights)} and config.task.dataset names "
            f"{len(sources)} data sets: give one weight for each"
        )
    for split in config.eval_splits:
        if split not in SPLITS[1:]:
            raise UserError(f"{split!r} cannot be evaluated with token shards: say validation or test")
    kept_shards_dir = None if shards_dir is None else parse_path(shards_dir)
    tokenizer_dir = _find_tokenizer(config, directory, kept_shards_dir, sources, roles)
    tokenizer = load_tokenizer(tokenizer_dir)
    if directory is not None and not has_tokenizer(directory):
        copy_tokenizer(tokenizer_dir, directory)
    corpora: dict[str, TokenShards] = {}

    def open_shards(source: CorpusSource, split: str) -> TokenShards:
        name = f"{source.name} ({split})"
        if source.folder is None:
            folder, files = _make_shards_folder(kept_shards_dir, source.name), describe_files(source.files[split])
            with refuse_unusable_storage(folder, "config.task.shards_dir"):
                corpora[name] = tokenize_corpus(
                    files,
                    tokenizer_dir,
                    folder,
                    num_processes=config.num_tokenizing_processes,
                    report=lambda progress: report(name, progress),
                )
        else:
            corpora[name] = TokenShards(source.folder)
            _check_tokenizer(corpora[name], tokenizer_dir)
        return corpora[name]

    held_out_documents: dict[str, Documents] = {}
    for split, file_names in config.held_out.by_split.items():
        if split in config.eval_splits:
            shards = open_shards(_find_source(file_names, config.data_dir), "train")
            held_out_documents[split] = TokenRange(shards, 0, len(shards)).documents(MAX_HELD_OUT_TOKENS)
    sets = []
    ranges_of_split: dict[str, list[TokenRange]] = {
        split: [] for split in config.eval_splits if split not in held_out_documents
    }
    for source in sources:
        shards = open_shards(source, "train")
        stop = len(shards)
        for split in reversed(ranges_of_split):
            if split in source.files:
                split_shards = open_shards(source, split)
                ranges_of_split[split].append(TokenRange(split_shards, 0, len(split_shards)))
            else:
                size = min(len(shards) // _CUT_FRACTION, MAX_HELD_OUT_TOKENS // len(sources))
                ranges_of_split[split].append(TokenRange(shards, stop - size, stop))
                stop -= size
        sets.append(TokenRange(shards, 0, stop))
    held_out_documents |= {
        split: TokenMixture(tuple(ranges)).documents(MAX_HELD_OUT_TOKENS) for split, ranges in ranges_of_split.items()
    }
    shares = [weight / sum(weights) for weight in weights] or [
        len(token_range) / sum(map(len, sets)) for token_range in sets
    ]
    note = join_notes(
        [
            *(
                f"{split} from {file_names}"
                for split, file_names in config.held_out.by_split.items()
                if split in config.eval_splits
            ),
            f"{', '.join(ranges_of_split)} from the ends of the files or from files of their names"
            if ranges_of_split
            else "",
            f"at most {MAX_HELD_OUT_TOKENS:,} tokens of each",
            f"weights {', '.join(f'{share:.4g}' for share in shares)}" if len(shares) > 1 else "",
        ]
    )
    return ShardedText(tokenizer, TokenMixture(tuple(sets), tuple(shares)), held_out_documents, note, corpora)


def _shards_folder(name: str, data_dir: str | None) -> Path | None:
    """Return the folder of token shards that a name stands for; None if it stands for something else."""
    if name.startswith("gs://") and any(character in name for character in "*?["):
        return None
    path = parse_path(name) if name.startswith("gs://") else locate_file(name, data_dir)
    return path if has_token_shards(path) else None


def _find_source(name: str, data_dir: str | None) -> CorpusSource:
    folder = _shards_folder(name, data_dir)
    return CorpusSource(name, folder, {} if folder is not None else find_corpus_files(name, data_dir))


def _make_shards_folder(shards_dir: Path | None, name: str) -> Path:
    """Return the folder in which token shards are kept, made if it is not there."""
    if shards_dir is None:
        raise UserError(f"{name} is not tokenized: name a folder for its token shards by config.task.shards_dir")
    if isinstance(shards_dir, Path):  # a bucket has no folders
        with refuse_unusable_storage(shards_dir, "config.task.shards_dir"):
            shards_dir.mkdir(parents=True, exist_ok=True)
    return shards_dir


def _check_tokenizer(shards: TokenShards, tokenizer_dir: Path) -> None:
    if shards.index.tokenizer_sha256 != tokenizer_fingerprint(tokenizer_dir):
        raise UserError(
            f"{shards.folder} was tokenized by another tokenizer than that in {tokenizer_dir}: name token shards of "
            "one tokenizer, or their text with config.task.shards_dir"
        )


def _find_tokenizer(
    config: TextConfig,
    directory: Path | None,
    shards_dir: Path | None,
    sources: Sequence[CorpusSource],
    roles: tuple[str, ...],
) -> Path:
    """Return the directory of the tokenizer, which is trained if there is none."""
    if directory is not None and has_tokenizer(directory):
        return directory
    for source in sources:
        if source.folder is not None:
            return source.folder
    if config.tokenizer is TokenizerKind.EXISTING:
        raise UserError(
            "config.task.tokenizer=existing, but there is no run directory that holds one: the command convert and "
            "config.initialize_from.copy_tokenizer=True bring one along, or say bpe, characters or bytes"
        )
    corpora = [describe_files(source.files["train"]) for source in sources]
    settings = (
        config.tokenizer.value,
        config.vocab_size,
        TOKENIZER_SAMPLE_BYTES,
        *roles,
        *map(corpus_fingerprint, corpora),
    )
    tokenizer_dir = _make_shards_folder(shards_dir, sources[0].name) / f"tokenizer-{fingerprint(settings)[:16]}"
    if not has_tokenizer(tokenizer_dir):
        if config.tokenizer is TokenizerKind.BPE:
            print(f"training a tokenizer on at most {TOKENIZER_SAMPLE_BYTES >> 20} MiB of {config.dataset}", flush=True)
        if isinstance(tokenizer_dir, Path):
            tokenizer_dir.mkdir(exist_ok=True)
        _train_tokenizer(config, corpora, (*roles, "end")).save(tokenizer_dir)
    return tokenizer_dir


def _train_tokenizer(
    config: TextConfig, corpora: Sequence[Sequence[CorpusFile]], roles: tuple[str, ...]
) -> FastTokenizer:
    """Train a tokenizer on as many bytes of each corpus."""

    def texts() -> Iterator[str]:
        for files in corpora:
            yield from sample_texts(files, TOKENIZER_SAMPLE_BYTES // len(corpora))

    match config.tokenizer:
        case TokenizerKind.CHARACTERS:
            # The sample may lack a character of the text.
            return character_tokenizer(texts(), (*roles, "unknown"))
        case TokenizerKind.BYTES:
            return byte_tokenizer(roles)
        case _:
            return train_byte_bpe(texts(), config.vocab_size, roles)
