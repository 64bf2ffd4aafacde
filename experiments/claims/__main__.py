"""Judge the claims of five lectures on attention by their figures."""

import dataclasses
import sys

from launch.cli import run
from launch.command import Arguments, Command, flag
from transformer.config import UserError, suggest_nearest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimsArguments(Arguments):
    """The arguments of `claims`."""

    only: tuple[str, ...] = flag("these claims, separated by commas, such as C-31 (default: all)", ())
    rerun: bool = flag("measure again what is recorded", False)


COMMAND = Command(
    name="claims",
    package="experiments",
    description="Judge the claims of five lectures on attention by their figures, and measure those that are missing.",
    example="--only=C-01",
    arguments=ClaimsArguments,
)


def main(arguments: ClaimsArguments) -> None:
    """Measure what is missing, and print each claim with its verdict."""
    from experiments.claims.catalog import claims_by_module
    from experiments.claims.evidence import load_figures

    by_name = {claim.name: (module, claim) for module, claim in claims_by_module().items()}
    for name in arguments.only:
        if name not in by_name:
            raise UserError(f"--only={name} is no claim: {suggest_nearest(name, by_name)}")
    for module, claim in (by_name[name] for name in arguments.only or by_name):
        figures, _ = load_figures(module, claim, rerun=arguments.rerun)
        finding = claim.judge(figures)
        print(f"{claim.name}  {claim.title}: {finding.verdict}. {finding.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
