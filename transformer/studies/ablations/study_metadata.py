"""What an ablation stores in its directory in addition to its runs: how its arms differ and what they share."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from transformer.config import NonNegativeInt, Range, RunConfig, Seed, Sha256, UserError, from_config, to_config
from transformer.runs.run_directory import write_json
from transformer.storage.json_reading import parse_dataclass, read_json_object
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.comparability import (
    check_metric_splits,
    check_shared_data,
    compare_initial_parameters,
)
from transformer.studies.ablations.initial_gradients import measure_depth_sweeps
from transformer.studies.ablations.run_plan import PlannedRun, arm_config_differences
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import to_json_values
from transformer.training.config import resolve_config

_FILE = "about.json"

GradientNorm = float | None
"""None where it was not finite."""


@dataclasses.dataclass(frozen=True)
class ConfigDifference:
    """A key of the config, its value in the reference, and its value in an arm."""

    key: str
    reference: Any
    arm: Any


@dataclasses.dataclass(frozen=True)
class MatchingInitialParameters:
    """How many arrays of initial parameters equal the reference's; see `comparability.InitialParameterComparison`."""

    num_equal_arrays: NonNegativeInt
    num_arrays: NonNegativeInt
    differing_paths: tuple[str, ...]
    unmatched_paths: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ArmMetadata:
    """What is known of an arm before it is trained.

    Attributes:
        differences: The config keys in which it differs from the reference.
        parameters: The number of parameters.
        shared: How many initial parameters equal the reference's.
    """

    differences: tuple[ConfigDifference, ...]
    parameters: Annotated[int, Range(0, 2**63)]
    shared: MatchingInitialParameters | None


@dataclasses.dataclass(frozen=True)
class ArmGradientNorms:
    """The gradient norms of an arm's layers at one depth: mean, minimum and maximum over seeds."""

    arm: str
    depth: NonNegativeInt
    layers: tuple[GradientNorm, ...]
    low: tuple[GradientNorm, ...]
    high: tuple[GradientNorm, ...]


@dataclasses.dataclass(frozen=True)
class LastToFirstGradientRatio:
    """The gradient norm of the last layer over that of the first, for an arm at one depth."""

    arm: str
    depth: NonNegativeInt
    last_over_first: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthExponent:
    """The exponent with which an arm's last gradient norm grows with depth."""

    arm: str
    value: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthSweepNorms:
    """The measurements of one depth sweep by `transformer.studies.ablations.initial_gradients`."""

    name: str
    depths: tuple[NonNegativeInt, ...]
    arms: tuple[ArmGradientNorms, ...]
    ratio: tuple[LastToFirstGradientRatio, ...]
    exponent: tuple[DepthExponent, ...]


@dataclasses.dataclass(frozen=True)
class InitialGradients:
    """The measured depth sweeps, and how they were measured."""

    stacks: tuple[DepthSweepNorms, ...]
    how: str


@dataclasses.dataclass(frozen=True)
class StudyMetadata:
    """The contents of about.json.

    Attributes:
        base: The resolved base config.
        arms: The metadata of each arm.
        initial_gradients: The measured gradient norms.
        stacks: The depth sweeps that they were measured for.
        first_judged_seeds: The seeds of the first report with a verdict; None before it. Seeds that are added once a
            verdict was seen make later reports exploratory.
        registration: The hash of the registration that was made in this directory; None without one.
    """

    base: Mapping[str, Any]
    arms: Mapping[str, ArmMetadata]
    initial_gradients: InitialGradients | None = None
    stacks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    first_judged_seeds: tuple[Seed, ...] | None = None
    registration: Sha256 | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.base.get("name"), str):
            raise ValueError("base: it must be a config, with a name")


def study_identity(spec: Ablation, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines an ablation's runs, except its seeds; a trial store of another identity is refused.

    Args:
        spec: The ablation.
        base: The base config.

    Returns:
        JSON values: the arms, tuning grid and tasks, the base config, and the metric with its direction.
    """
    return {
        "ablation": to_json_values({"arms": spec.arms, "tuning_grid": spec.tuning_grid, "tasks": spec.tasks}),
        "base": to_json_values(base),
        "metric": spec.selection_metric,
        "direction": spec.direction.value,
    }


def refuse_dropped_seeds(spec: Ablation, trial_store: TrialStore) -> None:
    """Check that no seed with existing runs is left out, because leaving out seeds after seeing results is biased.

    Args:
        spec: The ablation.
        trial_store: The runs of the ablation so far.

    Raises:
        UserError: If the directory has runs of a seed that the ablation no longer has.
    """
    trained = {from_config(RunConfig, trial.config).seed for trial in trial_store.trials()}
    missing = sorted(trained - set(spec.seeds))
    if missing:
        every = ",".join(str(seed) for seed in sorted(trained | set(spec.seeds)))
        raise UserError(
            f"--workdir={trial_store.path} has runs of seed {', '.join(map(str, missing))} too, and seeds that are "
            f"left out once they were seen bias the result: say --seeds={every}, or choose another --workdir"
        )


def check_and_describe_arms(
    spec: Ablation, base: Mapping[str, Any], planned: Sequence[PlannedRun], data_dir: str | None = None
) -> dict[str, Any]:
    """Check that all arms see the same data, and collect each arm's metadata.

    Args:
        spec: The ablation.
        base: The base config.
        planned: The planned runs.
        data_dir: The directory of the data; by default the config's.

    Returns:
        JSON values: the resolved base config, and each arm's config differences and parameters.

    Raises:
        UserError: If arms see different data, data are missing, or a metric's split is never evaluated.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-arms-") as folder:
        tasks = check_shared_data(planned, Path(folder), data_dir)
        check_metric_splits(spec, tasks[spec.reference])
        parameter_comparisons = compare_initial_parameters(planned, spec.reference, tasks)
    changed = arm_config_differences(planned, spec.reference)
    arms = {
        arm: {
            "differences": changed[arm],
            "parameters": comparison.num_parameters,
            "shared": {name: value for name, value in comparison._asdict().items() if name != "num_parameters"},
        }
        for arm, comparison in parameter_comparisons.items()
    }
    return to_json_values({"base": resolve_config(base).to_config(), "arms": arms})


def read_metadata(path: Path) -> dict[str, Any] | None:
    """Read the metadata in the directory of an ablation; None if there is none.

    Raises:
        UserError: If the file is not valid.
    """
    file = path / _FILE
    if not file.is_file():
        return None
    try:
        about = read_json_object(file)
        parse_dataclass(StudyMetadata, about, str(file))
    except UserError as error:
        raise UserError(f"{error}: remove it, and it is made anew") from error
    return about


def write_metadata(path: Path, about: Mapping[str, Any]) -> None:
    """Write the metadata into the directory of an ablation.

    Args:
        path: The directory.
        about: The metadata, as `check_and_describe_arms` and `measure_initial_gradients` return it, with
            `first_judged_seeds` from the first verdict on.
    """
    write_json(path / _FILE, about)


def measure_initial_gradients(
    spec: Ablation, base: Mapping[str, Any], about: Mapping[str, Any], data_dir: str | None = None
) -> dict[str, Any]:
    """Add the gradient norms of the study's depth sweeps to its metadata, measuring them unless they are there already.

    Args:
        spec: The ablation.
        base: The base config.
        about: The metadata.
        data_dir: The directory of the data; by default the config's.

    Returns:
        The completed metadata.
    """
    stacks = to_json_values(to_config(spec.initial_gradients))
    if not stacks:
        return {**about, "initial_gradients": None, "stacks": {}}
    if about.get("stacks") == stacks and about.get("initial_gradients"):
        return dict(about)
    return {**about, "initial_gradients": measure_depth_sweeps(base, spec, data_dir), "stacks": stacks}
