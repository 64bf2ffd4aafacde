"""What is known of an ablation beside its runs: how its arms differ and what they share, kept in its directory."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from transformer.config import Count, Range, RunConfig, UserError, from_config, to_config
from transformer.json_files import checked, read_object
from transformer.runs.run_directory import write_json
from transformer.storage.paths import storage_of
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.equal_conditions import check_metrics, check_shared_data, compare_initial_parameters
from transformer.studies.ablations.gradient_norms import measure_depth_sweeps
from transformer.studies.ablations.run_plan import PlannedRun, config_differences
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import json_values
from transformer.training.config import resolve_config

_FILE = "about.json"

GradientNorm = float | None
"""None where it was not finite."""


@dataclasses.dataclass(frozen=True)
class ConfigDifference:
    """A key of the config, its value in the reference, and in an arm."""

    key: str
    reference: Any
    arm: Any


@dataclasses.dataclass(frozen=True)
class SharedParameters:
    """How many arrays of parameters begin with the reference's values (`fairness.Beginning`)."""

    same: Count
    of: Count
    differing: tuple[str, ...]
    apart: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ArmMetadata:
    """What is known of an arm before it is trained."""

    differences: tuple[ConfigDifference, ...]
    parameters: Annotated[int, Range(0, 2**63)]
    shared: SharedParameters | None


@dataclasses.dataclass(frozen=True)
class ArmGradientNorms:
    """The norms of an arm's first gradient in each layer at one depth: mean, least and greatest over seeds."""

    arm: str
    depth: Count
    layers: tuple[GradientNorm, ...]
    low: tuple[GradientNorm, ...]
    high: tuple[GradientNorm, ...]


@dataclasses.dataclass(frozen=True)
class GradientRatio:
    """The norm of the last layer over that of the first, of an arm at one depth."""

    arm: str
    depth: Count
    last_over_first: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthExponent:
    """How the last layer's norm grows with the depth, of an arm."""

    arm: str
    value: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthSweepNorms:
    """What `transformer.studies.ablations.gradient_norms` measures of one stack."""

    name: str
    depths: tuple[Count, ...]
    arms: tuple[ArmGradientNorms, ...]
    ratio: tuple[GradientRatio, ...]
    exponent: tuple[DepthExponent, ...]


@dataclasses.dataclass(frozen=True)
class InitialGradients:
    """The measured stacks, and how they were measured."""

    stacks: tuple[DepthSweepNorms, ...]
    how: str


@dataclasses.dataclass(frozen=True)
class StudyMetadata:
    """What about.json holds: the resolved base config, its arms, and what was measured of the study's `stacks`."""

    base: Mapping[str, Any]
    arms: Mapping[str, ArmMetadata]
    initial_gradients: InitialGradients | None = None
    stacks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.base.get("name"), str):
            raise ValueError("base: it must be a config, with a name")


def study_identity(spec: Ablation, base: Mapping[str, Any]) -> dict[str, Any]:
    """What fixes which runs an ablation has, its seeds apart: for the ledger."""
    return {
        "ablation": json_values({"arms": spec.arms, "tuned": spec.tuned, "tasks": spec.tasks}),
        "base": json_values(base),
        "metric": spec.selection_metric,
        "direction": spec.direction.value,
    }


def check_seeds(spec: Ablation, ledger: TrialStore) -> None:
    """Refuse to leave out seeds that the directory has runs of.

    Raises:
        UserError: Naming them all.
    """
    trained = {from_config(RunConfig, trial.config).seed for trial in ledger.trials()}
    missing = sorted(trained - set(spec.seeds))
    if missing:
        every = ",".join(str(seed) for seed in sorted(trained | set(spec.seeds)))
        raise UserError(
            f"--workdir={ledger.path} has runs of seed {', '.join(map(str, missing))} too, and seeds that are left out "
            f"once they were seen bias the result: say --seeds={every}, or choose another --workdir"
        )


def check_arms(
    spec: Ablation, base: Mapping[str, Any], planned: Sequence[PlannedRun], data_dir: str | None = None
) -> dict[str, Any]:
    """Refuse arms that see other data than the reference; the differences and parameters of each arm.

    Raises:
        UserError: For arms whose data differ, data that are missing, and metrics of splits that nothing reports.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-arms-") as folder:
        tasks = check_shared_data(planned, Path(folder), data_dir)
        check_metrics(spec, tasks[spec.reference])
        begun = compare_initial_parameters(planned, spec.reference, tasks)
    changed = config_differences(planned, spec.reference)
    arms = {
        arm: {
            "differences": changed[arm],
            "parameters": beginning.parameters,
            "shared": {name: value for name, value in beginning._asdict().items() if name != "parameters"},
        }
        for arm, beginning in begun.items()
    }
    return json_values({"base": resolve_config(base).to_config(), "arms": arms})


def read_metadata(path: Path) -> dict[str, Any] | None:
    """What `write_metadata` recorded in the directory of an ablation; None where it has not.

    Raises:
        UserError: For a file that is not as `StudyMetadata` says.
    """
    file = path / _FILE
    if not file.is_file():
        return None
    try:
        about = read_object(file)
        checked(StudyMetadata, about, str(file))
    except UserError as error:
        raise UserError(f"{error}: remove it, and it is made anew") from error
    return about


def write_metadata(path: Path, about: Mapping[str, Any]) -> None:
    """Record `about` in the directory of an ablation."""
    write_json(path / _FILE, about)


def measure_initial_gradients(
    spec: Ablation, base: Mapping[str, Any], about: Mapping[str, Any], data_dir: str | None = None
) -> dict[str, Any]:
    """`about` with the gradients of the study's stacks at initialization, measured unless `about` holds them."""
    stacks = json_values(to_config(spec.initial_gradients))
    if not stacks:
        return {**about, "initial_gradients": None, "stacks": {}}
    if about.get("stacks") == stacks and about.get("initial_gradients"):
        return dict(about)
    return {**about, "initial_gradients": measure_depth_sweeps(base, spec, data_dir), "stacks": stacks}


def write_result(result: Mapping[str, Any], path: Path, page: str, table: str) -> dict[str, Path]:
    """The page, the numbers behind it as JSON, and its cells as CSV, by kind."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    contents = {"html": page, "json": f"{text}\n", "csv": table}
    files = {kind: path / f"ablation.{kind}" for kind in contents}
    for kind, content in contents.items():
        storage_of(path).replace(files[kind], content.encode())
    return files
