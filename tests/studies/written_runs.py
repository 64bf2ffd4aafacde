"""Folders of runs as training leaves them, made in a moment: configs, metrics, environments."""

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CONFIG = {
    "name": "demo",
    "seed": 0,
    "steps": 1000,
    "task": {"name": "translation", "dataset": "phrases"},
    "model": {"family": "encoder_decoder", "num_layers": 2, "width": 128, "norm_placement": "pre"},
    "optimizer": {"learning_rate": 1e-3},
}


def with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other values by dotted key."""
    changed = json.loads(json.dumps(config))
    for key, value in values.items():
        *groups, last = key.split(".")
        section = changed
        for group in groups:
            section = section[group]
        section[last] = value
    return changed


def learning_curve(end: float, last_step: int, every: int, seed: int) -> list[dict[str, Any]]:
    """Lines of metrics: losses of training and validation that fall to about `end`, scores, speeds."""
    noise, lines = random.Random(seed), []
    for step in range(every, last_step + 1, every):
        loss = end + 4 * math.exp(-step / 150) + 0.05 * noise.random()
        speeds = {"gradient_norm": 1 + noise.random(), "learning_rate": 1e-3, "steps_per_second": 9 + noise.random()}
        lines.append({"step": step, "split": "train", "loss": loss, "accuracy": math.exp(-loss), **speeds})
        if step % (5 * every) == 0:
            held_out = {"loss": loss + 0.1, "accuracy": math.exp(-loss - 0.1), "exact_match": math.exp(-2 * loss)}
            lines.append({"step": step, "split": "validation", **held_out})
    return lines


def write_run(
    folder: Path,
    values: Mapping[str, Any] | None = None,
    *,
    lines: Iterable[Mapping[str, Any]] = (),
    starts: Iterable[Mapping[str, Any]] = ({},),
) -> Path:
    """A run directory with a config, the starts of environment.json and lines of metrics."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(with_values(CONFIG, values or {})))
    (folder / "environment.json").write_text(json.dumps(list(starts)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "lock").touch()
    return folder


def write_many_runs(folder: Path, count: int = 300, every: int = 5) -> Path:
    """Many runs over widths, norm placements, learning rates and seeds; some have stopped, failed and diverged."""
    for number in range(count):
        norm, width = ("pre", "post")[number % 2], (64, 128, 256)[number % 3]
        rate, seed = (1e-4, 3e-4, 1e-3, 3e-3)[number // 6 % 4], number // 24
        values = {
            **{"model.norm_placement": norm, "model.width": width},
            **{"optimizer.learning_rate": rate, "seed": seed},
        }
        last_step = 1000 if number % 11 else 100 + 10 * (number % 70)
        end = 0.3 + 0.2 * (norm == "post") + abs(math.log10(rate) + 3) / 2 + 20 / width
        starts: list[dict[str, Any]] = [{}]
        if number % 55 == 0:
            starts = [{"error": "TrainingDiverged: steps 90 to 100 made no update: the loss is not finite"}]
        elif number % 77 == 0:
            starts = [{"error": "RuntimeError: RESOURCE_EXHAUSTED: out of memory"}]
        name = f"{norm}-{width}/rate-{rate:g}-seed-{seed}" if number % 4 else f"{norm}-{width}-{rate:g}-{seed}"
        write_run(folder / name, values, lines=learning_curve(end, last_step, every, number), starts=starts)
    return folder
