"""Compile the training step of every experiment for the pod that its config names, and record the results."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from launch.cli import run
from launch.command import Arguments, Command, flag
from launch.compile import format_mesh
from launch.config_files import config_files_under, load_config
from transformer.config import NonNegativeFloat, PositiveInt, Range, UserError
from transformer.costs.gpu_targets import GPU_TARGETS
from transformer.system.command_invocation import subprocess_command


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileExperimentsArguments(Arguments):
    """The arguments of `compile_experiments`."""

    results_file: str = flag("the JSON file of results", "experiments/pods/results/pods.json")
    compiler_python: str | None = flag(
        "the Python of an environment with jax's CUDA plugin, to compile for GPUs there, as in launch.compile"
    )
    filter: str | None = flag("compile only the configs whose name contains this; the other results stay")


COMMAND = Command(
    name="compile_experiments",
    package="experiments.pods",
    description=(
        "Compile the training step of every config in experiments/ for the pod that it names, one after the other, "
        "each in its own process. The results are written as JSON and as a page of tables, and differences from the "
        "previous results are printed. Exit code 1 if a step does not fit or cannot be compiled."
    ),
    example="--filter=gpt2",
    arguments=CompileExperimentsArguments,
)
CHECKOUT = Path(__file__).resolve().parents[2]
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
    """The versions of the compilers."""

    jax: str
    libtpu: str | None


@dataclasses.dataclass(frozen=True)
class PodRecord:
    """The record of one compiled config; everything but the seconds is reproducible on the same machine."""

    name: str
    topology: str
    mesh: Mapping[str, PositiveInt]
    rules: str
    num_microbatches: PositiveInt
    remat: str | None
    batch_size: PositiveInt
    parameters: Bytes
    fits: bool
    device_memory: Bytes | None
    peak_bytes: Bytes | None
    resident_bytes: Mapping[str, Bytes]
    temp_bytes: Bytes | None
    flops: NonNegativeFloat
    collectives: tuple[Mapping[str, Any], ...]
    step_seconds: NonNegativeFloat | None
    compute_seconds: NonNegativeFloat | None
    memory_seconds: NonNegativeFloat | None
    communication_seconds: NonNegativeFloat | None
    mfu: NonNegativeFloat | None
    communication_share: NonNegativeFloat | None
    exposed_share: NonNegativeFloat | None
    compile_seconds: NonNegativeFloat | None
    fingerprint: str | None
    versions: Versions
    commit: str | None


RECORDED_KEYS = tuple(field.name for field in dataclasses.fields(PodRecord) if field.name != "commit")
WEAK_SCALING_TEXT = """
## Weak scaling

The 1.3 billion parameters of GPT-3 XL on TPU v5p, eight rows of 2,048 tokens a chip, every parameter and its moments
divided over all chips ([weak_scaling.py](../configs/weak_scaling.py)). Communicating: the share of the step in which
links are busy; exposed: in which chips do nothing else. On 8 to 32 chips XLA multiplies shard by shard while shards
travel around, so that chips hardly wait. By our model every turn reads and writes its sums in main memory, which on 32
chips takes longer than the products: only a measurement can say whether chips are that slow.

"""
REPRODUCE_TEXT = """
## Reproduce

The figures are those of programs compiled for TPUs, or for GPUs where the topology names some. `make pods` compiles
them again. For GPUs, add `--compiler_python=PYTHON` to its command, with the Python of an environment [that compiles
for GPUs](../../../docs/getting_started/gpu.md#compile-for-gpus-that-you-dont-have).
"""
COMPARED_KEYS = ("mesh", "fits", "peak_bytes", "collectives", "fingerprint")


def main(arguments: CompileExperimentsArguments) -> None:
    """Compile all configs and record the results; exit with 1 if one does not fit."""
    if arguments.filter == "":
        raise UserError("--filter= is in every name: omit it to compile all configs, which takes hours")
    all_configs = list_configs(CHECKOUT / "experiments")
    selected = [name for name in all_configs if arguments.filter is None or arguments.filter in name]
    if not selected:
        raise UserError(f"--filter={arguments.filter} matches no config; there are {', '.join(all_configs)}")
    path = Path(arguments.results_file)
    records = {name: record for name, record in read_pod_records(path).items() if name in all_configs}
    failed = []
    for name in selected:
        report = compile_config(CHECKOUT, name, arguments.compiler_python)
        if isinstance(report, str):
            failed.append(name)
            print(f"{name}: {report}", flush=True)
            continue
        if not report["fits"]:
            failed.append(name)
        changed = describe_changes(records.get(name), report)
        print(f"{name}: {_format_line(report)}" + "".join(f"\n  {change}" for change in changed), flush=True)
        records[name] = report
        # At once, so that an error in the next loses nothing.
        write_pod_records(path, records)
    print(f"{len(selected) - len(failed)} of {len(selected)} fit" + (f"; not {', '.join(failed)}" if failed else ""))
    if failed:
        sys.exit(1)


def list_configs(folder: Path) -> list[str]:
    """List every config file with its arguments, as `--config` takes them."""
    names = [path.relative_to(folder.parent).as_posix() for path in config_files_under(folder)]
    return [f"{name}{argument}" for name in names for argument in _config_arguments(name)]


def _config_arguments(name: str) -> Sequence[str]:
    return tuple(f":{argument}" for argument in ARGUMENTS[name]) if name in ARGUMENTS else ("",)


def compile_config(root: Path, name: str, compiler_python: str | None = None) -> dict[str, Any] | str:
    """Compile a config of the checkout for its pod, in a process of `launch.compile`.

    Args:
        root: The root of the checkout.
        name: The path of the config file from there, with its argument after a colon if it has one.
        compiler_python: The Python that compiles for GPUs; None for this one.

    Returns:
        The report; if compiling failed or the config names no pod, the error in one line.
    """
    topology = load_config(str(root / name)).get("topology")
    if not topology:
        return "its config names no topology: set the key topology, such as topology='v5e:2x2'"
    is_gpu = topology.partition(":")[0] in GPU_TARGETS
    python = [f"--compiler_python={compiler_python}"] if is_gpu and compiler_python else []
    completed = subprocess.run(
        [*subprocess_command("compile"), f"--config={name}", *python, "--json"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if not completed.stdout.startswith("{"):
        return (completed.stderr.strip() or f"compile ended with {completed.returncode}").splitlines()[-1]
    report = json.loads(completed.stdout)
    from transformer.runs.run_directory import current_commit

    return {**{key: report[key] for key in RECORDED_KEYS}, "commit": current_commit()}


def describe_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """List the differences of a report from the previous record, in the keys that are compared.

    Args:
        before: The previous record; None if there is none, so that nothing is listed.
        after: The report.

    Returns:
        A line for each difference, with the previous versions of the libraries if they differ.
    """
    if before is None:
        return []
    versions = "" if before["versions"] == after["versions"] else f" (versions {before['versions']} before)"
    return [f"{key} was {before[key]}, is {after[key]}{versions}" for key in COMPARED_KEYS if before[key] != after[key]]


def read_pod_records(path: Path) -> dict[str, Any]:
    """Read the previous records by config name; empty if there are none.

    Raises:
        UserError: If the file is not one that `write_pod_records` writes.
    """
    from transformer.storage.json_reading import parse_dataclass, read_json_object

    if not path.exists():
        return {}
    records = read_json_object(path)
    for name, entry in records.items():
        parse_dataclass(PodRecord, entry, f"{path}: {name!r}")
    return records


def write_pod_records(path: Path, records: Mapping[str, Any]) -> None:
    """Write the records as JSON, and as a page of tables with the same name and the ending .md.

    Args:
        path: The JSON file.
        records: The records by config name.
    """
    ordered = {name: records[name] for name in sorted(records, key=_record_sort_key)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(render_page(ordered), encoding="utf-8")


def _record_sort_key(name: str) -> tuple[str, int]:
    """Return the sorting key of a record: by file, then in the order of its arguments."""
    file, _, argument = name.partition(":")
    return file, list(ARGUMENTS.get(file, ("",))).index(argument) if argument in ARGUMENTS.get(file, ("",)) else 0


def render_page(records: Mapping[str, Any]) -> str:
    """Return the page of tables: every config on its pod, and weak scaling."""
    weak = {name: entry for name, entry in records.items() if name.startswith(WEAK)}
    versions = {json.dumps(entry["versions"], sort_keys=True): entry["versions"] for entry in records.values()}
    version_text = "; ".join(
        f"jax {version['jax']}, libtpu {version['libtpu'] or 'not used'}" for version in versions.values()
    )
    commits = ", ".join(f"commit {commit}" for commit in dict.fromkeys(map(_short_commit, records.values())))
    page = f"""# Experiments on their pods

Written by `make pods` ([compile_experiments.py](../compile_experiments.py)): the training step of
every experiment, compiled for the topology that its config names, without its devices. GB needed is the peak of one
device, as the compiler gives it. Seconds are those of our own roofline
([roofline.py](../../../transformer/costs/roofline.py)): a bound from counted operations, bytes and links at their
published rates, and no measurement: no config has run on a TPU. Of a config that observes its heads now and then
(`head_statistics_every`), the step is one that doesn't; in rows of commits before 7f201e1a it is one that does, which
takes longer.

Compiled with {version_text}; each row at the commit of its last column: {commits}.

"""
    page += _format_table(
        "config, pod, parameters, mesh, microbatches, remat, GB needed, GB of a device, step, MFU, communication, "
        "compile time, commit",
        ((_link_config(name), *_format_cells(entry)) for name, entry in records.items() if name not in weak),
    )
    if weak:
        page += WEAK_SCALING_TEXT + _format_table(
            "pod, chips, batch size, GB per device, compute, memory, communication, step, communicating, exposed, MFU, "
            "commit",
            (_format_weak_scaling_cells(entry) for entry in weak.values()),
        )
    return page + REPRODUCE_TEXT


def _format_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    memory = "-" if entry["device_memory"] is None else f"{entry['device_memory'] / GB:,.1f}"
    return (
        entry["topology"],
        f"{entry['parameters']:,}",
        format_mesh(entry["mesh"]),
        str(entry["num_microbatches"]),
        entry["remat"] or "-",
        "-" if entry["peak_bytes"] is None else f"{entry['peak_bytes'] / GB:,.2f}",
        memory + ("" if entry["fits"] else ": does not fit"),
        _format_seconds(entry["step_seconds"]),
        _format_percent(entry["mfu"]),
        _format_percent(entry["communication_share"]),
        "-" if entry["compile_seconds"] is None else f"{entry['compile_seconds']:,.0f} s",
        _short_commit(entry),
    )


def _format_weak_scaling_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = (entry[f"{kind}_seconds"] for kind in ("compute", "memory", "communication", "step"))
    return (
        entry["topology"],
        str(math.prod(entry["mesh"].values())),
        f"{entry['batch_size']:,}",
        "-" if entry["peak_bytes"] is None else f"{entry['peak_bytes'] / GB:,.2f}",
        *map(_format_seconds, seconds),
        _format_percent(entry["communication_share"]),
        _format_percent(entry["exposed_share"]),
        _format_percent(entry["mfu"]),
        _short_commit(entry),
    )


def _short_commit(entry: Mapping[str, Any]) -> str:
    return (entry["commit"] or "unknown")[:8]


def _link_config(name: str) -> str:
    file, colon, argument = name.partition(":")
    inside = file.removeprefix("experiments/")
    return f"[{inside.removesuffix('.py')}](../../{inside}){colon}{argument}"


def _format_seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _format_line(entry: Mapping[str, Any]) -> str:
    needed = "" if entry["peak_bytes"] is None else f" {entry['peak_bytes'] / GB:,.2f} GB a device"
    verdict = "fits" if entry["fits"] else "DOES NOT FIT"
    return f"{verdict} {entry['topology']}:{needed}, step {_format_seconds(entry['step_seconds'])}"


def _format_table(head: str, rows: Iterable[Sequence[str]]) -> str:
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
