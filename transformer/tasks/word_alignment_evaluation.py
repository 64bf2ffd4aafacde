"""Sentence pairs with manual word alignments, on which a translation run's attention is evaluated."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformer.attention.sites import sites_between
from transformer.config import UserError
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.local_files import read_raw_lines, refuse_empty_lines
from transformer.data.datasets.translation import SentencePair
from transformer.models.model import Model
from transformer.tasks.task import Evaluation, Task
from transformer.tasks.translation import Translation
from transformer.tasks.translation_data import TARGET_OVER_SOURCE, TranslationSplit, encode_pairs, word_of_each_piece
from transformer.tasks.translation_metrics import alignment_evaluation


def read_alignment_files(
    source: Path, target: Path, links: Path, *, first: int = 0, reverse: bool = False, language: str = ""
) -> list[SentencePair]:
    """Read sentence pairs and their word alignments from three files of as many lines.

    A link is "2-3" if sure and "2p3" if possible, for word 2 of the source and word 3 of the target; words are
    separated by spaces.

    Args:
        source: The file of source sentences.
        target: The file of target sentences.
        links: The file of links.
        first: The number of a sentence's first word.
        reverse: Whether links name the target's word first.
        language: The target language.

    Raises:
        UserError: If a file cannot be read, the files have different numbers of lines or fewer than two, a sentence is
            empty, there is no link, or one is malformed or lies outside of its sentences.
    """
    sources, targets, linked = (read_raw_lines(path) for path in (source, target, links))
    if not len(sources) == len(targets) == len(linked):
        raise UserError(
            f"{source} has {len(sources)} lines, {target} {len(targets)} and {links} {len(linked)}: give three files "
            "of as many lines"
        )
    if len(sources) < 2:
        raise UserError(
            f"{source} has {len(sources)} lines: give at least two pairs, to choose a head and to measure it"
        )
    for path, sentences in ((source, sources), (target, targets)):
        refuse_empty_lines([number for number, text in enumerate(sentences, 1) if not text.strip()], path)
    if not any(map(str.strip, linked)):
        raise UserError(f"{links} has no links: give those of at least one pair, such as 0-0 1-2 2p3")
    pairs = []
    for number, (source_text, target_text, link_text) in enumerate(zip(sources, targets, linked, strict=True), 1):
        try:
            read = WordAlignment.from_text(link_text)
        except ValueError:
            raise UserError(
                f"{links}, line {number}: {link_text[:40]!r} is no list of links such as 0-0 1-2 2p3"
            ) from None
        turned = [[link[::-1] for link in links_of_kind] if reverse else links_of_kind for links_of_kind in read]
        sure, possible = (tuple((i - first, j - first) for i, j in links_of_kind) for links_of_kind in turned)
        sizes = len(source_text.split()), len(target_text.split())
        for i, j in possible:
            if not (0 <= i < sizes[0] and 0 <= j < sizes[1]):
                raise UserError(
                    f"{links}, line {number}: source word {i + first} and target word {j + first} are linked, and the "
                    f"sentences have {sizes[0]} and {sizes[1]} words: leave the pair out, or say --target_first or "
                    "--first_word_index"
                )
        pairs.append(SentencePair(source_text, target_text, language, word_alignment=WordAlignment(sure, possible)))
    return pairs


def word_alignment_evaluation(task: Task, model: Model, pairs: Sequence[SentencePair]) -> Evaluation:
    """Return an evaluation of the alignment error rate of a translation model's attention on these pairs.

    The attention is that of teacher forcing. If the model has several heads, every second pair serves to choose the
    best head and the others to measure it; a single head is measured on all pairs.

    Args:
        task: The run's task.
        model: Its model.
        pairs: Sentence pairs with links.

    Raises:
        UserError: If the task does not translate, the model has no attention of target over source, a pair has more
            tokens than the model has positions, or the tokenizer does not split words at spaces alone.
    """
    if not isinstance(task, Translation):
        raise UserError("only a run that translates can align sentence pairs")
    num_heads = sum(len(site.layers) * len(site.heads) for site in sites_between(model.sites, *TARGET_OVER_SOURCE))
    if not num_heads:
        raise UserError("this run's model has no attention of target over source, from which to read an alignment")
    tokenizer = task.tokenizer
    encoded = encode_pairs(tokenizer, pairs, task.config.sentence_frame)
    for number, (pair, source, target) in enumerate(zip(pairs, encoded.sources, encoded.targets, strict=True), 1):
        for text, ids in ((pair.source, source), (pair.target, target)):
            if max(word_of_each_piece(tokenizer.pieces(ids)), default=-1) + 1 != len(text.split()):
                raise UserError(
                    f"pair {number}: the run's tokenizer has other words in {text[:40]!r} than those between spaces, "
                    "which the links count: give a run of tokenized text"
                )
    longest = max(max(map(len, side)) for side in (encoded.sources, encoded.targets))
    if model.max_length is not None and longest > model.max_length:
        raise UserError(f"a pair has {longest} tokens, more than the model's {model.max_length} positions: omit it")
    config = replace(
        task.config, bucket_lengths=(longest,), tokens_per_batch=max(task.config.tokens_per_batch, longest)
    )
    split = TranslationSplit("given", pairs, encoded)
    selection = measured = split
    if num_heads > 1:
        selection, measured = (split.part(range(begin, len(pairs), 2)) for begin in (0, 1))
    return alignment_evaluation(config, tokenizer, selection, measured)
