"""Pairs of texts as in BERT: the second span of sentences follows the first, or comes from elsewhere."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch, random_generator
from transformer.data.text_batches import SpecialTokenFrame

FOLLOWS, ELSEWHERE = 0, 1
"""The values of `follows` in a batch, which are the order of the two logits in published models."""


class SentenceBoundaryDetector:
    """Finds where sentences begin in token sequences.

    A sentence ends with ".", "!" or "?" before white space, and at the end of its paragraph.

    Args:
        written: The bytes that each token writes, [V].
    """

    def __init__(self, token_bytes: Sequence[bytes]):
        self._stops_V = np.array([text[-1:] in (b".", b"!", b"?") for text in token_bytes])
        self._spaced_V = np.array([text[:1].isspace() for text in token_bytes])
        self._blank_V = np.array([text[-1:].isspace() for text in token_bytes])
        self._line_V = np.array([text[:1] == b"\n" for text in token_bytes])
        self._lines_V = np.array([text.startswith(b"\n\n") for text in token_bytes])

    def starts(self, document: np.ndarray, most: int) -> np.ndarray:
        """Return the positions of a document at which sentences begin.

        Args:
            document: The document's tokens.
            most: The largest number of tokens in a sentence; a longer one is cut.
        """
        if not len(document):
            return np.zeros(0, int)
        before, current, after = (
            document[:-1],
            document[1:],
            np.append(document[2:], document[-1:])[: len(document) - 1],
        )
        sentence = self._stops_V[before] & self._spaced_V[current]
        paragraph = ~self._blank_V[before] & (self._lines_V[current] | (self._line_V[current] & self._line_V[after]))
        starts = np.concatenate([[0], 1 + np.flatnonzero(sentence | paragraph)])
        sizes = np.diff(np.append(starts, len(document)))
        return np.concatenate([start + np.arange(0, size, most) for start, size in zip(starts, sizes, strict=True)])


class _Sentence(NamedTuple):
    """A sentence: its document, its number in it, and whether another follows it."""

    document: int
    number: int
    continued: bool


class NextSentenceBatches:
    """Batches of pairs of texts: begin token, first text, end token, second text, end token.

    The first text is a random number of whole sentences that begin at any sentence; the second continues them
    (`follows` 0) or, with probability one half, begins at any other sentence (`follows` 1), and fills up the row as far
    as the documents of both go (Devlin et al. 2019, appendix A.2). A sentence is at most half of what a row holds. The
    pairs of a step are a function of (seed, step); an epoch reads about as many tokens as the documents have.

    Each batch has `tokens` and `types` [B, T], which is 1 in the second text and the end token after it, `lengths` [B],
    `follows` [B] and `index` [B], the number of the pair in its epoch.

    Args:
        documents: The documents' token numbers.
        bounds: Finds their sentences.
        context_length: Positions in a row.
        rows: Rows in a batch.
        seed: The seed.
        frame: The begin and end tokens.
        repeats: Whether all epochs have the same pairs, as data prepared in advance.
        pad: The padding token.

    Raises:
        UserError: If the documents do not have two successive sentences and a third, a row cannot hold two texts, or
            the frame lacks a token.
    """

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        bounds: SentenceBoundaryDetector,
        *,
        context_length: int,
        rows: int,
        seed: int,
        frame: SpecialTokenFrame,
        repeats: bool = False,
        pad: int = 0,
    ):
        if frame.bos_id is None or frame.eos_id is None:
            raise UserError("pairs of texts stand between tokens of begin and end, and the run's tokenizer lacks one")
        self._room = context_length - 3
        if self._room < 2:
            raise UserError(
                f"config.task.context_length={context_length} leaves no room for two texts beside three special tokens"
            )
        self._documents, self._frame, self._pad = documents, frame, pad
        self._context, self._rows, self._seed, self._repeats = context_length, rows, seed, repeats
        # The document's end is appended, so that sentence n is starts[n] to starts[n + 1].
        self._starts = [
            np.append(bounds.starts(document, most=self._room // 2), len(document)) for document in documents
        ]
        sentences = [
            _Sentence(document, number, number + 2 < len(starts))
            for document, starts in enumerate(self._starts)
            for number in range(len(starts) - 1)
        ]
        self._sentences = sentences
        self._first = [number for number, sentence in enumerate(sentences) if sentence.continued]
        if not self._first or len(sentences) < 3:
            raise UserError(
                "the text has no two sentences of one document, and a third: config.task.input_format=pairs"
            )
        self.batches_per_epoch = max(sum(map(len, documents)) // (rows * self._room), 1)

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        step = step % self.batches_per_epoch if self._repeats else step
        random = random_generator(self._seed, step)
        shape = self._rows, self._context
        tokens, types = np.full(shape, self._pad, np.int32), np.zeros(shape, np.int32)
        lengths, follows = np.zeros((2, self._rows), np.int32)
        for row in range(self._rows):
            first, second, follows[row] = self._sample_pair(random)
            text = np.array([self._frame.bos_id, *first, self._frame.eos_id, *second, self._frame.eos_id], np.int32)
            lengths[row] = len(text)
            tokens[row, : len(text)], types[row, len(first) + 2 : len(text)] = text, 1
        index = np.arange(self._rows, dtype=np.int32) + step % self.batches_per_epoch * self._rows
        return {"tokens": tokens, "types": types, "lengths": lengths, "follows": follows, "index": index}

    def _sample_pair(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        sentence_index = self._first[random.integers(len(self._first))]
        document, number, _ = self._sentences[sentence_index]
        starts = self._starts[document]
        # The number of whole sentences that fit the row, at least two; the first text has at most all but one.
        fit = int(np.searchsorted(starts[number:], starts[number] + self._room, side="right")) - 1
        size = int(random.integers(1, fit))
        next_index = sentence_index + size
        first = self._documents[document][starts[number] : starts[number + size]]
        random_index = int(random.integers(len(self._sentences) - 1))
        texts = [
            self._read_from_sentence(sentence, self._room - len(first))
            for sentence in (next_index, random_index + (random_index >= next_index))
        ]
        follows = int(random.integers(2))
        # The continuation is only the rest of a document: without equal lengths, length would reveal the label.
        return first, texts[follows][: min(map(len, texts))], follows

    def _read_from_sentence(self, sentence: int, room: int) -> np.ndarray:
        """Return at most `room` tokens of a document from a sentence on."""
        document, number, _ = self._sentences[sentence]
        start = self._starts[document][number]
        return self._documents[document][start : start + room]
