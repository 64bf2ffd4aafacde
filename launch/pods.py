"""The gate: every experiment's step, compiled for the pod that its config names, and recorded."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from launch.cli import run
from launch.command import Arguments, Command, Flag
from launch.compile import mesh_text
from launch.config_files import config_files_under, load_config
from transformer.config import Amount, Positive, Range, UserError
from transformer.installation import checkout, process_words

COMMAND = Command(
    name="pods",
    description=(
        "Compile the training step of every config in experiments/ for the pod that it names, one after the other, "
        "each in its own process. The results are written as JSON and as a page of tables, and differences from the "
        "previous results are printed. Exit code 1 if a step does not fit or cannot be compiled."
    ),
    example="--filter=gpt2",
    flags=(
        Flag("results_file", "the JSON file of results", default="experiments/pods/results/pods.json"),
        Flag("filter", "compile only the configs whose name contains this; the other results stay"),
    ),
)
GB = 1e9
WEAK = "experiments/pods/configs/weak_scaling.py"
# Configs whose get_config takes an argument, and those that are compiled.
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "experiments/translation/configs/wmt14.py": ("base", "big"),
    WEAK: ("v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8", "v5p:8x8x4"),
}
Bytes = Annotated[int, Range(0, 2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class Versions:
    """What compiled a record's program."""

    jax: str
    libtpu: str | None


@dataclasses.dataclass(frozen=True)
class PodRecord:
    """What is recorded of a config's proof: apart from the seconds, what a second run on the same machine repeats."""

    name: str
    topology: str
    mesh: Mapping[str, Positive]
    rules: str
    accumulate: Positive
    remat: str | None
    rows: Positive
    parameters: Bytes
    fits: bool
    memory: Bytes | None
    needed: Bytes | None
    held: Mapping[str, Bytes]
    temporaries: Bytes | None
    flops: Amount
    collectives: tuple[Mapping[str, Any], ...]
    step_seconds: Amount | None
    compute_seconds: Amount | None
    memory_seconds: Amount | None
    link_seconds: Amount | None
    utilization: Amount | None
    collective_share: Amount | None
    waiting_share: Amount | None
    compile_seconds: Amount | None
    fingerprint: str | None
    versions: Versions
    commit: str | None


KEPT = tuple(field.name for field in dataclasses.fields(PodRecord) if field.name != "commit")
WEAK_SCALING = """
## Weak scaling

The 1.3 billion parameters of GPT-3 XL on TPU v5p, eight rows of 2,048 tokens a chip, every parameter and its moments
divided over all chips ([weak_scaling.py](../pods/weak_scaling.py)). In collectives: the share of the step in which
links are busy; waited: in which chips do nothing else. On 8 to 32 chips XLA multiplies shard by shard while they travel
around, so that chips hardly wait. By our model every turn reads and writes its sums in main memory, which on 32 chips
takes longer than the products: only a measurement can say whether chips are that slow.

"""
WATCHED = ("mesh", "fits", "needed", "collectives", "fingerprint")


def main(arguments: Arguments) -> None:
    """Compile them all, record, and leave with 1 where one does not fit."""
    root = checkout()
    if root is None:
        raise UserError(
            "pods compiles the configs in experiments/ of a checkout, and this is none: clone the repository"
        )
    known = configs(root / "experiments")
    chosen = [name for name in known if not arguments.filter or arguments.filter in name]
    if not chosen:
        raise UserError(f"--filter={arguments.filter} is in no config's name; known: {', '.join(known)}")
    path = Path(arguments.results_file)
    records = recorded(path)
    failed = []
    for name in chosen:
        proof = proven(root, name)
        if isinstance(proof, str):
            failed.append(name)
            print(f"{name}: {proof}", flush=True)
            continue
        if not proof["fits"]:
            failed.append(name)
        changed = changes(records.get(name), proof)
        print(f"{name}: {_line(proof)}" + "".join(f"\n  {change}" for change in changed), flush=True)
        records[name] = proof
        # At once, so that an error in the next loses nothing.
        record(path, records)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} fit" + (f"; not {', '.join(failed)}" if failed else ""))
    if failed:
        sys.exit(1)


def configs(folder: Path) -> list[str]:
    """Every config file with its arguments, as `--config` takes them, by their path from the root."""
    names = [path.relative_to(folder.parent).as_posix() for path in config_files_under(folder)]
    return [f"{name}{argument}" for name in names for argument in _arguments(name)]


def _arguments(name: str) -> Sequence[str]:
    return tuple(f":{argument}" for argument in ARGUMENTS[name]) if name in ARGUMENTS else ("",)


def proven(root: Path, name: str) -> dict[str, Any] | str:
    """The proof of a config of the checkout by `launch.compile`, or its error as a line."""
    if not load_config(str(root / name)).get("pod"):
        return "its config names no pod: give it a key pod, such as pod='v5e:2x2'"
    done = subprocess.run(
        [*process_words("compile"), f"--config={name}", "--json"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        return (done.stderr.strip() or f"compile ended with {done.returncode}").splitlines()[-1]
    proof = json.loads(done.stdout)
    from transformer.runs.run_directory import current_commit

    return {**{key: proof[key] for key in KEPT}, "commit": current_commit()}


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """The differences from the old record, in keys that stay equal under the same versions."""
    if before is None:
        return []
    versions = "" if before["versions"] == after["versions"] else f" (versions {before['versions']} before)"
    return [f"{key} was {before[key]}, is {after[key]}{versions}" for key in WATCHED if before[key] != after[key]]


def recorded(path: Path) -> dict[str, Any]:
    """The record before, by the names of the configs; empty where there is none.

    Raises:
        UserError: for another file than `record` writes.
    """
    from transformer.json_files import checked, read_object

    if not path.exists():
        return {}
    records = read_object(path)
    for name, entry in records.items():
        checked(PodRecord, entry, f"{path}: {name!r}")
    return records


def record(path: Path, records: Mapping[str, Any]) -> None:
    """Write the record, and its tables beside it."""
    ordered = {name: records[name] for name in sorted(records, key=_order)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(tables(ordered), encoding="utf-8")


def _order(name: str) -> tuple[str, int]:
    """The order of records: by file, then in the order of its arguments."""
    file, _, argument = name.partition(":")
    return file, list(ARGUMENTS.get(file, ("",))).index(argument) if argument in ARGUMENTS.get(file, ("",)) else 0


def tables(records: Mapping[str, Any]) -> str:
    """The page: every config on its pod, and weak scaling."""
    weak = {name: entry for name, entry in records.items() if name.startswith(WEAK)}
    versions = {json.dumps(entry["versions"], sort_keys=True): entry["versions"] for entry in records.values()}
    said = "; ".join(f"jax {each['jax']}, libtpu {each['libtpu'] or 'not used'}" for each in versions.values())
    commits = ", ".join(
        f"commit {(each or 'unknown')[:7]}" for each in dict.fromkeys(entry["commit"] for entry in records.values())
    )
    page = f"""# Experiments on their pods

Written by `make pods` ([launch/pods.py](../../launch/pods.py)): every training step, compiled for the topology that its
config names, without its devices. Bytes are those of one device at their peak, as its compiler gives them. Seconds are
those of our own roofline ([roofline.py](../../transformer/costs/roofline.py)): a bound from counted operations, bytes
and links at their published rates, and no measurement: no config has run on a TPU. A step that observes its heads
now and then (`head_statistics_every`) counts as one that does: GPT-2's and BERT's are quicker than they look.

Compiled with {said}; {commits}.

"""
    page += _table(
        "config, pod, parameters, mesh, micro-batches, remat, GB of, a device, step, utilization, in collectives, "
        "compiled in",
        ((_short(name), *_cells(entry)) for name, entry in records.items() if name not in weak),
    )
    if weak:
        page += WEAK_SCALING + _table(
            "pod, chips, rows, GB a device, compute, memory, links, step, in collectives, waited, utilization",
            (_scaled(entry) for entry in weak.values()),
        )
    return page


def _cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    memory = "-" if entry["memory"] is None else f"{entry['memory'] / GB:,.1f}"
    return (
        entry["topology"],
        f"{entry['parameters']:,}",
        mesh_text(entry["mesh"]),
        str(entry["accumulate"]),
        entry["remat"] or "-",
        "-" if entry["needed"] is None else f"{entry['needed'] / GB:,.2f}",
        memory + ("" if entry["fits"] else ": does not fit"),
        _seconds(entry["step_seconds"]),
        _percent(entry["utilization"]),
        _percent(entry["collective_share"]),
        "-" if entry["compile_seconds"] is None else f"{entry['compile_seconds']:,.0f} s",
    )


def _scaled(entry: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = (entry[f"{kind}_seconds"] for kind in ("compute", "memory", "link", "step"))
    return (
        entry["topology"],
        str(math.prod(entry["mesh"].values())),
        f"{entry['rows']:,}",
        "-" if entry["needed"] is None else f"{entry['needed'] / GB:,.2f}",
        *map(_seconds, seconds),
        _percent(entry["collective_share"]),
        _percent(entry["waiting_share"]),
        _percent(entry["utilization"]),
    )


def _short(name: str) -> str:
    file, colon, argument = name.partition(":")
    inside = file.removeprefix("experiments/")
    return f"[{inside.removesuffix('.py')}](../../{inside}){colon}{argument}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _line(entry: Mapping[str, Any]) -> str:
    needed = "" if entry["needed"] is None else f" {entry['needed'] / GB:,.2f} GB a device"
    verdict = "fits" if entry["fits"] else "DOES NOT FIT"
    return f"{verdict} {entry['topology']}:{needed}, step {_seconds(entry['step_seconds'])}"


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
