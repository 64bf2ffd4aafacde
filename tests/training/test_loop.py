"""The loop by itself, around a step that only counts: what is called when, and what is reported."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from transformer.attention.capture import CapturedAttention
from transformer.config import RunConfig
from transformer.runs.exceptions import RunStopped
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.task import EvaluationReport
from transformer.training import metric_accumulator
from transformer.training.driver import ProfiledTrainStep
from transformer.training.loop import Reporter, train_loop
from transformer.training.metric_accumulator import MetricAccumulator
from transformer.training.step import StepMetrics
from transformer.training.update_guard import ConsecutiveSkips, TrainingDiverged
from transformer.training.writers.writer import HeadStatistics, Metrics, ProbeMaps, Progress, Report, Samples, Writer


class Count(NamedTuple):
    """A state that is nothing but its step."""

    step: int


class Numbers:
    """The batch of step n is the number n, from 0 on."""

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return {"number": np.array([step])}


class Recorder(Writer):
    """A writer that keeps every call, by name, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                self.calls.append(("scalars", step, split, dict(values)))
            case Samples(step, split, samples):
                self.calls.append(("samples", step, split, list(samples)))
            case ProbeMaps(step, maps):
                self.calls.append(("maps", step, dict(maps)))
            case HeadStatistics(step, statistics):
                self.calls.append(("heads", step, dict(statistics)))
            case Progress(step, total):
                self.calls.append(("progress", step, total))

    def flush(self) -> None:
        self.calls.append(("flush", None))

    def close(self) -> None:
        raise AssertionError("who opened the writer closes it")

    def steps(self, *start: Any) -> list[int]:
        """The steps of the calls whose name (and split) is this."""
        return [c[1] for c in self.calls if (c[0], *c[2:3])[: len(start)] == start]


class Until(ProgressMonitor):
    """A monitor that ends before a unit of these words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def begin_unit(self, what: str, *, makes: bool = False) -> None:
        if self._words and what.startswith(self._words):
            raise RunStopped(what)
        super().begin_unit(what, makes=makes)


EVALUATIONS: list[Any] = [
    SimpleNamespace(evaluation=SimpleNamespace(name="bleu", split="validation", at_end=False)),
    SimpleNamespace(evaluation=SimpleNamespace(name="error_rate", split="test", at_end=True)),
]


class Trial:
    """One run of the loop, with all that it asked for."""

    def __init__(self, *, losses: Mapping[int, float] | None = None, stopped_before: str = "") -> None:
        self.losses = losses or {}
        self.monitor = Until(stopped_before)
        self.saved: list[dict[str, Any]] = []
        self.writer = Recorder()
        self.fed: list[int] = []

    def step(self, state: Count, batch: Mapping[str, np.ndarray], observe: bool = False) -> tuple[Count, StepMetrics]:
        number = state.step + 1
        self.fed.append(int(batch["number"][0]))
        loss = np.float32(self.losses.get(number, number))
        values = {"loss": loss, "rate": np.float32(1 / number), "skipped_updates": np.float32(not np.isfinite(loss))}
        denominators = {"tokens": np.float32(10 * number), "pairs": np.float32(2)}
        seen = float(number if observe else 0)
        captured = CapturedAttention(None, {"entropy": np.full((1, 2), 3 * seen)}, {"entropy": np.full((1, 2), seen)})
        return Count(number), StepMetrics(denominators, values, {"site": captured})

    def evaluate(self, compiled: Any, state: Count) -> EvaluationReport:
        name = compiled.evaluation.name
        return EvaluationReport({name: state.step}, [{"output": name}])

    def probe(self, state: Count) -> dict[str, np.ndarray]:
        self.writer.calls.append(("probe", state.step))
        return {"site": np.full(1, np.max(state.step))}

    def save(self, state: Count, progress: Mapping[str, Any]) -> None:
        self.writer.calls.append(("save", int(np.max(state.step))))
        self.saved.append(dict(progress))

    def run(self, steps: int, start: int = 0, accumulator: MetricAccumulator | None = None, **intervals: int) -> Any:
        config = RunConfig("loop", {}, {}, {}, steps, **intervals)  # type: ignore[arg-type]
        reporter = Reporter(config, EVALUATIONS, self.evaluate, self.probe, self.writer, self.monitor)  # type: ignore[arg-type]
        return train_loop(
            Count(start),  # type: ignore[arg-type]
            self.step,  # type: ignore[arg-type]
            Numbers(),
            reporter=reporter,
            save=self.save,  # type: ignore[arg-type]
            accumulator=accumulator,
        )


def test_each_thing_happens_at_its_cadence_and_at_the_end() -> None:
    trial = Trial()
    assert isinstance(trial.writer, Writer)
    state = trial.run(11, log_every=2, eval_every=3, maps_every=4, checkpoint_every=6)
    assert state == Count(11)
    assert trial.fed == list(range(11))
    assert trial.writer.steps("progress") == list(range(1, 12))
    assert trial.writer.steps("scalars", "train") == [2, 4, 6, 8, 10, 11]
    assert trial.writer.steps("scalars", "validation") == [3, 6, 9, 11]
    assert trial.writer.steps("samples", "validation") == [3, 6, 9, 11]
    assert trial.writer.steps("scalars", "test") == [11]  # an evaluation of the end
    assert trial.writer.steps("maps") == [0, 4, 8, 11]
    assert trial.writer.steps("save") == [6, 11]
    assert [int(c[2]["site"][0]) for c in trial.writer.calls if c[0] == "maps"] == [0, 4, 8, 11]
    assert trial.writer.calls[-1] == ("save", 11)  # a run that has its last checkpoint is complete


def test_zero_means_only_at_the_end() -> None:
    trial = Trial()
    trial.run(4, log_every=1, eval_every=0, maps_every=0, checkpoint_every=0)
    for name in (("scalars", "validation"), ("maps",), ("save",)):
        assert trial.writer.steps(*name) == [4]


def test_a_resumed_run_goes_on_where_it_stopped() -> None:
    trial = Trial()
    trial.run(9, log_every=3, eval_every=0, maps_every=3, checkpoint_every=3, start=6)
    assert trial.fed == [6, 7, 8]
    assert trial.writer.steps("scalars", "train") == [9]
    assert trial.writer.steps("maps") == [9]  # none of step 0: the first run has it


def test_a_finished_run_does_nothing() -> None:
    trial = Trial()
    assert trial.run(9, log_every=3, eval_every=3, maps_every=3, checkpoint_every=3, start=9) == Count(9)
    assert trial.writer.calls == []


def test_the_metrics_of_every_step_count_once() -> None:
    trial = Trial()
    trial.run(7, log_every=3, eval_every=0, maps_every=0, checkpoint_every=0)
    reports = [c[3] for c in trial.writer.calls if c[:1] == ("scalars",) and c[2] == "train"]
    windows = ([1, 2, 3], [4, 5, 6], [7])
    assert [r["loss"] for r in reports] == [np.mean(w) for w in windows]
    assert [r["rate"] for r in reports] == pytest.approx([np.mean([1 / n for n in w]) for w in windows])
    # Rates share their seconds, so their ratios are free of the clock.
    a_step = [r["tokens_per_second"] / r["steps_per_second"] for r in reports]
    assert a_step == pytest.approx([10 * np.mean(w) for w in windows])
    pairs = [r["pairs_per_second"] / r["steps_per_second"] for r in reports]
    assert pairs == pytest.approx([2, 2, 2])
    assert all(not {"mfu", "flops_per_step"} & set(r) for r in reports)


def test_utilization_is_the_formulas_operations_over_what_the_devices_could_do() -> None:
    trial = Trial()
    accumulator = MetricAccumulator(flops=lambda batch: 1000.0 * float(batch["number"][0] + 1), peak_flops=5e6)
    trial.run(4, log_every=2, eval_every=0, maps_every=0, checkpoint_every=0, accumulator=accumulator)
    reports = [c[3] for c in trial.writer.calls if c[:1] == ("scalars",) and c[2] == "train"]
    a_step = [r["mfu"] / r["steps_per_second"] for r in reports]
    assert a_step == pytest.approx([1500 / 5e6, 3500 / 5e6])
    assert [r["flops_per_step"] for r in reports] == [1500, 3500]


def test_devices_without_a_published_peak_have_no_utilization() -> None:
    trial = Trial()
    accumulator = MetricAccumulator(flops=lambda batch: 1000.0)
    trial.run(2, log_every=2, eval_every=0, maps_every=0, checkpoint_every=0, accumulator=accumulator)
    (report,) = [c[3] for c in trial.writer.calls if c[:1] == ("scalars",) and c[2] == "train"]
    assert report["flops_per_step"] == 1000
    assert "mfu" not in report


def test_rates_are_of_the_steps_and_the_seconds_since_the_clock_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(metric_accumulator, "time", SimpleNamespace(perf_counter=lambda: now))
    accumulator = MetricAccumulator()
    accumulator.restore_window(6, {"loss": 30.0})  # of a run before: nobody knows how long they took
    accumulator.start_clock()
    for step in (7, 8):
        now += 2
        accumulator.add_step(StepMetrics({"tokens": np.float32(10)}, {"loss": np.float32(9)}), step)  # type: ignore[dict-item]
    with accumulator.paused():
        now += 100
    assert accumulator.compute_and_reset() == {
        "loss": (30 + 18) / 8, "steps_per_second": 2 / 4, "tokens_per_second": 20 / 4, "batch_wait": 0
    }  # fmt: skip


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [4, 5, 6])
def test_two_steps_in_a_row_that_made_no_update_stop_a_run_that_bears_one(bad: float, at: int) -> None:
    trial = Trial(losses={1: bad, at - 1: bad, at: bad})
    with pytest.raises(
        TrainingDiverged, match=f"steps {at - 1} to {at}, 2 in a row, made no update: loss is {bad}"
    ) as diverged:
        trial.run(
            6,
            log_every=5,
            eval_every=0,
            maps_every=0,
            checkpoint_every=5,
            accumulator=MetricAccumulator(ConsecutiveSkips(2).check),
        )
    assert isinstance(diverged.value, FloatingPointError)
    assert (diverged.value.first, diverged.value.step) == (at - 1, at)
    assert trial.writer.steps("save") == ([5] if at > 5 else [])


def test_steps_that_made_no_update_are_counted_and_in_no_mean() -> None:
    trial = Trial(losses={2: math.nan, 5: math.inf, 6: math.nan})
    trial.run(6, log_every=4, eval_every=0, maps_every=0, checkpoint_every=4)
    reports = [c[3] for c in trial.writer.calls if c[:1] == ("scalars",) and c[2] == "train"]
    assert [r["skipped_updates"] for r in reports] == [1, 2]
    assert reports[0]["loss"] == np.mean([1, 3, 4])
    assert np.isnan(reports[1]["loss"])


@pytest.mark.parametrize(
    ("before", "saved", "reports_done", "window"),
    [
        ("the maps of step 0", [], True, 0),
        ("step 1", [], True, 0),
        ("step 6", [4, 5], True, 1),  # behind step 5, whose metrics are of a report to come
        ("the maps of step 4", [4], False, 0),  # what was due is reported by the next process
        ("the checkpoint of step 4", [4], True, 0),
        ("step 5", [4], True, 0),  # saved already
    ],
)
def test_a_run_that_is_stopped_saves_what_it_made_and_what_the_next_needs(
    before: str, saved: list[int], reports_done: bool, window: int
) -> None:
    trial = Trial(stopped_before=before)
    with pytest.raises(RunStopped):
        trial.run(8, log_every=2, eval_every=4, maps_every=4, checkpoint_every=4)
    assert trial.writer.steps("save") == saved
    if saved and trial.saved[-1]:
        assert (trial.saved[-1]["reports_done"], trial.saved[-1]["window"]["steps"]) == (reports_done, window)
    assert trial.writer.steps("scalars", "validation") == ([4] if reports_done and saved else [])
    made = saved[-1] if saved else 0
    assert trial.fed == list(range(made))
    rest = Trial()
    accumulator = MetricAccumulator()
    progress = trial.saved[-1] if saved else {}
    accumulator.restore_window(**progress.get("window", {"steps": 0, "sums": {}}))
    rest.run(8, log_every=2, eval_every=4, maps_every=4, checkpoint_every=4, start=made, accumulator=accumulator)
    reports = {
        c[1]: c[3]["loss"] for t in (trial, rest) for c in t.writer.calls if c[0] == "scalars" and c[2] == "train"
    }
    assert reports == {2: 1.5, 4: 3.5, 6: 5.5, 8: 7.5}


def test_several_runs_at_one_step_have_means_of_their_own_and_are_checked_every_step() -> None:
    trial, checked = Trial(losses={5: math.nan}), []

    def step(state: Any, batch: Any, observe: bool = False) -> tuple[Any, StepMetrics]:
        number = int(state.step[0]) + 1
        loss = np.array([number, trial.losses.get(number, 2 * number)], np.float32)
        return Count(np.full(2, number)), StepMetrics({"tokens": np.array([3.0, 5.0])}, {"loss": loss})  # type: ignore

    trial.step = step  # type: ignore[method-assign]
    trial.run(
        6,
        log_every=2,
        eval_every=9,
        maps_every=0,
        checkpoint_every=0,
        start=np.full(2, 2),  # type: ignore[arg-type]
        accumulator=MetricAccumulator(
            lambda step, _, values: checked.append((step, values["loss"].tolist())), lambda batch: 10.0
        ),
    )
    reports = [c[3] for c in trial.writer.calls if c[:1] == ("scalars",) and c[2] == "train"]
    np.testing.assert_array_equal([r["loss"] for r in reports], [[3.5, 7], [5.5, np.nan]])
    rates = reports[0]["tokens_per_second"] / reports[0]["steps_per_second"]
    np.testing.assert_allclose(rates, [3, 5])
    assert reports[0]["flops_per_step"] == 10
    np.testing.assert_array_equal(checked[2][1], [5, np.nan])
    assert [number for number, _ in checked] == [3, 4, 5, 6]


def test_heads_are_reported_of_the_steps_that_observed_them_and_of_no_other() -> None:
    trial = Trial()
    trial.run(7, log_every=3, eval_every=0, maps_every=0, checkpoint_every=0, head_statistics_every=2)
    reports = [call for call in trial.writer.calls if call[0] == "heads"]
    assert [call[1] for call in reports] == [2, 4, 6]
    for _, _, heads in reports:
        np.testing.assert_array_equal(heads["site"]["entropy"], np.full((1, 2), 3.0))


def test_the_host_reads_a_step_only_when_the_next_is_under_way() -> None:
    dispatched: list[int] = []
    read: list[tuple[int, int]] = []

    class Watched:
        """A metric that says when it is looked at."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            read.append((self.number, dispatched[-1]))
            return np.float32(1.0)  # type: ignore[return-value]

    trial = Trial()

    def step(state: Count, batch: Any, observe: bool = False) -> tuple[Count, StepMetrics]:
        dispatched.append(state.step + 1)
        return Count(state.step + 1), StepMetrics({}, {"loss": Watched(state.step + 1)})  # type: ignore[dict-item]

    trial.step = step  # type: ignore[method-assign]
    trial.run(6, log_every=3, eval_every=0, maps_every=0, checkpoint_every=0)
    assert read == [(1, 2), (2, 3), (3, 3), (4, 5), (5, 6), (6, 6)]


def test_a_profile_is_of_the_calls_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial, calls = Trial(), list[Any]()
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, **_: calls.append(folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))

    def step(state: Count, batch: Mapping[str, np.ndarray], observe: bool = False) -> tuple[Count, StepMetrics]:
        calls.append(state.step + 1)
        return trial.step(state, batch, observe)

    profiled, state = ProfiledTrainStep(step, tmp_path, first=3, count=2), Count(0)  # type: ignore[arg-type]
    for number in range(6):
        state, _ = profiled(state, {"number": np.array([number])})  # type: ignore[arg-type, assignment]
    assert calls == [1, 2, str(tmp_path), 3, 4, "stop", 5, 6]
