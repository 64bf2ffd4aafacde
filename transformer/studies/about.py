"""What is known of an ablation beside its runs: how its arms differ and what they share, kept in its directory."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError, to_config
from transformer.runs.directory import write_json
from transformer.storage import storage_of
from transformer.studies.ablation import Ablation
from transformer.studies.arms import Planned, differences
from transformer.studies.fairness import beginnings, check_metrics, check_shared_data
from transformer.studies.initial_gradients import initial_gradients
from transformer.studies.ledger import Ledger
from transformer.studies.trials import plain
from transformer.training.experiment import resolve

_FILE = "about.json"


def facts(spec: Ablation, base: Mapping[str, Any]) -> dict[str, Any]:
    """What fixes which runs an ablation has, its seeds apart: for the ledger."""
    return {
        "ablation": plain({"arms": spec.arms, "tuned": spec.tuned, "tasks": spec.tasks}),
        "base": plain(base),
        "metric": spec.chosen_by,
        "better": spec.better.value,
    }


def check_seeds(spec: Ablation, ledger: Ledger) -> None:
    """Refuse to leave out seeds that the directory has runs of.

    Errors: UserError naming them all.
    """
    trained = {trial.config["seed"] for trial in ledger.trials()}
    missing = sorted(trained - set(spec.seeds))
    if missing:
        every = ",".join(str(seed) for seed in sorted(trained | set(spec.seeds)))
        raise UserError(
            f"--workdir={ledger.path} has runs of seed {', '.join(map(str, missing))} too, and seeds that are left out "
            f"once they were seen bias the result: say --seeds={every}, or choose another --workdir"
        )


def check_arms(
    spec: Ablation, base: Mapping[str, Any], planned: Sequence[Planned], data_dir: str | None = None
) -> dict[str, Any]:
    """Refuse arms that see other data than the reference; the differences and parameters of each arm.

    Errors: UserError for arms whose data differ, data that are missing, and metrics of splits that nothing reports.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-arms-") as folder:
        tasks = check_shared_data(planned, Path(folder), data_dir)
        check_metrics(spec, tasks[spec.reference])
        begun = beginnings(planned, spec.reference, tasks)
    changed = differences(planned, spec.reference)
    arms = {
        arm: {
            "differences": changed[arm],
            "parameters": beginning.parameters,
            "shared": {name: value for name, value in beginning._asdict().items() if name != "parameters"},
        }
        for arm, beginning in begun.items()
    }
    return plain({"base": resolve(base).to_config(), "arms": arms})


def read_about(path: Path) -> dict[str, Any] | None:
    """What `write_about` recorded in the directory of an ablation; None where it has not.

    Errors: UserError for a file that is no JSON object.
    """
    file = path / _FILE
    if not file.is_file():
        return None
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        return {"base": about["base"], "arms": about["arms"], **about}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is not what an ablation writes ({error!r}): remove it, and it is made anew") from error


def write_about(path: Path, about: Mapping[str, Any]) -> None:
    """Record `about` in the directory of an ablation."""
    write_json(path / _FILE, about)


def measure_initial_gradients(
    spec: Ablation, base: Mapping[str, Any], about: Mapping[str, Any], data_dir: str | None = None
) -> dict[str, Any]:
    """`about` with the gradients of the study's stacks at initialisation, measured unless `about` holds them."""
    stacks = plain(to_config(spec.initial_gradients))
    if not stacks:
        return {**about, "initial_gradients": None, "stacks": {}}
    if about.get("stacks") == stacks and about.get("initial_gradients"):
        return dict(about)
    return {**about, "initial_gradients": initial_gradients(base, spec, data_dir), "stacks": stacks}


def write_result(result: Mapping[str, Any], path: Path, page: str, table: str) -> dict[str, Path]:
    """The page, the numbers behind it as JSON, and its cells as CSV, by kind."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    contents = {"html": page, "json": f"{text}\n", "csv": table}
    files = {kind: path / f"ablation.{kind}" for kind in contents}
    for kind, content in contents.items():
        storage_of(path).replace(files[kind], content.encode())
    return files
