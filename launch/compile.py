"""Prove that a config fits its pod, before the pod is booked."""

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Arguments, Command, Flag
from transformer.config import UserError

if TYPE_CHECKING:
    from transformer.costs.pods.aot import Proof
    from transformer.costs.pods.mesh_search import Suggestion, Tried
    from transformer.training.config import Experiment


def _prepare_compiler(arguments: Arguments) -> None:
    """Set the environment for compiling, which needs another platform than a run on this machine."""
    topology = arguments.topology or arguments.overrides.get("pod") or arguments.base.get("pod")
    if not topology:
        return
    from transformer.costs.compiler import environment

    os.environ.update(environment(topology))


COMMAND = Command(
    name="compile",
    description=(
        "Compile the training step of a config ahead of time for a topology that you need not have, without data or "
        "arrays: bytes per device against its memory, collectives, and the step time by our roofline model. Exit code "
        "0: it fits; 1: it does not, with the largest arrays and advice; 2: the config or the topology is invalid."
    ),
    example="--config=experiments/pods/configs/gpt3.py --topology=v5p:8x8x16",
    flags=(
        Flag(
            "topology", "v4:, v5e:, v5p: or v6e: with the shape of a slice, cpu:N or gpu:N (default: the config's pod)"
        ),
        Flag("search_mesh", "try meshes and rematerialization, and print those that fit best", False, bool),
        Flag("max_candidates", "with --search_mesh, the maximum number of programs to compile", default=6, kind=int),
        Flag("json", "print one JSON object", default=False, kind=bool),
    ),
    takes_config=True,
    before_jax=_prepare_compiler,
)
GB = 1e9
SHOWN = 6


def main(arguments: Arguments) -> None:
    """Compile, print, and leave with 1 where it does not fit."""
    if arguments.max_candidates < 1:
        raise UserError(f"--max_candidates={arguments.max_candidates} must be at least 1")
    from transformer.costs.pods.aot import prove, topology_of
    from transformer.training.config import resolve

    experiment = resolve(arguments.config)
    topology = topology_of(experiment, arguments.topology)
    if arguments.search_mesh:
        tried = _search(experiment, topology, arguments.max_candidates)
        print(json.dumps([entry(each.proof) for each in tried], indent=1) if arguments.json else searched(tried))
        fits = any(each.proof.fits for each in tried)
    else:
        proof = prove(experiment, topology)
        print(json.dumps(entry(proof), indent=1) if arguments.json else page(proof))
        fits = proof.fits
    if not fits:
        sys.exit(1)


def _search(experiment: Any, topology: str, tries: int) -> list["Tried"]:
    from transformer.costs.pods.mesh_search import search

    results = []
    for tried in search(experiment, topology, tries):
        print(f"compiled {' '.join(tried.candidate.flags)}: {_verdict(tried.proof)}", file=sys.stderr, flush=True)
        results.append(tried)
    return results


def entry(proof: "Proof") -> dict[str, Any]:
    """A proof as plain values: bytes of one device, seconds, operations of all devices."""
    import jax

    from transformer.costs.pods.mesh_search import advise
    from transformer.costs.program import totals

    program, expected, experiment = proof.program, proof.estimate, proof.experiment
    return {
        "name": experiment.run.name,
        "topology": proof.topology,
        "device": proof.device,
        "mesh": {axis: size for axis, size in proof.mesh.items() if size > 1},
        "rules": experiment.sharding.rules,
        "accumulate": experiment.run.num_microbatches,
        "remat": _remat(experiment),
        "rows": proof.rows,
        "parameters": proof.parameters,
        "fits": proof.fits,
        "memory": proof.memory,
        "needed": proof.needed,
        "held": dict(proof.held),
        "temporaries": None if program is None else program.temporaries,
        "code": None if program is None else program.code,
        "flops": proof.flops,
        "collectives": []
        if program is None
        else [
            {"kind": kind, "axes": list(axes), "times": total.times, "bytes": total.bytes}
            for (kind, axes), total in totals(program.collectives).items()
        ],
        "loops_without_count": [] if program is None else list(program.endless),
        "step_seconds": None if expected is None else expected.step,
        "compute_seconds": None if expected is None else expected.compute,
        "memory_seconds": None if expected is None else expected.memory,
        "link_seconds": None if expected is None else expected.links,
        "utilization": None if expected is None else expected.utilization,
        "collective_share": None if expected is None else expected.collective_share,
        "waiting_share": None if expected is None else expected.waiting_share,
        "compile_seconds": None if program is None else round(proof.seconds, 1),
        "fingerprint": None if program is None else program.fingerprint,
        "largest": [each._asdict() for each in proof.buffers[:SHOWN]],
        "suggestions": [{"flags": list(each.flags), "reason": each.reason} for each in advise(proof)],
        "versions": {"jax": jax.__version__, "libtpu": _libtpu() if proof.topology[0] == "v" else None},
    }


def _libtpu() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("libtpu")
    except PackageNotFoundError:
        return None


def _remat(experiment: "Experiment") -> str | None:
    return getattr(getattr(experiment.model, "remat", None), "value", None)


def page(proof: "Proof") -> str:
    """A proof as text."""
    from transformer.costs.pods.mesh_search import advise

    experiment = proof.experiment
    lines = [
        f"{experiment.run.name} on {proof.topology} ({proof.device}): {_verdict(proof)}",
        f"  parameters    {proof.parameters:,}",
        f"  mesh          {mesh_text(proof.mesh)}, rules {experiment.sharding.rules}",
        f"  batch         {proof.rows:,} rows in {experiment.run.num_microbatches} microbatches, remat "
        f"{_remat(experiment)}",
        *_bytes(proof),
        *_speed(proof),
    ]
    if proof.program is not None:
        lines += [f"  compiled in   {proof.seconds:.1f} s, program {proof.program.fingerprint}"]
    if not proof.fits:
        lines += ["largest arrays, bytes a device:"]
        lines += [f"  {each.bytes / GB:9.3f} GB  {each.shape}  {each.source}" for each in proof.buffers[:SHOWN]]
        lines += ["what would help:", *_advice(advise(proof))]
    return "\n".join(lines)


def _verdict(proof: "Proof") -> str:
    if proof.memory is None:
        return f"needs {(proof.needed or 0) / GB:,.2f} GB a device, whose memory is not known"
    of = f"of {proof.memory / GB:,.2f} GB a device"
    if proof.needed is None:
        return f"does not fit: the compiler refused it, {of}"
    return f"{'fits' if proof.fits else 'does not fit'}: {proof.needed / GB:,.2f} {of}"


def _bytes(proof: "Proof") -> list[str]:
    kinds = {kind: size for kind, size in proof.held.items() if size}
    program = proof.program
    if program is not None:
        # Padding of the arrays: innermost sizes are filled up to whole tiles.
        kinds["filling of tiles"] = max(program.arguments - sum(proof.held.values()), 0)
        kinds["activations and temporaries"] = program.temporaries
        kinds["outputs, program"] = program.outputs - program.aliased + program.code
    elif proof.needed is not None:
        kinds["activations and temporaries"] = proof.needed - sum(proof.held.values())
    lines = ["  bytes a device:"]
    for kind, size in kinds.items():
        share = "" if proof.memory is None else f"{100 * size / proof.memory:6.1f} %"
        lines.append(f"    {kind:<28}{size / GB:10.4f} GB {share}")
    return lines


def _speed(proof: "Proof") -> list[str]:
    from transformer.costs.program import totals

    lines = [] if proof.flops is None else [f"  operations    {proof.flops:.3e} a step"]
    if proof.program is None:
        return lines
    lines += ["  collectives of a step, bytes a device:"]
    expected = proof.estimate
    for key, total in totals(proof.program.collectives).items():
        kind, axes = key
        seconds = "" if expected is None else f"  {expected.by_kind.get(key, 0.0):.4f} s"
        lines.append(
            f"    {kind:<20}{'+'.join(axes) or '-':<16}{total.times:8,} times {total.bytes / GB:10.4f} GB{seconds}"
        )
    if proof.program.endless:
        lines.append(f"    loops without a known count, taken once: {', '.join(proof.program.endless)}")
    if expected is not None:
        if expected.again:
            lines.append(
                f"  computed again {expected.again:.3e} operations, by remat: in the step, not in the utilization"
            )
        lines += [
            f"  a step        {expected.step:.4f} s by the roofline: compute {expected.compute:.4f}, "
            f"memory {expected.memory:.4f}, links {expected.links:.4f}",
            f"  utilization   {100 * expected.utilization:.1f} % of the operations that the chips could do",
            f"  collectives   {100 * expected.collective_share:.1f} % of the step, of it waited for "
            f"{100 * expected.waiting_share:.1f} %",
        ]
    return lines


def _advice(suggestions: Sequence["Suggestion"]) -> list[str]:
    lines = []
    for each in suggestions:
        if each.flags:
            lines.append(f"  {' '.join(each.flags)}")
        lines += textwrap.wrap(each.reason, 110, initial_indent="    ", subsequent_indent="    ")
    return lines or ["  no known remedy"]


def searched(candidates: Sequence["Tried"]) -> str:
    """The table of a search, the quickest that fits first, and the flags that select it."""
    unlimited = float("inf")

    def order(tried: "Tried") -> tuple[bool, float]:
        expected = tried.proof.estimate
        return not tried.proof.fits, unlimited if expected is None else expected.step

    rows = [("mesh", "remat", "GB a device", "step", "utilization", "collectives", "")]
    for tried in sorted(candidates, key=order):
        proof, expected = tried.proof, tried.proof.estimate
        speed = ("-", "-", "-")
        if expected is not None:
            speed = (
                f"{expected.step:.4f} s",
                f"{100 * expected.utilization:.1f} %",
                f"{100 * expected.collective_share:.1f} %",
            )
        needed = "-" if proof.needed is None else f"{proof.needed / GB:.2f}"
        fits = "fits" if proof.fits else "does not fit"
        rows.append((mesh_text(proof.mesh), tried.candidate.remat.value, needed, *speed, fits))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    best = min(candidates, key=order, default=None)
    if best is not None and best.proof.fits:
        lines += ["", "the best: " + " ".join(best.candidate.flags)]
    else:
        lines += [
            "",
            "none of them fits: allow more --max_candidates, raise config.num_microbatches, or take a larger topology",
        ]
    return "\n".join(lines)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """The axes of a mesh that are larger than one."""
    return " x ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
