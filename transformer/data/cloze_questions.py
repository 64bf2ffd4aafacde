"""Cloze questions made from running text: a word left out, with ten candidates to fill it in, and last words.

They follow the Children's Book Test (Hill et al. 2016) and LAMBADA (Paperno et al. 2016). Kinds of words are
distinguished only by their first letter: names have a capital.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer.data.tokenizers.tokenizer import Tokenizer

NUM_CANDIDATES = 10
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_ENDS = re.compile(r"[.!?](?=\s|$)")
# The largest number of characters of the sentence after the gap.
_BEHIND = 80
# Words that are not asked for: those of fewer letters, and so many of the most frequent.
_LEAST, _COMMON = 3, 100
# No tokenizer has more characters per token on average.
_CHARACTERS = 12


class WordFrequencies(NamedTuple):
    """The frequencies of words in some texts.

    Attributes:
        counts: The number of occurrences of each word.
        common_words: The most frequent words, in lower case, about which nothing is asked.
    """

    counts: Mapping[str, int]
    common_words: frozenset[str]

    @classmethod
    def count_words(cls, texts: Sequence[str]) -> "WordFrequencies":
        """Count the words of some texts."""
        counts = Counter(word for text in texts for word in WORD.findall(text))
        folded = Counter[str]()
        for word, count in counts.items():
            folded[word.casefold()] += count
        return cls(counts, frozenset(word for word, _ in folded.most_common(_COMMON)))

    def is_informative(self, word: str) -> bool:
        """Whether a word is worth asking for: neither short nor common."""
        return len(word) >= _LEAST and word.casefold() not in self.common_words


class ClozeQuestion(NamedTuple):
    """A text with a gap.

    Attributes:
        before: The text before the gap, which contains all candidates.
        after: The text after the gap.
        candidates: The words that may fill the gap.
        answer: The word that does.
    """

    before: str
    after: str
    candidates: tuple[str, ...]
    answer: str

    def completed_text(self, word: str) -> str:
        """Return the text with a word in the gap."""
        return self.before + word + self.after

    def most_frequent_candidate(self, lexicon: WordFrequencies, *, in_context: bool) -> str:
        """Return the candidate that is most frequent.

        Args:
            lexicon: The frequencies of words in the training text.
            in_context: Whether to count in the text before the gap first, and use the training text for ties, or the
                other way around.
        """
        context_counts = Counter(WORD.findall(self.before))

        def often(word: str) -> tuple[int, int]:
            counts = context_counts[word], lexicon.counts.get(word, 0)
            return counts if in_context else counts[::-1]

        return max(self.candidates, key=often)


def make_cloze_questions(
    documents: Sequence[str],
    lexicon: WordFrequencies,
    tokenizer: Tokenizer,
    *,
    count: int,
    room: int,
    last: bool = False,
) -> list[ClozeQuestion]:
    """Make questions about words that have occurred before the gap.

    The nine other candidates are of the answer's kind and occur before the gap as well, so that only the meaning of the
    text identifies the answer.

    Args:
        documents: The texts.
        lexicon: The frequencies of words in the training text.
        tokenizer: The tokenizer.
        count: The largest number of questions.
        room: The largest number of tokens in a question.
        last: Whether the word is the last of a sentence and nothing follows; all words of its kind are candidates then.
    """
    occurrences = [
        (text, match)
        for text in documents
        for match in WORD.finditer(text)
        if lexicon.is_informative(match[0]) and (not last or _ENDS.match(text, match.end()))
    ]
    random, questions = np.random.default_rng(0), list[ClozeQuestion]()
    for text, match in (occurrences[number] for number in random.permutation(len(occurrences))):
        if len(questions) == count:
            break
        question = _make_question(text, match, lexicon, tokenizer, random, room=room, last=last)
        if question is not None:
            questions.append(question)
    return questions


def _make_question(
    text: str,
    match: re.Match[str],
    lexicon: WordFrequencies,
    tokenizer: Tokenizer,
    random: np.random.Generator,
    *,
    room: int,
    last: bool,
) -> ClozeQuestion | None:
    """Return the question about a word; None if it makes none."""
    answer, after = match[0], "" if last else _find_sentence_remainder(text, match.end())
    if answer in WORD.findall(after):
        return None
    # The end of the text before the gap, without a word that is cut.
    stretch = text[max(match.start() - room * _CHARACTERS, 0) : match.start()]
    encoded = tokenizer.encode([stretch, after])
    num_kept_tokens = room - len(encoded[1]) - _CHARACTERS
    before = tokenizer.decode(encoded[0][-num_kept_tokens:]) if num_kept_tokens > 0 else ""
    if not before[-1:].isspace():
        before += stretch[len(stretch.rstrip()) :]  # which a tokenizer of words drops
    if len(encoded[0]) > num_kept_tokens:
        before = before[re.match(r"\S*\s*", before).end() :]  # type: ignore[union-attr]
    context_words = sorted(
        {
            word
            for word in WORD.findall(before)
            if lexicon.is_informative(word) and word[0].isupper() == answer[0].isupper()
        }
    )
    if answer not in context_words:
        return None
    candidates = context_words
    if not last:
        distractors = [word for word in context_words if word != answer]
        if len(distractors) < NUM_CANDIDATES - 1:
            return None
        distractor_numbers = random.choice(len(distractors), NUM_CANDIDATES - 1, replace=False)
        candidates = [answer, *(distractors[number] for number in distractor_numbers)]
        candidates = [candidates[number] for number in random.permutation(NUM_CANDIDATES)]
    question = ClozeQuestion(before, after, tuple(candidates), answer)
    completed = tokenizer.encode([question.completed_text(word) for word in (candidates if not last else [answer])])
    return question if max(map(len, completed)) <= room else None


def _find_sentence_remainder(text: str, start: int) -> str:
    """Return the rest of the sentence, with its final mark."""
    cut = text[start : start + _BEHIND]
    ends = _ENDS.search(cut)
    return cut if ends is None else cut[: ends.end()]
