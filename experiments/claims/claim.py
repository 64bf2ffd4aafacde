"""A claim of the lectures: what it says, what would refute it, and the rule that decides it from figures."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.claims.exhibits import Exhibit

# JSON values by name: what a claim's rule and its exhibits read.
Figures = Mapping[str, Any]


class Verdict(enum.StrEnum):
    """What the figures say of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds with a condition"
    FAILS = "does not hold here"
    NOT_TESTABLE = "cannot be tested here"


@dataclass(frozen=True)
class Finding:
    """A verdict and its reason.

    Attributes:
        verdict: The verdict.
        reason: A sentence or two with the figures that decided; for a condition, which; if it can't be tested, why.
    """

    verdict: Verdict
    reason: str


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures that a claim's own experiment measures; results/NAME.json keeps them, NAME being the claim's module.

    Attributes:
        measure: The experiment. It is deterministic but for times.
        seconds: How long it takes on two cores, about.
    """

    measure: Callable[[], Figures]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Records:
    """Figures that other projects' records hold.

    Attributes:
        files: The JSON and JSON Lines files, relative to experiments/.
        page: The record's page, relative to experiments/, whose section "Reproduce" has the commands.
        read: Takes the parsed files in their order (a JSON Lines file is a list) and returns the figures.
    """

    files: tuple[str, ...]
    page: str
    read: Callable[[Sequence[Any]], Figures]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim.

    Attributes:
        number: Its number, from 1.
        title: A few words.
        sentence: What is claimed.
        lectures: The lectures that say so, "S0" to "S4".
        source: The paper and section that the claim goes back to, or that tests it.
        refutation: What figures would refute it.
        evidence: Where the figures come from.
        judge: The rule: figures to finding.
        exhibits: What the page shows, drawn from the figures; at least one.
        revision: What of the rule or the experiment was changed after its first figures were seen, if anything was.
    """

    number: int
    title: str
    sentence: str
    lectures: tuple[str, ...]
    source: str
    refutation: str
    evidence: Measurement | Records
    judge: Callable[[Figures], Finding]
    exhibits: Callable[[Figures], Sequence[Exhibit]]
    revision: str = ""

    @property
    def name(self) -> str:
        """The claim's name, such as "C-31"."""
        return f"C-{self.number:02d}"
