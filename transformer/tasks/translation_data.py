"""Translation data: the config, the splits as token numbers, and the labels of tokens."""

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from transformer.attention.sites import Site, sites_between
from transformer.config import (
    NonNegativeFloat,
    NonNegativeInt,
    NumBeams,
    NumDisplayedExamples,
    PositiveInt,
    Range,
    Rate,
    TupleLimits,
    UserError,
    VocabSize,
)
from transformer.data.batches import EncodedPairs
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.translation import SentencePair, open_translation_dataset
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer, has_tokenizer, word_indices
from transformer.data.tokenizers.train_tokenizer import train_bpe, train_words
from transformer.storage.paths import storage_of
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.dataset_config import TextDatasetConfig
from transformer.tasks.decoding_config import DecodingDefaults
from transformer.tasks.sequence_level_training import SequenceObjective
from transformer.tasks.text_data import note_special_tokens

# The axes of the maps that show which source token a target token comes from.
TARGET_OVER_SOURCE = ("target", "source")


class TranslationTokenizer(enum.Enum):
    """The tokenizer of both sides, trained on the training pairs unless the run directory holds one.

    Attributes:
        BPE: Byte-pair encoding.
        WORDS: The most frequent words between white space; others are unknown.
        EXISTING: The tokenizer that the run directory holds already, which is taken in any case; it must hold one.
    """

    BPE = "bpe"
    WORDS = "words"
    EXISTING = "existing"


class UnknownReplacement(enum.Enum):
    """What replaces an unknown word of a translation (transformer.tasks.unknown_words).

    Attributes:
        NONE: Nothing.
        COPY: The source word with the largest attention weight.
        DICTIONARY: That word's translation in a dictionary, or the word itself if the dictionary lacks it.
    """

    NONE = "none"
    COPY = "copy"
    DICTIONARY = "dictionary"


class SentenceFrame(NamedTuple):
    """The tokens around every sentence, beside the end token.

    Attributes:
        source_start: Those in front of a source.
        source_end: Those behind the end token of a source.
        target_start: Those in front of a target.
    """

    source_start: tuple[int, ...] = ()
    source_end: tuple[int, ...] = ()
    target_start: tuple[int, ...] = ()


NO_FRAME = SentenceFrame()

BatchTokens = Annotated[int, Range(1, 2**24)]
"""A number of positions in a batch, limited because the host allocates arrays of this size."""


@dataclasses.dataclass(frozen=True)
class TranslationConfig(TextDatasetConfig):
    """A translation problem.

    Attributes:
        dataset: "phrases" (generated, from English to German and French), "copy" or "reversal" (random symbols,
            repeated or reversed), "help_desk" (generated questions and answers),
            "multi30k/<raw|tokenized>/<source>-<target>", the name of a TFDS translation data set, the folder of a
            prepared one, or files of your own: "FILE.en,FILE.de", "FILE.tsv", "FILE.csv" or "FILE.jsonl"
            (transformer.data.datasets.translation).
        languages: (source, target), for data sets that can be read in several directions. Empty is the data set's own
            direction.
        tokenizer: The tokenizer to train.
        vocab_size: The vocabulary size of the trained tokenizer, which both sides share.
        source_start_ids: The tokens in front of every source, such as BART's begin token or NLLB's language. Targets
            begin with `decoding.forced_first_id`.
        source_end_ids: The tokens behind the end token of every source, such as mBART's language.
        bucket_lengths: The sentence lengths, in tokens, that batches are padded to.
        tokens_per_batch: Positions in a batch, on each side.
        label_smoothing: The label smoothing of the training loss.
        z_loss: The weight of the mean of log(Z)^2 in the training loss, with Z the denominator of a predicted token's
            softmax (Chowdhery et al. 2022, PaLM, section 5, with 1e-4).
        num_beams: The beam size of evaluations; 1 is greedy decoding.
        length_penalty: The exponent of the length penalty (Wu et al. 2016, section 7).
        coverage_penalty: The weight of the coverage penalty (Wu et al. 2016, section 7).
        replace_unknown: What replaces the unknown words of a translation, for a tokenizer of words and a model with
            attention of target over source.
        unknown_dictionary: The dictionary of replace_unknown=dictionary, a .tsv file with "source<TAB>target" in each
            line.
        bleu_tokenizer: The tokenizer of sacreBLEU.
        bleu_lowercase: Whether BLEU ignores case, as `sacrebleu -lc`: many published results on IWSLT are of lowercased
            text.
        num_decoded_examples: The number of validation sentences that are translated during training.
        num_probe_examples: The number of validation sentences whose maps are stored.
        length_bounds: Also score translations by the length of their sources: (4, 8) groups them into 1 to 4, 5 to 8,
            and 9 or more words.
        reinforce_weight: The weight of the REINFORCE loss of a model with sampled (hard) attention
            (transformer.tasks.hard_attention_reinforce).
        entropy_weight: The weight of the entropy of sampled attention (Xu et al. 2015, equation 12).
        objective: Whether to train also on the GLEU of the model's own translations, and how. It is for a model that
            translates already (`config.initialize_from`); the defaults of the following fields are those of Wu et al.
            2016, section 5 (transformer.tasks.sequence_level_training).
        num_samples: The number of translations to sample for each source.
        nll_weight: The weight of the likelihood of the references, with such an objective.
        mrt_alpha: The exponent of minimum risk training (Shen et al. 2016, equation 10).
        decoding: How sentences are translated unless a request says otherwise. Evaluations end and forbid the same
            tokens and have the same repetition penalty, but do not sample.

    Raises:
        UserError: If a value is out of range, or values do not go together.
    """

    dataset: str = "phrases"
    languages: tuple[str, ...] = ()
    tokenizer: TranslationTokenizer = TranslationTokenizer.BPE
    vocab_size: VocabSize = 8000
    source_start_ids: tuple[NonNegativeInt, ...] = ()
    source_end_ids: tuple[NonNegativeInt, ...] = ()
    bucket_lengths: Annotated[tuple[Annotated[int, Range(2)], ...], TupleLimits(min_length=1)] = (32, 64, 128)
    tokens_per_batch: BatchTokens = 4096
    label_smoothing: Rate = 0.1
    z_loss: NonNegativeFloat = 0.0
    num_beams: NumBeams = 4
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    replace_unknown: UnknownReplacement = UnknownReplacement.NONE
    unknown_dictionary: str = ""
    bleu_tokenizer: str = "13a"
    bleu_lowercase: bool = False
    num_decoded_examples: PositiveInt = 200
    num_probe_examples: NumDisplayedExamples = 8
    length_bounds: tuple[PositiveInt, ...] = ()
    reinforce_weight: NonNegativeFloat = 1.0
    entropy_weight: NonNegativeFloat = 0.01
    objective: SequenceObjective = SequenceObjective.NLL
    num_samples: PositiveInt = 15
    nll_weight: NonNegativeFloat = 0.017
    mrt_alpha: NonNegativeFloat = 0.005
    decoding: DecodingDefaults = dataclasses.field(default_factory=DecodingDefaults)

    @property
    def sentence_frame(self) -> SentenceFrame:
        """The tokens around every sentence."""
        first = self.decoding.forced_first_id
        return SentenceFrame(self.source_start_ids, self.source_end_ids, () if first is None else (first,))

    def _check(self) -> None:
        if len(self.languages) not in (0, 2):
            raise UserError(f"config.task.languages={self.languages} must be (source, target), or empty")
        power = self.decoding.length_power
        if power is not None and (self.coverage_penalty or self.length_penalty != TranslationConfig.length_penalty):
            raise UserError(
                f"config.task.decoding.length_power={power} is of another search than config.task.length_penalty="
                f"{self.length_penalty} and coverage_penalty={self.coverage_penalty}: say decoding.length_power=None, "
                "or leave these out"
            )
        if not self.coverage_penalty >= 0 or (self.coverage_penalty and self.num_beams == 1):
            raise UserError(
                f"config.task.coverage_penalty={self.coverage_penalty} must be at least 0, and above 0 only with "
                f"config.task.num_beams above 1, not {self.num_beams}"
            )
        if (self.replace_unknown is UnknownReplacement.DICTIONARY) != bool(self.unknown_dictionary):
            raise UserError(
                f"config.task.replace_unknown={self.replace_unknown.value} and config.task.unknown_dictionary="
                f"{self.unknown_dictionary!r}: say replace_unknown=dictionary with a .tsv file, or leave "
                "unknown_dictionary empty"
            )
        if sorted(set(self.length_bounds)) != [*self.length_bounds]:
            raise UserError(f"config.task.length_bounds={self.length_bounds} must rise")
        if self.tokens_per_batch < max(self.bucket_lengths):
            raise UserError(
                f"config.task.tokens_per_batch={self.tokens_per_batch} does not hold one sentence of "
                f"max(config.task.bucket_lengths)={max(self.bucket_lengths)} tokens"
            )


@dataclasses.dataclass(frozen=True)
class TranslationSplit:
    """One split.

    Attributes:
        name: Its name.
        pairs: Its sentence pairs.
        encoded: Their token numbers as the model reads them.
    """

    name: str
    pairs: Sequence[SentencePair]
    encoded: EncodedPairs

    def part(self, indices: Sequence[int]) -> "TranslationSplit":
        """Return the pairs of these indices, in this order."""
        return TranslationSplit(self.name, [self.pairs[i] for i in indices], self.encoded.select(indices))


def load_encoded_splits(config: TranslationConfig, directory: Path) -> tuple[Tokenizer, dict[str, TranslationSplit]]:
    """Open the data, train or load the run's tokenizer, and encode the three splits.

    A newly trained tokenizer is saved in the run directory.

    Args:
        config: The translation problem.
        directory: The run directory.

    Returns:
        The tokenizer, and the splits by name.

    Raises:
        UserError: If data are missing, a split does not exist, or there is no existing tokenizer.
    """
    data = open_translation_dataset(
        config.dataset,
        data_dir=config.data_dir,
        prepared_dir=str(storage_of(directory).scratch(directory / "data")),
        languages=(config.languages[0], config.languages[1]) if config.languages else None,
        held_out=config.held_out,
    )
    names = ("train", config.validation_split, config.test_split)
    for name in names:
        if name not in data.splits:
            raise UserError(
                f"{config.dataset} has no split {name!r}; it has: {', '.join(sorted(data.splits))} "
                "(config.task.validation_split and config.task.test_split name the two that are evaluated)"
            )
    # Read everything at once: reading an array_record pair by pair takes four times as long.
    pairs = {name: list(data.split(name)) for name in names}
    tokenizer: Tokenizer
    if has_tokenizer(directory):
        tokenizer = load_tokenizer(directory)
    else:
        tags = data.languages[1:] if len(data.languages) > 2 else ()
        texts = (text for pair in pairs["train"] for text in (pair.source, pair.target))
        match config.tokenizer:
            case TranslationTokenizer.BPE:
                tokenizer = train_bpe(texts, config.vocab_size, tags)
            case TranslationTokenizer.WORDS:
                tokenizer = train_words(texts, config.vocab_size, tags)
            case TranslationTokenizer.EXISTING:
                raise UserError(
                    "config.task.tokenizer=existing, but the run directory holds none: the command convert and "
                    "config.initialize_from.copy_tokenizer=True bring one along, or say bpe or words"
                )
        tokenizer.save(directory)
    note_special_tokens(tokenizer, (text for pair in pairs["train"] for text in (pair.source, pair.target)), directory)
    return tokenizer, {
        name: TranslationSplit(name, split_pairs, encode_pairs(tokenizer, split_pairs, config.sentence_frame))
        for name, split_pairs in pairs.items()
    }


def pad_begin_end_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Return the numbers of the special tokens that sentence pairs need: padding, begin and end.

    Raises:
        UserError: If the tokenizer lacks one of them.
    """
    pad, begin, end = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    if pad is None or begin is None or end is None:
        ids = tokenizer.ids_by_role
        missing = [role for role in ("pad", "begin", "end") if ids[role] is None]
        raise UserError(f"the tokenizer has no token for {', '.join(missing)}, which translation needs")
    return pad, begin, end


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[SentencePair], frame: SentenceFrame = NO_FRAME) -> EncodedPairs:
    """Encode sentence pairs.

    Both sides get an end token; the source also gets a language tag in front if the data have several target languages.

    Args:
        tokenizer: The tokenizer.
        pairs: The sentence pairs.
        frame: Further tokens around every sentence.

    Raises:
        UserError: If the tokenizer lacks a pad, begin or end token.
    """
    # With several target languages a source stands there once for each.
    distinct_sources = list(dict.fromkeys(pair.source for pair in pairs))
    ids_by_source = dict(zip(distinct_sources, tokenizer.encode(distinct_sources), strict=True))
    targets = tokenizer.encode_targets([pair.target for pair in pairs])
    pad_id, bos_id, eos_id = pad_begin_end_ids(tokenizer)
    tags = {language: tokenizer.language_tag_ids(language) for language in {pair.language for pair in pairs}}
    return EncodedPairs(
        [
            np.array(
                [*frame.source_start, *tags[pair.language], *ids_by_source[pair.source], eos_id, *frame.source_end],
                np.int32,
            )
            for pair in pairs
        ],
        [np.array([*frame.target_start, *ids, eos_id], np.int32) for ids in targets],
        pad_id=pad_id,
        bos_id=bos_id,
    )


def pair_axis_labels(
    tokenizer: Tokenizer, pairs: Sequence[SentencePair], sites: Sequence[Site], encoded: EncodedPairs | None = None
) -> AxisLabels:
    """Return the labels of sentence pairs' tokens, and their known word alignments as links between tokens.

    Args:
        tokenizer: The tokenizer.
        pairs: The sentence pairs.
        sites: The model's attention sites.
        encoded: The tokens, where they are not simply those of `encode_pairs`.

    Returns:
        The labels of the axes `source`, `target` (the tokens that are predicted) and `target_input` (those that the
        decoder reads). They have gold alignments if the alignments of all pairs are known.
    """
    encoded = encode_pairs(tokenizer, pairs) if encoded is None else encoded
    sources, targets = ([tokenizer.labels(ids) for ids in side] for side in (encoded.sources, encoded.targets))
    (begin,) = tokenizer.labels([encoded.bos_id])
    alignments = [pair.word_alignment for pair in pairs if pair.word_alignment is not None]
    links = None
    if len(alignments) == len(pairs):
        pieces = ([tokenizer.pieces(ids) for ids in side] for side in (encoded.sources, encoded.targets))
        token_links = tuple(map(_token_links, alignments, *pieces))
        links = {site.name: token_links for site in sites_between(sites, *TARGET_OVER_SOURCE)} or None
    titles = tuple(" → ".join(filter(None, (pair.kind or "sentence", pair.language))) for pair in pairs)
    tokens = {
        "source": tuple(map(tuple, sources)),
        "target": tuple(map(tuple, targets)),
        "target_input": tuple((begin, *target[:-1]) for target in targets),
    }
    return AxisLabels(tokens=tokens, gold_alignments=links, titles=titles)


def _token_links(links: WordAlignment, source: Sequence[str], target: Sequence[str]) -> tuple[GoldAlignment, ...]:
    """Convert links between words to links between their pieces."""
    return tuple(
        GoldAlignment(query, key, (key_word, query_word) in links.sure)
        for query, query_word in enumerate(word_of_each_piece(target))
        for key, key_word in enumerate(word_of_each_piece(source))
        if (key_word, query_word) in links.possible
    )


def word_of_each_piece(pieces: Sequence[str]) -> list[int]:
    """Return the index of the word that each piece belongs to, -1 for special tokens such as tags and the end."""
    special = [piece.startswith("<") and piece.endswith(">") for piece in pieces]
    words = iter(word_indices([p for p, is_special in zip(pieces, special, strict=True) if not is_special]))
    return [-1 if is_special else next(words) for is_special in special]


def choose_varied_pairs(pairs: Sequence[SentencePair], count: int) -> list[int]:
    """Choose the indices of pairs that take turns among languages and kinds.

    Args:
        pairs: The sentence pairs.
        count: The largest number of indices.
    """
    groups: dict[tuple, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault((pair.kind, pair.language), []).append(index)
    turns = [index for turn in range(count) for group in groups.values() for index in group[turn : turn + 1]]
    return turns[:count]
