"""What an ablation stores in its directory in addition to its runs: how its arms differ and what they share."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from transformer.config import Range, RunConfig, Seed, Sha256, UserError, from_config, to_config
from transformer.runs.run_directory import write_json
from transformer.storage.json_reading import read_dataclass
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.comparability import (
    SharedParameters,
    check_metric_splits,
    check_shared_data,
    compare_initial_parameters,
)
from transformer.studies.ablations.initial_gradients import InitialGradients, measure_depth_sweeps
from transformer.studies.ablations.run_plan import ConfigDifference, PlannedRun, arm_config_differences
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import to_json_values
from transformer.training.config import resolve_config

_FILE = "about.json"


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
    shared: SharedParameters | None


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
) -> StudyMetadata:
    """Check that all arms see the same data, and collect each arm's metadata.

    Args:
        spec: The ablation.
        base: The base config.
        planned: The planned runs.
        data_dir: The directory of the data; by default the config's.

    Returns:
        The metadata, without initial gradients.

    Raises:
        UserError: If arms see different data, data are missing, or a metric's split is never evaluated.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-arms-") as folder:
        tasks = check_shared_data(planned, Path(folder), data_dir)
        check_metric_splits(spec, tasks[spec.reference])
        parameter_comparisons = compare_initial_parameters(planned, spec.reference, tasks)
    differences = arm_config_differences(planned, spec.reference)
    return StudyMetadata(
        to_json_values(resolve_config(base).to_config()),
        {
            arm: ArmMetadata(tuple(differences[arm]), num_parameters, shared)
            for arm, (num_parameters, shared) in parameter_comparisons.items()
        },
    )


def read_metadata(path: Path) -> StudyMetadata | None:
    """Read the metadata in the directory of an ablation; None if there is none.

    Raises:
        UserError: If the file is not valid.
    """
    file = path / _FILE
    if not file.is_file():
        return None
    try:
        return read_dataclass(StudyMetadata, file)
    except UserError as error:
        raise UserError(f"{error}: remove it, and it is made anew") from error


def write_metadata(path: Path, metadata: StudyMetadata) -> None:
    """Write the metadata into the directory of an ablation."""
    write_json(path / _FILE, to_json_values(to_config(metadata)))


def measure_initial_gradients(
    spec: Ablation, base: Mapping[str, Any], metadata: StudyMetadata, data_dir: str | None = None
) -> StudyMetadata:
    """Add the gradient norms of the study's depth sweeps to its metadata, measuring them unless they are there already.

    Args:
        spec: The ablation.
        base: The base config.
        metadata: The metadata.
        data_dir: The directory of the data; by default the config's.
    """
    stacks = to_json_values(to_config(spec.initial_gradients))
    if not stacks:
        return dataclasses.replace(metadata, initial_gradients=None, stacks={})
    if metadata.stacks == stacks and metadata.initial_gradients:
        return metadata
    measured = measure_depth_sweeps(base, spec, data_dir)
    return dataclasses.replace(metadata, initial_gradients=measured, stacks=stacks)
