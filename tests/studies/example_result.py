"""Results of made-up studies: invented runs with plausible curves, put through the analysis that the page draws."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.studies.ablations.ablation import build_ablation
from transformer.studies.ablations.analysis import analyze
from transformer.studies.ablations.page import render
from transformer.studies.ablations.report import StudyReport
from transformer.studies.ablations.run_result import Point, RunResult

RATE, WARMUP = "optimizer.learning_rate", "optimizer.warmup_steps"
RATES, WARMUPS = (3e-4, 1e-3, 3e-3, 1e-2), (0, 100, 400)
SITES = ("encoder/self", "decoder/self", "decoder/cross")
STEPS = 400
# Of each arm: its best loss, the learning rate that suits it, the rate from which on it diverges without warm-up, and
# the steps in which what is left to learn falls to a third.
HABITS = {
    "pre": (0.412, 2e-3, 0.02, 45),
    "post": (0.372, 1e-3, 2e-3, 80),
    "sandwich": (0.409, 2e-3, 0.02, 52),
    "deepnorm": (0.398, 1.4e-3, 6e-3, 64),
    "parallel": (0.451, 1.5e-3, 7e-3, 38),
}
Facts = dict[str, Any]


def whole_result(
    arms: Sequence[str] = tuple(HABITS),
    tasks: Sequence[str] = ("phrases", "reversal"),
    first_judged_seeds: Sequence[int] | None = None,
) -> Facts:
    """A study with everything that a page can show."""
    return whole_report(arms, tasks, first_judged_seeds).to_json()


def whole_report(
    arms: Sequence[str] = tuple(HABITS),
    tasks: Sequence[str] = ("phrases", "reversal"),
    first_judged_seeds: Sequence[int] | None = None,
) -> StudyReport:
    """The same as a report."""
    spec = build_ablation(
        question="Does it matter where the norms of a small translator stand?",
        arms={arm: {"model.norm_placement": arm} for arm in arms},
        reference=arms[0],
        tuning_grid={RATE: RATES, WARMUP: WARMUPS},
        tasks={task: {"task.dataset": task} for task in tasks},
        target=0.6,
        smallest_effect_of_interest=0.02,
    )
    cells = [
        _cell(arm, task, seed, hyperparameters)
        for arm, task, seed, hyperparameters in itertools.product(arms, tasks, spec.seeds, spec.combinations())
    ]
    return analyze(spec, cells, {**_about(arms), "first_judged_seeds": first_judged_seeds})


def least_result() -> Facts:
    """Two arms, one seed, nothing tuned, no curve: all that needs more than that is absent."""
    spec = build_ablation(
        question="How many heads?", arms={"base": {}, "heads": {"model.heads": 8}}, reference="base", seeds=(1,)
    )
    cells = [
        RunResult(arm, "", 1, {}, "done", None, value, {}, None, {}, 10, f"trials/{arm}", "python -m launch.train")
        for arm, value in (("base", 0.5), ("heads", 0.45))
    ]
    return analyze(spec, cells, {"name": "heads", "arms": {}, "initial_gradients": None}).to_json()


def _cell(arm: str, task: str, seed: int, hyperparameters: Mapping[str, Any]) -> RunResult:
    """One run: its curve falls toward what its tuned values allow, unless these are too much for its arm."""
    name = hashlib.sha256(repr((arm, task, seed, hyperparameters)).encode()).hexdigest()[:16]
    rng = np.random.default_rng(int(name, 16))
    base, suited, most, slow = HABITS.get(arm, HABITS["pre"])
    level = base + (0.13 if task == "reversal" else 0.0) + 0.02 * np.random.default_rng(seed).normal()
    level += (
        0.09 * np.log10(hyperparameters[RATE] / suited) ** 2
        + 0.004 * rng.normal()
        + 0.00006 * abs(hyperparameters[WARMUP] - 100)
    )
    diverged = bool(hyperparameters[RATE] > most * (1 + hyperparameters[WARMUP] / 40) * np.exp(0.5 * rng.normal()))
    steps = np.arange(20, STEPS + 1, 20)
    loss = level + 4.2 * np.exp(-steps / (slow + hyperparameters[WARMUP] / 8)) * (
        1 + 0.02 * rng.normal(size=steps.size)
    )
    # It grows for a while before it stops.
    loss = np.where(diverged, 3 + 0.4 * np.arange(steps.size) + 0.2 * rng.normal(size=steps.size), loss)
    steps, loss = (steps[:8], loss[:8]) if diverged else (steps, loss)
    failed = (arm, task, seed) == ("sandwich", "reversal", 4)
    learned = 1 - np.exp(-steps / (2 * slow))
    heads = {
        "entropy": {site: _points(steps, 2.6 - (0.4 + 0.3 * at + base) * learned) for at, site in enumerate(SITES)},
        "sink": {site: _points(steps, 0.04 + (0.9 - base) * (at + 1) / 4 * learned) for at, site in enumerate(SITES)},
    }
    flags = {"seed": seed, "model.norm_placement": arm, "task.dataset": task, **hyperparameters}
    words = " ".join(f"--config.{key}={value}" for key, value in flags.items())
    return RunResult(
        arm_name=arm,
        task_name=task,
        seed=seed,
        hyperparameters=dict(hyperparameters),
        state="failed" if failed else "diverged" if diverged else "done",
        selection_value=float(loss[-1]),
        reported_value=None if diverged or failed else float(level + 0.01 + 0.003 * rng.normal()),
        curves={"validation/loss": _points(steps, loss), "train/loss": _points(steps, 0.96 * loss)},
        flops=2.3e10,
        head_statistics=heads,
        num_steps=STEPS,
        directory=f"trials/{name}",
        command=f"python -m launch.train --config=experiments/demo.py --workdir=runs/{name} {words}",
        trust_flags="--trust=lab.mine" if arm == "deepnorm" else "",
    )


def _points(steps: np.ndarray, values: np.ndarray) -> tuple[Point, ...]:
    return tuple(zip(steps.tolist(), values.tolist(), strict=True))


def _about(arms: Sequence[str]) -> Facts:
    apart = [f"decoder/norm_{number}/scale" for number in range(6)]
    facts = {
        arm: {
            "differences": [{"key": "model.norm_placement", "reference": arms[0], "arm": arm}]
            if arm != arms[0]
            else [],
            "parameters": 1_214_976 + 1024 * (arm == "sandwich"),
            "shared": {"num_equal_arrays": 90, "num_arrays": 96, "differing_paths": [], "unmatched_paths": apart}
            if arm == "sandwich"
            else {"num_equal_arrays": 96, "num_arrays": 96, "differing_paths": [], "unmatched_paths": []},
        }
        for arm in arms
    }
    base = {
        "name": "demo",
        "seed": 1,
        "model": {"width": 64, "norm_placement": "pre"},
        "optimizer": {"warmup_steps": 100},
    }
    return {
        "name": "norm_placement",
        "base": base,
        "arms": facts,
        "hardware": "1 x cpu, 2 CPU cores a run, cpu",
        "when": "2025-11-21T10:00",
        "commit": "0123456789abcdef",
        "command": (
            "python -m launch.ablate --config=experiments/ablations/configs/norm_placement.py --workdir=runs/norms"
        ),
        "maps_command": "python -m launch.maps",
        "workdir": "runs/norms",
        "versions": {"python": "3.13.1", "jax": "0.12.0", "flax": "0.12.12", "optax": "0.2.6"},
        "initial_gradients": {
            "how": "The norm of the gradient of each block's first feed-forward matrix, before any update.",
            "stacks": [_stack(name, arms) for name in ("decoder of an encoder-decoder", "decoder-only")],
        },
    }


def _stack(name: str, arms: Sequence[str]) -> Facts:
    depths = (6, 12, 24)
    measured = []
    for arm, depth in itertools.product(arms, depths):
        growth = {"post": 5.9 if "encoder" in name else 1.1, "deepnorm": 2.0, "sandwich": 0.9}.get(arm, 0.73)
        size = 0.085 if arm == "post" else HABITS.get(arm, HABITS["pre"])[0] / 2 * (6 / depth) ** 0.5
        layers = size * growth ** np.linspace(0, 1, depth)
        bounds = {"layers": layers.tolist(), "low": (0.92 * layers).tolist(), "high": (1.08 * layers).tolist()}
        measured.append({"arm": arm, "depth": depth, **bounds})
    return {
        "name": name,
        "depths": list(depths),
        "arms": measured,
        "ratio": [
            {"arm": each["arm"], "depth": each["depth"], "last_over_first": each["layers"][-1] / each["layers"][0]}
            for each in measured
        ],
        "exponent": [{"arm": arm, "value": 0.012 if arm == "post" else -0.5} for arm in arms],
    }


def write_page(result: Mapping[str, Any], path: Path) -> Path:
    """The result's page as a file, for a browser."""
    path.write_text(render(result), encoding="utf-8")
    return path
