"""The decoding options that all tasks share."""

import dataclasses

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.decode.beam import Beam
from transformer.decode.constraints import Constraints
from transformer.decode.generate import Chooser
from transformer.decode.greedy import Greedy
from transformer.decode.sampling import Sampling
from transformer.decode.stops import stop_table


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Greedy for one beam, beam search for more; sampling where a temperature, top_k or top_p is given.

    `samples` are drawn from each prompt, by the key of `seed`. `length` is the greatest number of new tokens.

    Errors: UserError for beams together with sampling, and for values out of range.
    """

    length: int = 64
    beams: int = 1
    length_penalty: float = 0.6
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    samples: int = 1
    repetition_penalty: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "beams", "samples"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        given = self._sampled()
        if given and self.beams > 1:
            raise UserError(f"beams={self.beams} searches and {given[0]} samples: give one of them")
        if self.samples > 1 and not given:
            raise UserError(f"samples={self.samples} needs sampling: give temperature, top_k or top_p as well")

    @property
    def chooser(self) -> Chooser:
        """The decoding method: greedy, beam search or sampling.

        Errors: UserError for a temperature, top_k or top_p out of range.
        """
        if self._sampled():
            temperature = 1.0 if self.temperature is None else self.temperature
            top_p = 1.0 if self.top_p is None else self.top_p
            return Sampling(temperature, self.top_k or 0, top_p, beams=self.samples)
        return Greedy() if self.beams == 1 else Beam(self.beams, self.length_penalty)

    def constraints(self, tokenizer: AnyTokenizer, vocabulary: int) -> Constraints:
        """The repetition penalty, and the stop strings as the tokenizer's tokens spell them.

        `vocabulary` is the model's: tokens that the tokenizer does not know are never generated.
        """
        known = tokenizer.token_bytes()
        if not self.stops:
            table = None
        else:
            table = stop_table(self.stops, [*known, *[b""] * (vocabulary - len(known))])
        return Constraints(self.repetition_penalty, tuple(range(len(known), vocabulary)), table)

    def _sampled(self) -> list[str]:
        """The given options that ask for sampling."""
        return [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
