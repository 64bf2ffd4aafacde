"""Judge the claims of five lectures on attention by their figures, and write the pages of all claims."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launch.cli import run
from launch.command import Arguments, Command, flag
from transformer.config import UserError, suggest_nearest

if TYPE_CHECKING:
    from experiments.claims.claim import Claim

FAST_SECONDS = 120  # on two cores, of all measurements of --fast together


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimsArguments(Arguments):
    """The arguments of `claims`."""

    only: tuple[str, ...] = flag(
        "these claims, separated by commas, such as C-31 (default: all)",
        (),
        excludes=("lecture", "fast"),
        because="it names the claims",
    )
    lecture: str | None = flag("the claims of this lecture, S0 to S4")
    fast: bool = flag(
        "only the claims that are judged by other projects' records and, measured again, the quickest others: as many "
        "as take two minutes in all on two cores",
        False,
        excludes=("rerun",),
        because="it measures again anyway",
    )
    rerun: bool = flag("measure again what is recorded", False)


COMMAND = Command(
    name="claims",
    package="experiments",
    description=(
        "Judge what five lectures on attention claim, each claim by its figures: those of its own measurement, which "
        "is made unless it is recorded, or those of other projects' records. Print the verdict and the reason of each, "
        "record what was measured in experiments/claims/results, and write experiments/claims/claims.html and "
        "docs/claims.md with all claims that have figures."
    ),
    example="--only=C-01",
    arguments=ClaimsArguments,
)


def main(arguments: ClaimsArguments) -> None:
    """Print the verdicts, and write the pages."""
    from experiments.claims.catalog import claims_by_module
    from experiments.claims.judgment import judge_claim, judge_recorded
    from experiments.claims.pages import HTML_PAGE, write_pages

    all_claims = claims_by_module()
    for module, claim in select_claims(arguments, all_claims).items():
        judged = judge_claim(module, claim, rerun=arguments.rerun or arguments.fast)
        print(f"{claim.name}  {claim.title}: {judged.finding.verdict}. {judged.finding.reason}", flush=True)
    recorded_claims = judge_recorded(all_claims)
    write_pages(recorded_claims)
    if len(recorded_claims) < len(all_claims):
        names = {judged.claim.name for judged in recorded_claims}
        missing = ", ".join(claim.name for claim in all_claims.values() if claim.name not in names)
        print(f"without figures, and so not on the page: {missing}", file=sys.stderr)
    print(f"Open this page in a browser: {HTML_PAGE}", file=sys.stderr)


def select_claims(arguments: ClaimsArguments, all_claims: "Mapping[str, Claim]") -> "Mapping[str, Claim]":
    """Return the claims that the flags choose, by module.

    Raises:
        UserError: If a flag names no claim or no lecture.
    """
    from experiments.claims.judgment import LECTURES

    modules = {claim.name: module for module, claim in all_claims.items()}
    for name in arguments.only:
        if name not in modules:
            raise UserError(f"--only={name} is no claim: {suggest_nearest(name, modules)}")
    if arguments.lecture is not None and arguments.lecture not in LECTURES:
        raise UserError(f"--lecture={arguments.lecture} is no lecture: they are {', '.join(LECTURES)}")
    selected = {modules[name]: all_claims[modules[name]] for name in arguments.only} or dict(all_claims)
    if arguments.lecture is not None:
        selected = {module: claim for module, claim in selected.items() if arguments.lecture in claim.lectures}
    return quick_claims(selected) if arguments.fast else selected


def quick_claims(all_claims: "Mapping[str, Claim]") -> "dict[str, Claim]":
    """Return the claims of records and the quickest that measure, as many as take `FAST_SECONDS` in all."""
    from experiments.claims.claim import Measurement

    seconds = {
        module: claim.evidence.seconds if isinstance(claim.evidence, Measurement) else 0.0
        for module, claim in all_claims.items()
    }
    fitting, total = set(), 0.0
    for module in sorted(seconds, key=lambda module: seconds[module]):
        total += seconds[module]
        if total < FAST_SECONDS:
            fitting.add(module)
    return {module: claim for module, claim in all_claims.items() if module in fitting}


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
