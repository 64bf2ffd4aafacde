"""Replay a run to one step and write what it never stored: maps, the losses of single examples, one example's maps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.attention.capture import Capture, CapturedAttention
from transformer.config import UserError
from transformer.interpret.non_finite_step import explain_non_finite_step
from transformer.interpret.training_examples import (
    ExampleLosses,
    capture_example,
    check_example,
    describe_example,
    label_example,
    measure_example_losses,
)
from transformer.maps.report.page import render_single_text, write_page, write_report
from transformer.maps.report.single_text import store_single_text
from transformer.maps.store import MapStore
from transformer.models.model import count_parameters
from transformer.runs.run_directory import write_json
from transformer.storage.paths import storage_of
from transformer.training.compiled_probe import Probe
from transformer.training.config import config_hash
from transformer.training.replay import Replay, ReplayedSteps
from transformer.training.replay_comparison import (
    Comparison,
    compare_head_statistics,
    compare_maps,
    compare_metrics,
    compare_state,
    describe_comparisons,
    is_bit_identical,
)
from transformer.training.state import TrainState
from transformer.training.writers.jsonl import HeadStatisticsWriter, MetricsWriter
from transformer.training.writers.writer import MultiWriter


class ReplayedStep(NamedTuple):
    """What a replay to a step has computed.

    Attributes:
        step: The step.
        first: The step of the checkpoint that the replay started from.
        metrics: The training metrics of the step alone; empty if the replay started at the step.
        comparisons: What was compared with the records of the run.
        verdict: Whether the replay is bit for bit what ran, in one line.
        files: The files and folders that were written.
        notes: What could not be computed, and why.
    """

    step: int
    first: int
    metrics: Mapping[str, float]
    comparisons: tuple[Comparison, ...]
    verdict: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def prepare_output(output: Path, run: Path) -> None:
    """Make the folder of a replay's files.

    Raises:
        UserError: If it holds files already, is a file, or lies in the run directory, where nothing is written.
    """
    if output.resolve().is_relative_to(run.resolve()):
        raise UserError(f"--output={output} lies in the run directory, where a replay writes nothing: name another")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output={output} exists and is not an empty folder: name a new one")
    output.mkdir(parents=True, exist_ok=True)


def replay_step(
    replay: Replay, step: int, output: Path, *, example: int | None = None, verify: bool = True
) -> ReplayedStep:
    """Replay a run to a step, and write the maps of its probe and the losses of the step's batch.

    Into `output` go `maps/` and `report.html` (the probe after the step), `examples.jsonl` (a line for each example of
    the batch that the step trained on), `metrics.jsonl` and `heads.jsonl` (as the run logged them), for one example
    `example_maps/` and `example.html`, and `replay.json`.

    Args:
        replay: The run.
        step: The step, counted from 1; 0 is the state before training.
        output: An empty folder.
        example: The index of the example whose maps are written.
        verify: Whether to train on to the next checkpoint, if there is one, and compare every array with it.

    Raises:
        UserError: If the run cannot be replayed to the step, or the batch has no such example.
    """
    replay.check_step(step)
    first_step = replay.first_step
    if example is not None and step <= first_step:
        raise UserError(f"--example needs a step that was trained on a batch: --step={first_step + 1} is the first")
    has_batch = step > first_step
    start = replay.start_before(step - 1 if has_batch else step)
    batch = replay.batch_of_step(step) if has_batch else {}
    if example is not None:
        check_example(batch, example, step)
    later = [saved for saved in replay.steps if saved >= step] if verify else []
    until = min(later, default=step)
    if not replay.components.model.sites and not has_batch:
        raise UserError(f"--step={step}: this model has no attention to map, and no batch was trained on before")
    writers = MetricsWriter(output / "metrics.jsonl"), HeadStatisticsWriter(output / "heads.jsonl")
    writer = MultiWriter(*writers)
    replayed = replay.train_on(start, until, {step - 1, step}, writer)
    writer.close()

    comparisons = compare_replayed(replay, replayed, until, output)
    files, notes = [output / "metrics.jsonl"], []
    if replay.components.model.sites:
        probe = replay.compile_probe()
        store = store_probe(replay, probe, replayed.states[step], step, output / "maps")
        files += [output / "maps"]
        comparisons += compare_stored_maps(replay, store, step)
        try:
            files.append(write_report(replay.directory.path, maps=store.path, page=output / "report.html"))
        except UserError as error:
            notes.append(f"no page: {error}")
    else:
        notes.append("the model has no attention: there are no maps")
    if has_batch:
        losses = measure_example_losses(replay.components, replayed.states[step - 1], batch)
        files.append(_write_examples(output / "examples.jsonl", replay, batch, losses))
        notes += [f"no losses of single examples of {name}: {why}" for name, why in losses.skipped_objectives.items()]
    if example is not None:
        files += _write_example(replay, replayed.states[step - 1], batch, example, step, output)
    if not np.isfinite(list(replayed.metrics.get(step, {}).values())).all():
        explanation = explain_non_finite_step(replay.components, replayed.states[step - 1], batch)
        notes.append(f"step {step} is not finite: {explanation or 'its losses and gradients are, its update is not'}")
    verdict = describe_comparisons(comparisons, replay.directory)
    result = ReplayedStep(
        step,
        replayed.first,
        replayed.metrics.get(step, {}),
        tuple(comparisons),
        verdict,
        (*files, output / "replay.json"),
        tuple(notes),
    )
    write_json(output / "replay.json", _to_json(result, replay))
    return result


def compare_replayed(replay: Replay, replayed: ReplayedSteps, until: int, records: Path) -> list[Comparison]:
    """Compare the records of replayed steps, and the last state if it was saved, with those of the run.

    Args:
        replay: The run.
        replayed: The steps.
        until: The last of them.
        records: The folder of the metrics.jsonl and heads.jsonl that they have written.
    """
    directory, span = replay.directory, (replayed.first, until)
    comparisons = [
        compare_metrics(directory.metrics_file, records / "metrics.jsonl", *span),
        compare_head_statistics(directory.heads_file, records / "heads.jsonl", *span),
    ]
    if until > replayed.first and until in replay.steps:
        comparisons.append(compare_state(replay.read_checkpoint(until), replayed.state))
    return comparisons


def store_probe(replay: Replay, probe: Probe, state: TrainState, step: int, path: Path) -> MapStore:
    """Map the probe batch with a state, and write the maps to a new store as the run would have."""
    plan = probe.capture_plan
    store = MapStore.open(path, plan.sites, plan.labels, config_hash(replay.experiment), plan.resolutions, plan.sizes)
    store.write(step, jax.device_get(probe.run(state)))
    return store


def compare_stored_maps(replay: Replay, store: MapStore, step: int) -> list[Comparison]:
    """Compare the maps of a step with those of the run; an empty list if it stored none then."""
    if not (replay.directory.maps_dir / "zarr.json").exists():
        return []
    recorded = MapStore.open_existing(replay.directory.maps_dir)
    return [compare_maps(recorded, store, step)] if step in recorded.steps else []


def _write_examples(path: Path, replay: Replay, batch: Mapping[str, Any], losses: ExampleLosses) -> Path:
    """Write a line for each example of a batch: its number, its metrics and its texts."""
    lines = []
    for number, example in enumerate(losses.examples):
        metrics = {name: _number(values[number]) for name, values in losses.metrics.items()}
        index = {"index": int(np.asarray(batch["index"])[example])} if "index" in batch else {}
        texts = describe_example(replay.components.task, batch, example)
        lines.append({"example": example, **index, **metrics, **texts})
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    storage_of(path).replace(path, text.encode())
    return path


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _write_example(
    replay: Replay, state: TrainState, batch: Mapping[str, Any], example: int, step: int, output: Path
) -> list[Path]:
    """Write the maps of one example and their page."""
    components, experiment = replay.components, replay.experiment
    sites = components.model.sites

    def look(capture: Capture) -> Mapping[str, CapturedAttention]:
        return capture_example(components, state, batch, example, capture)

    shapes = jax.eval_shape(lambda: look(Capture(tuple(site.name for site in sites))))
    labels = label_example(components.task, batch, example, sites, shapes)
    hashed = config_hash(experiment)
    store, _ = store_single_text(output / "example_maps", sites, labels, look, experiment.maps, hashed, step)
    title = f"{experiment.run.name}, example {example} of step {step}"
    parameters = count_parameters(components.abstract_state.variables.params)
    page = write_page(output / "example.html", render_single_text(store, title, experiment.to_config(), parameters))
    return [output / "example_maps", page]


def _to_json(result: ReplayedStep, replay: Replay) -> dict[str, Any]:
    """Return the content of replay.json."""
    comparisons = [
        {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in comparison._asdict().items()
        }
        for comparison in result.comparisons
    ]
    return {
        "run": str(replay.directory.path),
        "config": config_hash(replay.experiment),
        "step": result.step,
        "replayed_from": result.first,
        "bit_identical": is_bit_identical(result.comparisons),
        "verdict": result.verdict,
        "comparisons": comparisons,
        "metrics": {name: _number(value) for name, value in result.metrics.items()},
        "notes": list(result.notes),
    }
