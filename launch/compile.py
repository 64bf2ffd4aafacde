"""Compile a config's training step for a TPU, GPU or CPU topology that this machine need not have."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Command, ConfigArguments, flag
from launch.text_table import align_columns
from transformer.config import UserError
from transformer.system.command_invocation import PACKAGE_PARENT, subprocess_command
from transformer.system.terminal import format_size

if TYPE_CHECKING:
    from transformer.aot.aot_compile import AotReport
    from transformer.aot.mesh_and_remat_search import CompiledCandidate, Suggestion
    from transformer.attention.backends import BackendChoice
    from transformer.costs.compiled_program import CompiledProgram
    from transformer.training.config import ExperimentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileArguments(ConfigArguments):
    """The arguments of `compile`."""

    topology: str | None = flag(
        "v4:, v5e:, v5p: or v6e: with the shape of a slice; a100:, h100:, h200: or b200: with a number of GPUs or "
        "hosts x GPUs; cpu:N or gpu:N (default: the config's topology)"
    )
    compiler_python: str | None = flag(
        "the Python of an environment that has jax's CUDA plugin and the requirements of this package, to compile "
        "for GPUs there"
    )
    search_mesh: bool = flag("try meshes and rematerialization, and print those that fit best", False)
    sharding: bool = flag(
        "print the shape, the logical axes and the PartitionSpec of every parameter, and its bytes per device, and "
        "compile nothing; without a topology on the config's mesh",
        False,
        excludes=("search_mesh",),
        because="it compiles nothing",
    )
    max_candidates: int = flag("with --search_mesh, the maximum number of programs to compile", 6)
    json: bool = flag("print one JSON object", False)


def _prepare_compiler(arguments: CompileArguments) -> None:
    """Set the environment for compiling, which needs another platform than a run on this machine."""
    if arguments.compiler_python:
        sys.exit(_compile_with_python(arguments.compiler_python, arguments.omit_flags("compiler_python")))
    if arguments.topology and "topology" in arguments.overrides:
        raise UserError(f"--topology={arguments.topology} is used instead of config.topology: leave one of them out")
    topology = arguments.topology or arguments.config_topology
    if not topology:
        return
    from transformer.costs.topologies import compile_environment_variables

    os.environ.update(compile_environment_variables(topology))


_USABILITY_CHECK = (
    "import sys, importlib.util as util; "
    "sys.exit(sys.version_info < (3, 12) or not all(map(util.find_spec, ('jax', 'optax', 'ml_collections'))))"
)


def _compile_with_python(python: str, words: Sequence[str]) -> int:
    """Run this command with the Python of another environment on the same code, and return its exit code."""
    if not os.access(python, os.X_OK) or os.path.isdir(python):
        raise UserError(f"--compiler_python={python} is no program: give the path of an environment's python")
    try:
        usable = subprocess.run([python, "-c", _USABILITY_CHECK], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise UserError(f"--compiler_python={python} cannot be run: {error.strerror}") from error
    if not usable:
        raise UserError(
            f"--compiler_python={python} has no Python 3.12 or newer with jax and this package's requirements: make an "
            "environment, and install requirements/gpu.txt there"
        )
    path = os.pathsep.join(filter(None, (str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([*subprocess_command("compile", python), *words], env=environment, check=False).returncode


COMMAND = Command(
    name="compile",
    description=(
        "Compile the training step of a config ahead of time for a topology that you need not have, without data or "
        "arrays: bytes per device against its memory, collectives, and the step time by our roofline model. Exit code "
        "0: it fits; 1: it does not, with the largest arrays and advice; 2: the config or the topology is invalid."
    ),
    example="--config=experiments/pods/configs/gpt3.py --topology=v5p:8x8x16",
    arguments=CompileArguments,
    before_jax=_prepare_compiler,
)
GB = 1e9
SHOWN = 6
SHOWN_LINES = 5


def main(arguments: CompileArguments) -> None:
    """Compile and print; exit with 1 if the step does not fit."""
    if arguments.max_candidates < 1:
        raise UserError(f"--max_candidates={arguments.max_candidates} must be at least 1")
    from transformer.aot.aot_compile import compile_ahead_of_time, resolve_topology
    from transformer.training.config import resolve_config

    experiment = resolve_config(arguments.config)
    if arguments.sharding:
        print(format_shardings(experiment, arguments.topology or experiment.run.topology, as_json=arguments.json))
        return
    topology = resolve_topology(experiment, arguments.topology)
    if arguments.search_mesh:
        candidates = _search_meshes(experiment, topology, arguments.max_candidates)
        print(
            json.dumps([report_as_json(candidate.report) for candidate in candidates], indent=1)
            if arguments.json
            else format_search_table(candidates)
        )
        fits = any(candidate.report.fits for candidate in candidates)
    else:

        def print_compiling() -> None:
            print(f"compiling for {topology}: minutes for a large model", file=sys.stderr, flush=True)

        report = compile_ahead_of_time(experiment, topology, print_compiling)
        print(json.dumps(report_as_json(report), indent=1) if arguments.json else format_report(report))
        fits = report.fits
    if not fits:
        sys.exit(1)


def format_shardings(experiment: "ExperimentConfig", topology: str, *, as_json: bool = False) -> str:
    """Return a table of where every parameter lies on the mesh, or a JSON object.

    Args:
        experiment: The experiment.
        topology: The name of the topology; "" for as many devices as the config's mesh names.
        as_json: Whether to return JSON.
    """
    from transformer.costs.topologies import topology_size
    from transformer.training.parameter_sharding import list_parameter_shardings

    num_devices = topology_size(topology).num_devices if topology else None
    mesh, parameters = list_parameter_shardings(experiment, num_devices)
    total, on_device = (
        sum(getattr(parameter, name) for parameter in parameters) for name in ("num_bytes", "bytes_per_device")
    )
    if as_json:
        entries = [
            {
                **parameter._asdict(),
                "spec": [list(axes) if isinstance(axes, tuple) else axes for axes in parameter.spec],
            }
            for parameter in parameters
        ]
        plain = {"mesh": mesh, "rules": experiment.sharding.rules, "bytes": total, "bytes_per_device": on_device}
        return json.dumps({**plain, "parameters": entries}, indent=1)
    columns = ("parameter", "shape", "logical axes", "PartitionSpec", "bytes per device")
    rows = [dict(zip(columns, columns, strict=True))]
    for parameter in parameters:
        axes = ", ".join(str(name) for name in parameter.axes)
        spec = ", ".join("+".join(axes) if isinstance(axes, tuple) else str(axes) for axes in parameter.spec)
        cells = (parameter.path, str(parameter.shape), f"({axes})", f"({spec})", f"{parameter.bytes_per_device:,}")
        rows.append(dict(zip(columns, cells, strict=True)))
    summary = (
        f"{experiment.run.name} on {format_mesh(mesh)}, rules {experiment.sharding.rules}: {format_size(total, 4)} of "
        f"parameters, {format_size(on_device, 4)} per device"
    )
    return f"{summary}\n{align_columns(rows, columns[:-1])}"


def _search_meshes(experiment: "ExperimentConfig", topology: str, tries: int) -> list["CompiledCandidate"]:
    from transformer.aot.mesh_and_remat_search import search_meshes

    candidates = []
    for candidate in search_meshes(experiment, topology, tries):
        print(
            f"compiled {' '.join(candidate.candidate.flags)}: {_format_verdict(candidate.report)}",
            file=sys.stderr,
            flush=True,
        )
        candidates.append(candidate)
    return candidates


def report_as_json(report: "AotReport") -> dict[str, Any]:
    """Return a report as plain values: bytes of one device, seconds, FLOPs of all devices."""
    import jax

    from transformer.aot.mesh_and_remat_search import suggest_smaller_step
    from transformer.costs.compiled_program import collective_totals

    program, expected, experiment = report.program, report.step_estimate, report.experiment
    return {
        "name": experiment.run.name,
        "topology": report.topology,
        "device": report.device_kind,
        "mesh": {axis: size for axis, size in report.mesh_shape.items() if size > 1},
        "rules": experiment.sharding.rules,
        "num_microbatches": experiment.run.num_microbatches,
        "remat": _remat_name(experiment),
        "batch_size": report.batch_size,
        "parameters": report.num_parameters,
        "fits": report.fits,
        "device_memory": report.device_memory_bytes,
        "peak_bytes": report.peak_bytes,
        "resident_bytes": dict(report.resident_bytes),
        "temp_bytes": None if program is None else program.temp_bytes,
        "code_bytes": None if program is None else program.code_bytes,
        "flops": report.flops,
        "float32_flops": None if program is None else program.float32_flops,
        "bytes_moved": None if program is None else program.bytes_moved,
        "source_lines": []
        if program is None
        else [
            {"line": source_line.line, "bytes": source_line.num_bytes, "source": source_line.source}
            for source_line in program.source_lines[:SHOWN_LINES]
        ],
        "attention": [
            {"backend": choice.backend.value, "call": _describe_call(choice), "reason": _explain_backend(choice)}
            for choice in report.attention
        ],
        "attention_kernels": {} if program is None else dict(program.attention_kernels),
        "collectives": []
        if program is None
        else [
            {"kind": kind, "axes": list(axes), "executions": total.num_executions, "bytes": total.num_bytes}
            for (kind, axes), total in collective_totals(program.collectives).items()
        ],
        "loops_without_trip_count": [] if program is None else list(program.loops_without_trip_count),
        "step_seconds": None if expected is None else expected.step_seconds,
        "compute_seconds": None if expected is None else expected.compute_seconds,
        "memory_seconds": None if expected is None else expected.memory_seconds,
        "communication_seconds": None if expected is None else expected.communication_seconds,
        "mfu": None if expected is None else expected.mfu,
        "communication_share": None if expected is None else expected.communication_share,
        "exposed_share": None if expected is None else expected.exposed_share,
        "compile_seconds": None if program is None else round(report.compile_seconds, 1),
        "fingerprint": None if program is None else program.fingerprint,
        "largest_arrays": [
            {"bytes": array.num_bytes, "shape": array.shape, "source": array.source}
            for array in report.largest_arrays[:SHOWN]
        ],
        "suggestions": [
            {"flags": list(suggestion.flags), "reason": suggestion.reason}
            for suggestion in suggest_smaller_step(report)
        ],
        "versions": {"jax": jax.__version__, "libtpu": _libtpu_version() if report.topology[0] == "v" else None},
    }


def _libtpu_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("libtpu")
    except PackageNotFoundError:
        return None


def _remat_name(experiment: "ExperimentConfig") -> str | None:
    return getattr(getattr(experiment.model, "remat", None), "value", None)


def format_report(report: "AotReport") -> str:
    """Format a report as text."""
    from transformer.aot.mesh_and_remat_search import suggest_smaller_step

    experiment = report.experiment
    parts = experiment.run.num_microbatches
    lines = [
        f"{experiment.run.name} on {report.topology} ({report.device_kind}): {_format_verdict(report)}",
        f"  parameters    {report.num_parameters:,}",
        f"  mesh          {format_mesh(report.mesh_shape)}, rules {experiment.sharding.rules}",
        f"  batch         {report.batch_size:,} rows in {parts} microbatch{'es' if parts > 1 else ''}, remat "
        f"{_remat_name(experiment)}",
        *_format_bytes(report),
        *_format_attention(report),
        *_format_speed(report),
    ]
    if report.program is not None:
        lines += [f"  compiled in   {report.compile_seconds:.1f} s, program {report.program.fingerprint}"]
    if not report.fits:
        lines += ["largest arrays, bytes per device:"]
        lines += [
            f"  {format_size(array.num_bytes, 4):>10}  {array.shape}  {array.source}"
            for array in report.largest_arrays[:SHOWN]
        ]
        lines += ["suggestions:", *_format_suggestions(suggest_smaller_step(report))]
    return "\n".join(lines)


def _format_verdict(report: "AotReport") -> str:
    if report.device_memory_bytes is None:
        return f"needs {format_size(report.peak_bytes or 0, 4)} per device, whose memory is unknown"
    capacity = f"of {format_size(report.device_memory_bytes, 4)} per device"
    if report.peak_bytes is None:
        return f"does not fit, by the compiler, {capacity}"
    return f"{'fits' if report.fits else 'does not fit'}: {format_size(report.peak_bytes, 4)} {capacity}"


def _format_bytes(report: "AotReport") -> list[str]:
    kinds = {kind: size for kind, size in report.resident_bytes.items() if size}
    program = report.program
    if program is not None:
        # The innermost sizes are padded to whole tiles.
        kinds["tile padding"] = max(program.argument_bytes - sum(report.resident_bytes.values()), 0)
        kinds["activations and temporaries"] = program.temp_bytes
        kinds["outputs, program"] = program.output_bytes - program.aliased_bytes + program.code_bytes
    elif report.peak_bytes is not None:
        kinds["activations and temporaries"] = report.peak_bytes - sum(report.resident_bytes.values())
    lines = ["  bytes per device:"]
    for kind, size in kinds.items():
        share = "" if report.device_memory_bytes is None else f"{100 * size / report.device_memory_bytes:7.1f}%"
        lines.append(f"    {kind:<28}{format_size(size, 4):>12} {share}")
    return lines


def _format_attention(report: "AotReport") -> list[str]:
    lines = []
    for choice in report.attention:
        reason = _explain_backend(choice)
        lines.append(
            f"  attention     {choice.backend.value}: {_describe_call(choice)}{f'; {reason}' if reason else ''}"
        )
    kernels = {} if report.program is None else report.program.attention_kernels
    if kernels:
        lines.append(
            "  kernels       " + ", ".join(f"{name} {count:,} x" for name, count in kernels.items()) + " per step"
        )
    return lines


def _describe_call(choice: "BackendChoice") -> str:
    shape = choice.shape
    sizes = f"[B {shape.batch}, H {shape.heads}, Q {shape.queries}, K {shape.keys}, D {shape.depth}]"
    return f"{shape.dtype} {sizes}, {choice.variant}"


def _explain_backend(choice: "BackendChoice") -> str | None:
    """Say why the call does not run on the kernel of the platform's library; None if it does or there is none."""
    from transformer.attention.attention_spec import Backend

    kernel = {"gpu": Backend.CUDNN, "tpu": Backend.SPLASH}.get(choice.shape.platform)
    if kernel in (None, choice.backend):
        return None
    reason = choice.reason_against(kernel)
    if reason is None and choice.shape.num_devices > 1:
        return f"backend={kernel.value} does not divide itself over a mesh"
    return reason


def _format_source_lines(program: "CompiledProgram") -> list[str]:
    lines = [f"  memory traffic {format_size(program.bytes_moved, 4)} per step and device, most of it from:"]
    for source_line in program.source_lines[:SHOWN_LINES]:
        share = 100 * source_line.num_bytes / max(program.bytes_moved, 1)
        operation = source_line.source.rsplit("/", 1)[-1]
        place = source_line.line or "(inserted by the compiler)"
        lines.append(f"    {format_size(source_line.num_bytes, 4):>12} {share:5.1f}%  {place}  {operation}".rstrip())
    return lines


def _format_links(report: "AotReport") -> list[str]:
    """Say by which rates the collectives of GPUs are priced, of which the network between hosts is a choice."""
    chip = None if report.step_estimate is None else report.step_estimate.chip
    if chip is None or chip.wraparound_multiple or math.prod(report.mesh_shape.values()) == 1:
        return []
    within_host = chip.link_bandwidth * chip.num_links / GB
    between_hosts = (
        "unknown" if chip.network_bandwidth is None else f"{chip.network_bandwidth / GB:.0f} GB/s, as in a DGX"
    )
    return [f"  links         {within_host:.0f} GB/s per GPU each way within a host, between hosts {between_hosts}"]


def _format_speed(report: "AotReport") -> list[str]:
    from transformer.costs.compiled_program import collective_totals

    lines = [] if report.flops is None else [f"  FLOPs         {report.flops:.3e} per step, of all devices"]
    if report.program is None:
        return lines
    lines += [*_format_source_lines(report.program), *_format_links(report)]
    lines += ["  collectives per step, bytes per device:"]
    expected = report.step_estimate
    for key, total in collective_totals(report.program.collectives).items():
        kind, axes = key
        seconds = "" if expected is None else f"  {expected.seconds_by_collective.get(key, 0.0):.4g} s"
        label = f"    {kind:<20}{'+'.join(axes) or '-':<16}"
        lines.append(f"{label}{total.num_executions:8,} x, {format_size(total.num_bytes, 4):>10} in all{seconds}")
    if report.program.loops_without_trip_count:
        loops = ", ".join(report.program.loops_without_trip_count)
        lines.append(f"    loops without a known trip count, counted once: {loops}")
    if expected is not None:
        if report.program.float32_flops:
            lines.append(f"  float32       {report.program.float32_flops:.3e} FLOPs per device of float32 operands")
        if expected.recomputed_flops:
            lines.append(
                f"  recomputed    {expected.recomputed_flops:.3e} FLOPs by remat: in the step time, not in the MFU"
            )
        lines += [
            f"  step time     at least {expected.step_seconds:.4g} s, by the roofline: compute "
            f"{expected.compute_seconds:.4g} s, memory {expected.memory_seconds:.4g} s, communication "
            f"{expected.communication_seconds:.4g} s, which overlap",
            f"  MFU           at most {100 * expected.mfu:.1f}%",
            f"  communication {100 * expected.communication_share:.1f}% of the step, which waits for it "
            f"{100 * expected.exposed_share:.1f}% of its time",
        ]
    return lines


def _format_suggestions(suggestions: Sequence["Suggestion"]) -> list[str]:
    lines = []
    for suggestion in suggestions:
        if suggestion.flags:
            lines.append(f"  {' '.join(suggestion.flags)}")
        lines += textwrap.wrap(suggestion.reason, 110, initial_indent="    ", subsequent_indent="    ")
    return lines or ["  none"]


def format_search_table(candidates: Sequence["CompiledCandidate"]) -> str:
    """Return the table of a search, the fastest that fits first, and the flags that select it."""
    unlimited = float("inf")

    def order(compiled: "CompiledCandidate") -> tuple[bool, float]:
        expected = compiled.report.step_estimate
        return not compiled.report.fits, unlimited if expected is None else expected.step_seconds

    columns = ("mesh", "remat", "per device", "step", "MFU", "communication", "")
    rows = [dict(zip(columns, columns, strict=True))]
    for compiled in sorted(candidates, key=order):
        report, expected = compiled.report, compiled.report.step_estimate
        speed = ("-", "-", "-")
        if expected is not None:
            speed = (
                f"{expected.step_seconds:.4g} s",
                f"{100 * expected.mfu:.1f}%",
                f"{100 * expected.communication_share:.1f}%",
            )
        needed = "-" if report.peak_bytes is None else format_size(report.peak_bytes, 4)
        fits = "fits" if report.fits else "does not fit"
        cells = (format_mesh(report.mesh_shape), compiled.candidate.remat.value, needed, *speed, fits)
        rows.append(dict(zip(columns, cells, strict=True)))
    lines = [align_columns(rows, columns)]
    best = min(candidates, key=order, default=None)
    if best is not None and best.report.fits:
        lines += ["", "best: " + " ".join(best.candidate.flags)]
    else:
        lines += [
            "",
            "none fits: raise --max_candidates or config.num_microbatches, or take a larger topology",
        ]
    return "\n".join(lines)


def format_mesh(mesh: Mapping[str, int]) -> str:
    """Return the axes of a mesh that are larger than one."""
    return " x ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
