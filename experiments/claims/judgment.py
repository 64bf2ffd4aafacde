"""Claims with their findings: what the command prints and the pages show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.claims.claim import Claim, Figures, Finding, Measurement
from experiments.claims.errata import Erratum
from experiments.claims.evidence import MeasuredRecord, load_figures, record_file
from experiments.claims.exhibits import Exhibit

# What each lecture is about, in our words.
LECTURES: Mapping[str, str] = {
    "S0": "Retrieval, Transformers and GPT",
    "S1": "From alignment to self-attention and relative positions",
    "S2": "From recurrent translation to Transformers, BERT and ViT",
    "S3": "Attention layers, sets, positions and the scale of language models",
    "S4": "Kinds of attention: soft and hard, global and local, memory and pointers",
}


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim, what its figures say, and where they come from.

    Attributes:
        claim: The claim.
        finding: Its verdict and reason.
        exhibits: Its tables, charts and heat maps.
        record: Its record; None if its figures are those of other projects' records.
    """

    claim: Claim
    finding: Finding
    exhibits: Sequence[Exhibit]
    record: MeasuredRecord | None


def judge_claim(module: str, claim: Claim, *, rerun: bool = False) -> JudgedClaim:
    """Judge a claim by its figures, which are measured if they are not recorded.

    Args:
        module: The claim's module.
        claim: The claim.
        rerun: Whether to measure and record again what is recorded.

    Raises:
        UserError: If a record cannot be read.
    """
    figures, record = load_figures(module, claim, rerun=rerun)
    return judge_figures(claim, figures, record)


def judge_figures(claim: Claim, figures: Figures, record: MeasuredRecord | None) -> JudgedClaim:
    """Judge a claim by these figures."""
    return JudgedClaim(claim=claim, finding=claim.judge(figures), exhibits=claim.exhibits(figures), record=record)


def judge_recorded(claims_by_module: Mapping[str, Claim]) -> tuple[JudgedClaim, ...]:
    """Judge the claims whose figures are recorded, and measure none."""
    return tuple(
        judge_claim(module, claim)
        for module, claim in claims_by_module.items()
        if not isinstance(claim.evidence, Measurement) or record_file(module).exists()
    )


@dataclass(frozen=True, kw_only=True)
class LectureSection:
    """What a page shows of a lecture.

    Attributes:
        claims: The claims of which no earlier lecture is one.
        repeated_claims: The claims that stand with an earlier lecture.
        errata: The errata of which no earlier lecture is one.
        repeated_errata: The errata that stand with an earlier lecture.
    """

    claims: Sequence[JudgedClaim]
    repeated_claims: Sequence[Claim]
    errata: Sequence[Erratum]
    repeated_errata: Sequence[Erratum]


def divide_by_lecture(judged_claims: Sequence[JudgedClaim], errata: Sequence[Erratum]) -> Mapping[str, LectureSection]:
    """Divide claims and errata by lecture; each stands with the first of its lectures."""
    return {
        lecture: LectureSection(
            claims=[judged for judged in judged_claims if judged.claim.lectures[0] == lecture],
            repeated_claims=[judged.claim for judged in judged_claims if lecture in judged.claim.lectures[1:]],
            errata=[erratum for erratum in errata if erratum.lectures[0] == lecture],
            repeated_errata=[erratum for erratum in errata if lecture in erratum.lectures[1:]],
        )
        for lecture in LECTURES
    }
