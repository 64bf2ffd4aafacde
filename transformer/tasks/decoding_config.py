"""The decoding options that all tasks share."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer.config import Amount, Beams, Config, Count, Positive, Seed, UserError, from_config, refuse_single_text
from transformer.decoding.beam import BeamSearch
from transformer.decoding.constraints import Constraints
from transformer.decoding.generate import DecodingStrategy
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.decoding.stop_sequences import build_stop_table

if TYPE_CHECKING:
    from transformer.data.tokenizers.load import AnyTokenizer

# The options that ask for sampling.
_SAMPLING = ("temperature", "top_k", "top_p")


@dataclasses.dataclass(frozen=True)
class DecodingConfig(Config):
    """Greedy for one beam, beam search for more; sampling where a temperature, top_k or top_p is given.

    `num_samples` are drawn from each prompt, by the key of `seed`. `max_new_tokens` bounds the length of each.

    Raises:
        UserError: For beams together with sampling, a coverage penalty without beams, and values out of range.
    """

    max_new_tokens: Positive = 64
    beams: Beams = 1
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    temperature: Amount | None = None
    top_k: Count | None = None
    top_p: float | None = None
    num_samples: Positive = 1
    repetition_penalty: Amount = 1.0
    stop_sequences: tuple[str, ...] = ()
    seed: Seed = 0

    def _check(self) -> None:
        refuse_single_text(self.stop_sequences, "stop_sequences")
        given = self._sampled()
        if given and self.beams > 1:
            raise UserError(f"beams={self.beams} searches and {given[0]} samples: give one of them")
        check_coverage_penalty(self.coverage_penalty, self.beams)
        if self.num_samples > 1 and not given:
            raise UserError(f"num_samples={self.num_samples} needs sampling: give temperature, top_k or top_p as well")

    @classmethod
    def asked(cls, given: Mapping[str, Any], **own: Any) -> "DecodingConfig":
        """What a request gives over a task's own settings; sampling replaces the task's own beam search.

        Raises:
            UserError: As the class.
        """
        refuse_score_words(given)
        if any(name in given for name in _SAMPLING):
            own["beams"] = 1
        if (own | dict(given)).get("beams", 1) == 1:
            own.pop("coverage_penalty", None)
        return from_config(cls, own | dict(given), "decoding")

    @property
    def strategy(self) -> DecodingStrategy:
        """The decoding method: greedy, beam search or sampling.

        Raises:
            UserError: For a temperature, top_k or top_p out of range.
        """
        if self._sampled():
            temperature = 1.0 if self.temperature is None else self.temperature
            top_p = 1.0 if self.top_p is None else self.top_p
            return Sampling(temperature, self.top_k or 0, top_p, beams=self.num_samples)
        return GreedySearch() if self.beams == 1 else BeamSearch(self.beams, self.length_penalty)

    def constraints(self, tokenizer: "AnyTokenizer", vocabulary: int, *, begins: bool) -> Constraints:
        """The repetition penalty, and the stop strings as the tokenizer's tokens spell them.

        `vocabulary` is the model's: tokens that the tokenizer does not know are never generated. `begins`: no text
        stands before the first token.
        """
        unknown = range(tokenizer.vocabulary, vocabulary)
        table = None
        if self.stop_sequences:
            written = (tokenizer.token_bytes(), *([tokenizer.first_bytes()] if begins else []))
            table = build_stop_table(self.stop_sequences, *([*known, *[b""] * len(unknown)] for known in written))
        return Constraints(self.repetition_penalty, tuple(unknown), table)

    def _sampled(self) -> list[str]:
        """The given options that ask for sampling."""
        return [name for name in _SAMPLING if getattr(self, name) is not None]


def refuse_score_words(given: Mapping[str, Any]) -> None:
    """Refuse words to score at masked positions, for a run that fills in none.

    Raises:
        UserError: As described above.
    """
    if "score_words" in given:
        raise UserError(f"--score_words={','.join(given['score_words'])} is for runs that fill in hidden tokens")


def check_coverage_penalty(coverage_penalty: float, beams: int) -> None:
    """Raise UserError for a coverage penalty below 0, or one that no beam search reads."""
    if not coverage_penalty >= 0:
        raise UserError(f"coverage_penalty={coverage_penalty} must be at least 0")
    if coverage_penalty and beams == 1:
        raise UserError(
            f"coverage_penalty={coverage_penalty} ranks the hypotheses of a beam search: say beams=4 or more"
        )
