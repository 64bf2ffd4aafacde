"""The run by which whole runs are tested: one config, so that its programs are compiled once for all these tests.

What a test changes of it, such as seeds and how often is looked, should leave the programs as they are. Beside it what
such tests share: how a run is killed, and what of its records may be compared.
"""

import re
from pathlib import Path
from typing import Any

from transformer.runs.jsonl_reading import read_records
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.writer import Progress, Report

CONFIG: dict[str, Any] = {
    "name": "small",
    "steps": 8,
    "log_every": 2,
    "eval_every": 4,
    "maps_every": 2,
    "head_statistics_every": 2,
    "checkpoint_every": 4,
    "keep_checkpoints": 2,
    "task": {
        "name": "language_modeling",
        "dataset": str(Path(__file__).resolve().parents[2] / "LICENSE"),
        "tokenizer": "characters",
        "batching": "packed",
        "context_length": 32,
        "batch_size": 8,
        "num_probe_examples": 3,
        "probe_length": 12,
    },
    "model": {
        "family": "decoder",
        "vocab_size": 128,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.1,  # so that the keys matter
        "biases": "none",  # that of the keys has no gradient but rounding, which Adam blows up
        "max_length": 36,
    },
    # Of the schedules one that does not depend on the number of steps.
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 4, "clip_norm": 1.0},
    "parameter_averages": {"last": {"kind": "mean", "start": 4, "every": 2}, "slow": {"kind": "exponential"}},
}


class Killed(BaseException):
    """What ends a run between two steps."""


def console_killed_at(step: int) -> type[ConsoleWriter]:
    """The console of a run that does not live to see the end of that step."""

    class KilledConsole(ConsoleWriter):
        def write(self, report: Report) -> None:
            if isinstance(report, Progress) and report.step == step:
                raise Killed
            super().write(report)

    return KilledConsole


def without_clock(run: Path, split: str = "") -> list[dict[str, Any]]:
    """The records of a run, or of one of its splits, without what depends on how fast it went."""
    clocked = re.compile(r".*_per_second|mfu|batch_wait")
    records = [record for record in read_records(run / "metrics.jsonl") if split in ("", record["split"])]
    return [{name: value for name, value in record.items() if not clocked.fullmatch(name)} for record in records]
