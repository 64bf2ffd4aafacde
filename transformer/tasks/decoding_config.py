"""The decoding options that all tasks share."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer.config import (
    Config,
    NonNegativeFloat,
    NonNegativeInt,
    NumBeams,
    PositiveInt,
    Seed,
    UserError,
    from_config,
    refuse_single_text,
)
from transformer.decoding.beam import BeamSearch, EarlyStopping, LengthPowerBeamSearch
from transformer.decoding.constraints import Constraints
from transformer.decoding.generation import DecodingStrategy
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.decoding.stop_sequences import build_stop_table

if TYPE_CHECKING:
    from transformer.data.tokenizers.tokenizer import Tokenizer

# The options that ask for sampling.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


@dataclasses.dataclass(frozen=True)
class TokenLimits(Config):
    """Which tokens a text may have, whatever strategy chooses them: the options of `Constraints`.

    Attributes:
        end_ids: The tokens that end a text, beside the tokenizer's end token.
        forbidden_ids: The tokens that are never generated.
        forbidden_sequences: The sequences of tokens that are never generated.
        repetition_penalty: The penalty of tokens that stand in the text already. 1 is none.
        no_repeat_ngram_size: No sequence of so many tokens occurs twice, the prompt included. 0 is no limit.
        min_new_tokens: The least number of tokens to generate.
        forced_first_id: The token that begins every text, such as that of the language to translate into.
        forced_last_id: The last token of a text of `max_new_tokens` tokens.
    """

    end_ids: tuple[NonNegativeInt, ...] = ()
    forbidden_ids: tuple[NonNegativeInt, ...] = ()
    forbidden_sequences: tuple[tuple[NonNegativeInt, ...], ...] = ()
    repetition_penalty: NonNegativeFloat = 1.0
    no_repeat_ngram_size: NonNegativeInt = 0
    min_new_tokens: NonNegativeInt = 0
    forced_first_id: NonNegativeInt | None = None
    forced_last_id: NonNegativeInt | None = None

    def token_constraints(self) -> Constraints:
        """Return the limits that concern no text."""
        return Constraints(
            self.repetition_penalty,
            self.forbidden_ids,
            forbidden_sequences=self.forbidden_sequences,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            min_new_tokens=self.min_new_tokens,
            forced_first_id=self.forced_first_id,
            forced_last_id=self.forced_last_id,
        )

    def constraints(
        self, tokenizer: "Tokenizer", vocabulary: int, *, begins: bool, stop_sequences: tuple[str, ...] = ()
    ) -> Constraints:
        """Return the limits on tokens, with the stop strings as token tables.

        Args:
            tokenizer: The run's tokenizer.
            vocabulary: The number of tokens that the model scores. Tokens that the tokenizer does not know are never
                generated.
            begins: Whether no text stands before the first generated token.
            stop_sequences: Texts before which the generated text is cut.
        """
        unknown = range(tokenizer.vocab_size, vocabulary)
        table = None
        if stop_sequences:
            token_tables = (tokenizer.token_bytes(), *([tokenizer.first_bytes()] if begins else []))
            table = build_stop_table(
                stop_sequences, *([*token_bytes, *[b""] * len(unknown)] for token_bytes in token_tables)
            )
        limits = self.token_constraints()
        return dataclasses.replace(limits, forbidden_ids=(*unknown, *self.forbidden_ids), stop_table=table)


@dataclasses.dataclass(frozen=True)
class DecodingDefaults(TokenLimits, path="config.task.decoding"):
    """How a run generates unless a request says otherwise; an imported model has what its folder says.

    Attributes:
        max_new_tokens: The largest number of tokens to generate; None is the task's own.
        temperature: The sampling temperature; None, as for the next four, if it does not ask for sampling.
        top_k: Sample from the k most probable tokens. 0 is all.
        top_p: Sample from the smallest set of tokens whose probability reaches p. 1 is all.
        min_p: Sample from the tokens of at least this part of the greatest probability. 0 is all.
        typical_p: Sample from the typical set of this probability. 1 is all.
        length_power: For beams, the exponent of the length as in transformers; None is the length penalty of the task.
        early_stopping: With `length_power`, when a search stops.
    """

    max_new_tokens: PositiveInt | None = None
    temperature: NonNegativeFloat | None = None
    top_k: NonNegativeInt | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    length_power: float | None = None
    early_stopping: EarlyStopping | None = None

    def _check(self) -> None:
        _check_early_stopping(self)

    def beam_search(self, num_beams: int, length_penalty: float) -> BeamSearch | LengthPowerBeamSearch:
        """Return the beam search of a task with these options."""
        return _make_beam_search(num_beams, length_penalty, self.length_power, self.early_stopping)

    @property
    def samples(self) -> bool:
        """Whether texts are sampled."""
        return bool(_sampling_options(self))

    def own_settings(self) -> dict[str, Any]:
        """Return the fields of `DecodingConfig` that the run sets."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class DecodingConfig(TokenLimits):
    """Decoding: greedy or beam search, or sampling if one of its options (`temperature` to `typical_p`) is set.

    Attributes:
        max_new_tokens: The largest number of tokens to generate.
        num_beams: The beam size; 1 is greedy decoding.
        length_penalty: The exponent of the length penalty of beam search (Wu et al. 2016, section 7).
        coverage_penalty: The weight of the coverage penalty of beam search (Wu et al. 2016, section 7). 0 is none.
        length_power: Search as transformers does, and divide by this power of the length; transformers calls it
            `length_penalty`. None for the length penalty above.
        early_stopping: With `length_power`, when the search stops; None for `estimate`.
        temperature: The sampling temperature.
        top_k: Sample from the k most probable tokens. 0 is all.
        top_p: Sample from the smallest set of tokens whose probability reaches p (nucleus sampling). 1 is all.
        min_p: Sample from the tokens of at least this part of the greatest probability. 0 is all.
        typical_p: Sample from the typical set of this probability. 1 is all.
        num_samples: The number of samples for each prompt.
        stop_sequences: Texts before which the generated text is cut.
        seed: The seed of sampling.

    Raises:
        UserError: If beams and sampling are combined, `num_samples` is above 1 without sampling, a coverage penalty is
            set without beams, `min_new_tokens` is above `max_new_tokens`, or a value is out of range.
    """

    max_new_tokens: PositiveInt = 64
    num_beams: NumBeams = 1
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    length_power: float | None = None
    early_stopping: EarlyStopping | None = None
    temperature: NonNegativeFloat | None = None
    top_k: NonNegativeInt | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    num_samples: PositiveInt = 1
    stop_sequences: tuple[str, ...] = ()
    seed: Seed = 0

    def _check(self) -> None:
        refuse_single_text(self.stop_sequences, "stop_sequences")
        options = _sampling_options(self)
        if options and self.num_beams > 1:
            raise UserError(f"num_beams={self.num_beams} searches and {options[0]} samples: give one of them")
        check_coverage_penalty(self.coverage_penalty, self.num_beams)
        if self.coverage_penalty and self.length_power is not None:
            raise UserError(
                f"coverage_penalty={self.coverage_penalty} and length_power={self.length_power} are of different "
                "searches: give one of them"
            )
        _check_early_stopping(self)
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens={self.min_new_tokens} is above max_new_tokens={self.max_new_tokens}: make it smaller"
            )
        if self.num_samples > 1 and not options:
            raise UserError(f"num_samples={self.num_samples} needs sampling: give temperature, top_k or top_p as well")

    @classmethod
    def with_request(cls, request: Mapping[str, Any], **settings: Any) -> "DecodingConfig":
        """Build the config from a request and a task's own settings.

        Args:
            request: The fields that the request sets.
            **settings: The task's own settings, which the request overrides. Sampling, also that of the task's own,
                replaces the task's own beam search; a beam search of the request replaces the task's own sampling.

        Raises:
            UserError: If the request has an unknown or invalid field, `score_words`, or `replace_unknown`.
        """
        refuse_score_words(request)
        for name in ("replace_unknown", "unknown_dictionary"):
            if name in request:
                raise UserError(f"--{name}={request[name]} is for runs that translate sentences")
        if request.get("num_beams", 1) > 1:
            settings = {name: value for name, value in settings.items() if name not in _SAMPLING}
        elif any(name in settings | dict(request) for name in _SAMPLING):
            settings["num_beams"] = 1
        powers = ("length_power", "early_stopping")
        if (settings | dict(request)).get("num_beams", 1) == 1:
            if option := next((name for name in powers if name in request), None):
                raise UserError(f"{option}={request[option]} is of beam search: give num_beams as well, such as 4")
            settings.pop("coverage_penalty", None)
        if "length_penalty" in request:
            if "length_power" in request:
                raise UserError("length_penalty and length_power are of different searches: give one of them")
            settings = {name: value for name, value in settings.items() if name not in powers}
        return from_config(cls, settings | dict(request), "decoding")

    @property
    def strategy(self) -> DecodingStrategy:
        """The decoding method: greedy, beam search or sampling.

        Raises:
            UserError: If temperature, top_k or top_p is out of range.
        """
        if _sampling_options(self):
            temperature = 1.0 if self.temperature is None else self.temperature
            top_p = 1.0 if self.top_p is None else self.top_p
            typical_p = 1.0 if self.typical_p is None else self.typical_p
            return Sampling(temperature, self.top_k or 0, top_p, self.min_p or 0.0, typical_p, self.num_samples)
        if self.num_beams == 1:
            return GreedySearch()
        return _make_beam_search(self.num_beams, self.length_penalty, self.length_power, self.early_stopping)


def _check_early_stopping(config: DecodingDefaults | DecodingConfig) -> None:
    """Check that a rule of stopping goes with the search that has it.

    Raises:
        UserError: If it does not.
    """
    if config.early_stopping is not None and config.length_power is None:
        raise UserError(
            f"early_stopping={config.early_stopping.value} is of the search with length_power: give it as well, such "
            "as length_power=1"
        )


def _make_beam_search(
    num_beams: int, length_penalty: float, length_power: float | None, early_stopping: EarlyStopping | None
) -> BeamSearch | LengthPowerBeamSearch:
    """Return the search with a power of the length where one is given, else that of Wu et al. 2016."""
    if length_power is None:
        return BeamSearch(num_beams, length_penalty)
    return LengthPowerBeamSearch(num_beams, length_power, early_stopping or EarlyStopping.ESTIMATE)


def _sampling_options(config: DecodingDefaults | DecodingConfig) -> list[str]:
    """Return the set options that ask for sampling."""
    return [name for name in _SAMPLING if getattr(config, name) is not None]


def refuse_score_words(options: Mapping[str, Any]) -> None:
    """Refuse words to score at masked positions, for a run that does not fill in masks.

    Raises:
        UserError: If `options` has `score_words`.
    """
    if "score_words" in options:
        raise UserError(f"--score_words={','.join(options['score_words'])} is for runs that fill in hidden tokens")


def check_coverage_penalty(coverage_penalty: float, num_beams: int) -> None:
    """Check a coverage penalty.

    Args:
        coverage_penalty: The weight.
        num_beams: The beam size.

    Raises:
        UserError: If the weight is negative, or is not 0 and there is only one beam.
    """
    if not coverage_penalty >= 0:
        raise UserError(f"coverage_penalty={coverage_penalty} must be at least 0")
    if coverage_penalty and num_beams == 1:
        raise UserError(
            f"coverage_penalty={coverage_penalty} ranks the hypotheses of a beam search: say num_beams=4 or more"
        )
