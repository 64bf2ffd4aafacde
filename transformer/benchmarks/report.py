"""What a benchmark found, as a table to read and as a JSON file to keep."""

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transformer.benchmarks.contract import Benchmark
from transformer.benchmarks.in_turn import Result, Row


def table(benchmark: Benchmark, result: Result) -> str:
    """A row a program: its median time, how much it makes a second, and its time in ratio to the first row's.

    Beside them the rates of the operations and bytes that a program says its rows take.
    """
    first = result.rows[0].name
    width = max(len(row.name) for row in result.rows)
    work = {name: each for facts in result.facts.values() for name, each in facts.get("work", {}).items()}
    lines = [
        f"{benchmark.description} ({processor()})",
        f"{'':<{width}}  {'ms':>9}  {benchmark.unit + ' a second':>18}  time over {first} (least to most, by round)",
    ]
    for row in result.rows:
        lines.append(
            f"{row.name:<{width}}  {1e3 * row.seconds:>9.2f}  {benchmark.units / row.seconds:>18,.0f}  "
            f"{row.ratio:.3f} ({row.lowest:.3f} to {row.highest:.3f}){_rates(row, work)}"
        )
    lines += [f"{name}: not measured, it needs --peer_python=PYTHON" for name in result.left_out]
    return "\n".join(lines)


def _rates(row: Row, work: Mapping[str, Mapping[str, float]]) -> str:
    if row.name not in work:
        return ""
    operations, moved = (work[row.name][kind] / row.seconds / 1e9 for kind in ("operations", "bytes"))
    return f"  {operations:.0f} Gflop/s  {moved:.1f} GB/s"


def record(name: str, benchmark: Benchmark, result: Result, folder: Path) -> Path:
    """Write the result, with the machine, the settings and the versions, to `folder`/NAME.json."""
    file = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "benchmark": name,
        "description": benchmark.description,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.machine()},
        "unit": benchmark.unit,
        "units": benchmark.units,
        "rows": [row._asdict() for row in result.rows],
        "left_out": result.left_out,
        "programs": {
            each: {
                "command": program.command,
                "settings": _without_folder(program.settings),
                **result.facts[each],
            }
            for each, program in benchmark.programs.items()
            if each in result.facts
        },
    }
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return file


def _without_folder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the folder of the data, which says something of one machine alone."""
    config = settings.get("config", {})
    if config.get("task", {}).get("data_dir") is None:
        return dict(settings)
    return {**settings, "config": {**config, "task": {**config["task"], "data_dir": "DIR"}}}


def processor() -> str:
    """The processor's name, which every ratio of times belongs to."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
