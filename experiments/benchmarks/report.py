"""The result of a benchmark as a table and as a JSON file."""

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.benchmarks.alternating_runs import BenchmarkResult, ResultRow
from experiments.benchmarks.benchmark import Benchmark

NUM_SOURCE_LINES = 5


def results_table(benchmark: Benchmark, result: BenchmarkResult) -> str:
    """Return a table with a row per program: median time, throughput, and time relative to the first row.

    Rows whose program reports FLOPs and bytes also show their rates. Programs that compile and run nothing have a table
    of memory and traffic instead.
    """
    if any("compiled" in facts for facts in result.facts.values()):
        return _compiled_table(benchmark, result)
    first = result.rows[0].name
    width = max(len(row.name) for row in result.rows)
    work = {
        name: program_work for facts in result.facts.values() for name, program_work in facts.get("work", {}).items()
    }
    lines = [
        f"{benchmark.description} ({describe_processor()})",
        f"{'':<{width}}  {'ms':>9}  {benchmark.unit_name + '/s':>18}  time over {first} (min to max over rounds)",
    ]
    for row in result.rows:
        lines.append(
            f"{row.name:<{width}}  {1e3 * row.seconds:>9.2f}  {benchmark.units_per_repetition / row.seconds:>18,.0f}  "
            f"{row.ratio:.3f} ({row.lowest:.3f} to {row.highest:.3f}){_format_rates(row, work)}"
        )
    return "\n".join([*lines, *_left_out_lines(result)])


def _left_out_lines(result: BenchmarkResult) -> list[str]:
    return [f"{name}: not measured, it needs --peer_python=PYTHON" for name in result.left_out]


def _compiled_table(benchmark: Benchmark, result: BenchmarkResult) -> str:
    """Return a table of compiled programs, and the source lines that move the most bytes in each."""
    width = max(map(len, result.facts))
    lines = [
        benchmark.description,
        f"{'':<{width}}  {'GB moved':>9}  {'peak GB':>8}  {'collectives':>11}  {'compile, s':>10}  attention kernels",
    ]
    for row in result.rows:
        counts = result.facts[row.name]["compiled"]
        kernels = ", ".join(f"{name} {number:,} x" for name, number in counts["attention_kernels"].items())
        lines.append(
            f"{row.name:<{width}}  {counts['bytes_moved'] / 1e9:>9,.1f}  {counts['peak_bytes'] / 1e9:>8.2f}  "
            f"{counts['collectives']:>11,}  {row.seconds:>10.1f}  {kernels or 'none of a library'}"
        )
    for row in result.rows:
        lines.append(f"{row.name}, most of it from:")
        for source_line in result.facts[row.name]["compiled"]["source_lines"][:NUM_SOURCE_LINES]:
            lines.append(
                f"  {source_line['bytes'] / 1e9:>9,.1f} GB  {source_line['line'] or '(inserted by the compiler)'}"
            )
    return "\n".join([*lines, *_left_out_lines(result)])


def _format_rates(row: ResultRow, work: Mapping[str, Mapping[str, float]]) -> str:
    if row.name not in work:
        return ""
    flops, moved = (work[row.name][kind] / row.seconds / 1e9 for kind in ("flops", "bytes"))
    return f"  {flops:.0f} GFLOP/s  {moved:.1f} GB/s"


def write_result(name: str, benchmark: Benchmark, result: BenchmarkResult, folder: Path) -> Path:
    """Write the result with machine, settings and versions to `folder`/NAME.json."""
    file = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "benchmark": name,
        "description": benchmark.description,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processor": describe_processor(), "cores": os.cpu_count(), "system": platform.machine()},
        "unit": benchmark.unit_name,
        "units": benchmark.units_per_repetition,
        "rows": [row._asdict() for row in result.rows],
        "left_out": result.left_out,
        "programs": {
            program_name: {
                "command": program.command,
                "settings": _without_folder(program.settings),
                **result.facts[program_name],
            }
            for program_name, program in benchmark.programs.items()
            if program_name in result.facts
        },
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return file


def _without_folder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the folder of the data, which is specific to a machine."""
    config = settings.get("config", {})
    if config.get("task", {}).get("data_dir") is None:
        return dict(settings)
    return {**settings, "config": {**config, "task": {**config["task"], "data_dir": "DIR"}}}


def describe_processor() -> str:
    """Return the name and cores of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
