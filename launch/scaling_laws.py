"""Fit scaling laws: how the loss falls with parameters, tokens and FLOPs."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Arguments, Command, flag
from transformer.config import SEEDS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformer.studies.scaling_laws import ScalingFit, ScalingRun

FILE = "scaling.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingLawsArguments(Arguments):
    """The arguments of `scaling_laws`."""

    workdir: str | None = flag("the directory of a sweep or an ablation", required=True)
    runs: str | None = flag(
        "run directories instead, separated by commas", makes_optional=("workdir",), excludes=("workdir",)
    )
    metric: str = flag("the loss to fit, as SPLIT/NAME", "validation/loss")
    bootstrap_samples: int = flag("the number of bootstrap samples", 200)
    seed: int = flag("the random seed of the bootstrap", 0, range=SEEDS)
    output: str | None = flag(f"the JSON file to write (default: WORKDIR/{FILE}; with --runs none)")


COMMAND = Command(
    name="scaling_laws",
    description=(
        "Fit scaling laws: how the loss falls with parameters N, tokens D and training FLOPs C, over the runs of a "
        "sweep or an ablation, or over given run directories. Where N and D both vary the law is "
        "L = E + A / N^alpha + B / D^beta. Intervals are 95%, by bootstrap of the losses. The result is printed as a "
        "table and written as JSON."
    ),
    example="--workdir=runs/sizes",
    arguments=ScalingLawsArguments,
)


def main(arguments: ScalingLawsArguments) -> None:
    """Fit, print and write the scaling laws."""
    if arguments.bootstrap_samples < 0 or arguments.seed < 0:
        raise UserError(
            f"--bootstrap_samples={arguments.bootstrap_samples} and --seed={arguments.seed} must be at least 0"
        )
    from transformer.storage.paths import parse_path, storage_of
    from transformer.studies.scaling_laws import fit_scaling_laws, loss_falls_with_size, read_runs

    paths = [arguments.workdir] if arguments.runs is None else arguments.runs.split(",")
    # A run that is named twice is one, not two seeds that agree.
    read = read_runs(dict.fromkeys(parse_path(path) for path in paths if path), arguments.metric)
    for line in read.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if len(read.runs) < 2:
        raise UserError(
            f"only {len(read.runs)} finished runs report {arguments.metric}: a fit needs at least two sizes"
        )
    fits, monotone = (
        fit_scaling_laws(read.runs, draws=arguments.bootstrap_samples, seed=arguments.seed),
        loss_falls_with_size(read.runs),
    )
    print(format_table(read.runs, fits, monotone, arguments.metric))
    if (path := _output_path(arguments)) is not None:
        result = result_as_json(read.runs, fits, monotone, arguments.metric)
        storage_of(path).replace(path, (json.dumps(result, indent=2) + "\n").encode())
        print(f"written: {path}")


def _output_path(arguments: ScalingLawsArguments) -> Path | None:
    from transformer.storage.paths import parse_path

    if arguments.output is not None:
        return parse_path(arguments.output)
    return None if arguments.workdir is None else parse_path(arguments.workdir) / FILE


def result_as_json(
    runs: "Sequence[ScalingRun]", fits: "Mapping[str, ScalingFit]", monotone: bool | None, metric: str
) -> dict[str, Any]:
    """Return the runs and the fits as JSON values.

    Args:
        runs: The runs.
        fits: The fits by name.
        monotone: Whether the loss falls with the number of parameters; None if that cannot be judged.
        metric: The metric that was fitted, as "split/name".

    Returns:
        The values that --output stores.
    """
    return {
        "metric": metric,
        "runs": [run._asdict() for run in runs],
        "falls_with_parameters": monotone,
        "fits": {
            name: {
                "form": fit.form,
                "values": dict(fit.values),
                "intervals": {key: list(interval) for key, interval in fit.intervals.items()},
                "undetermined": dict(fit.undetermined),
            }
            for name, fit in fits.items()
        },
    }


def format_table(
    runs: "Sequence[ScalingRun]", fits: "Mapping[str, ScalingFit]", monotone: bool | None, metric: str
) -> str:
    """Format the runs by size, and each fit with its values and intervals.

    Args:
        runs: The runs.
        fits: The fits by name.
        monotone: Whether the loss falls with every larger size; None if unknown.
        metric: The loss, as "split/name".

    Returns:
        The table.
    """
    width = max(len("run"), *(len(run.name) for run in runs))
    lines = [f"{'run':<{width}}  {'parameters':>14}  {'tokens':>10}  {'FLOPs':>10}  {metric:>16}"]
    lines += [
        f"{name:<{width}}  {parameters:>14,.0f}  {tokens:>10.3g}  {flops:>10.3g}  {loss:>16.4f}"
        for name, parameters, tokens, flops, loss in sorted(runs, key=lambda run: run[1:])
    ]
    answer = {True: "yes", False: "no", None: "unknown, no two sizes have the same number of tokens"}[monotone]
    lines += ["", f"the loss falls with every larger size: {answer}"]
    if fits.keys() <= {"flops"}:
        lines.append("parameters and tokens both vary: a joint law needs three values of each and six pairs")
    for name, fit in fits.items():
        lines.append(f"{name}: {fit.form}")
        lines += [
            f"  {key} = {value:.4g}{_format_interval(fit, key)}"
            + (f"  {fit.undetermined[key]}" if key in fit.undetermined else "")
            for key, value in fit.values.items()
        ]
        exponents = {"alpha", "beta"}
        if exponents <= fit.values.keys() and not exponents & fit.undetermined.keys():
            from transformer.studies.scaling_laws import compute_optimal_exponents

            a, b = compute_optimal_exponents(fit)
            lines.append(f"  compute-optimal: N ~ C^{a:.2f}, D ~ C^{b:.2f}")
    return "\n".join(lines)


def _format_interval(fit: "ScalingFit", key: str) -> str:
    if key not in fit.intervals:
        return "  (too few runs for an interval)"
    low, high = fit.intervals[key]
    return f"  (95%: {low:.4g} to {high:.4g})"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
