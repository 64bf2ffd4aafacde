"""Every toy, and every registered task on every registered model, through the real step and the real loop.

One table: each case runs plain, resumed, mapped, and vectorized with every lane's batch accumulated from parts. Every
registered family and task has a case. `make test` runs every case plain and resumed, and other modes of those that say
so; `make slow` runs the rest. A family that needs the step, the loop or the store to know about it fails here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts.alone import Alone
from tests.contracts.case import Case
from tests.contracts.cases import CASES
from tests.contracts.conftest import MakeAlone
from tests.contracts.metric_names import undefined_metrics
from transformer.attention.capture import CapturedAttention
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.maps.capture_plan import CapturePlan, MapStorageConfig, StoredMaps
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.models.registry import FAMILIES, build, model_config
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.registry import TASKS, build_synthetic_task, task_config
from transformer.training.build import run_startup_checks
from transformer.training.checked_batches import CheckedBatches
from transformer.training.compiled_evaluation import CompiledEvaluation, compile_evaluations
from transformer.training.compiled_probe import compile_planned_probe, plan_probe
from transformer.training.initial_state import trained_parameters
from transformer.training.loop import Reporter, train_loop
from transformer.training.state import TrainState
from transformer.training.vmapped import StackedBatches, stack_states, take_run, vmap_step
from transformer.training.writers.map_writer import MapWriter
from transformer.training.writers.writer import Metrics, MultiWriter, Report, Writer

Record = tuple[int, str, Mapping[str, float]]
MICRO_BATCHES = 4


class Lane(NamedTuple):
    """What one of several vectorized runs has for itself: its key, which draws its batches as well, and its rate."""

    key: int
    rate: float


LANES, VECTORIZED = (Lane(7, 0.1), Lane(8, 0.1), Lane(7, 0.03)), 3  # steps


class Recorder(Writer):
    """A writer that keeps the numbers."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, report: Report) -> None:
        if isinstance(report, Metrics):
            self.records.append((report.step, report.split, dict(report.values)))


class WholeMapsPlan(CapturePlan):
    """A plan whose probe returns, beside what is stored, the maps before they are quantized."""

    def stored_maps(self, maps: Mapping[str, CapturedAttention]) -> Any:
        return {"stored": super().stored_maps(maps), "whole": {site: maps[site].weights for site in maps}}


class Trial:
    """A case's one uninterrupted run, saved half-way; `watched` where it was also measured and mapped."""

    def __init__(self, alone: Alone, folder: Path, *, watched: bool):
        self.alone, self.case, self.setting, self.folder = alone, alone.case, alone.setting, folder
        experiment = alone.experiment
        run_startup_checks(
            dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, head_statistics_every=1)),
            self.setting,
        )
        self.evaluations: list[CompiledEvaluation] = (
            self.measured() if watched or self.case.metric[0] != "train" else []
        )
        self.checkpoints = Checkpoints(folder / "checkpoints", max_to_keep=2)
        self.first = alone.initial(experiment)
        half, steps = self.case.steps // 2, self.case.steps
        self.probe: Callable[[TrainState], Mapping[str, StoredMaps]] = lambda state: {}
        self.whole_maps: dict[int, dict[str, np.ndarray]] = {}
        maps = None
        if watched:
            parts = self.setting.model, self.setting.task, self.first
            plan = plan_probe(*parts, MapStorageConfig(), times=3, parameters="raw")
            whole = WholeMapsPlan(plan.sites, plan.labels, plan.resolutions, plan.sizes)
            self.capture = compile_planned_probe(*parts, self.setting.placement, whole, "raw")
            self.probe = self.capture_maps
            maps = MapWriter(MapStore.open(folder / "maps", plan.sites, plan.labels, "", plan.resolutions, plan.sizes))
        self.final, self.records = self.train(
            alone.step, alone.initial(experiment), steps, half=half, maps=maps, save=self.save
        )

    def capture_maps(self, state: TrainState) -> Mapping[str, StoredMaps]:
        """The maps to be stored; those that they are made of are kept as well."""
        captured: Any = self.capture(state)
        self.whole_maps[int(state.step)] = jax.device_get(captured["whole"])
        return captured["stored"]

    def measured(self) -> list[CompiledEvaluation]:
        """The first evaluation of its task, and how its maps align."""
        chosen = self.setting.evaluations
        chosen = [*chosen[:1], *[each for each in chosen[1:] if each.name == "alignment"]]
        return compile_evaluations(self.setting.model, chosen, self.setting.placement)

    def save(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        self.checkpoints.save(int(state.step), state, {})

    def train(
        self, step: Any, state: TrainState, steps: int, *, half: int = 0, maps: Any = None, save: Any = None
    ) -> tuple[TrainState, list[Record]]:
        recorder = Recorder()
        state = train_loop(
            state,
            step,
            CheckedBatches(self.setting.task.training_batches(seed=5), self.setting.task.interface),
            reporter=Reporter(
                dataclasses.replace(
                    self.alone.experiment.run,
                    steps=steps,
                    log_every=max(steps // 10, 1),
                    # Twice, but where it is their curve that shows learning.
                    eval_every=max(steps // (2 if self.case.metric[0] == "train" else 4), 1),
                    maps_every=half,
                    head_statistics_every=0,
                    checkpoint_every=half,
                ),
                self.evaluations,
                lambda evaluation, state: evaluation(state),
                self.probe,
                MultiWriter(recorder, *([maps] if maps else [])),
                ProgressMonitor(),
            ),
            save=save or (lambda state, progress: None),
        )
        return state, recorder.records


def learned(case: Case, records: Sequence[Record]) -> None:
    split, name, better = case.metric
    curve = [values[name] for _, where, values in records if where == split and name in values]
    assert better(curve[0], curve[-1]), f"{name}: {curve}"


def plain(trial: Trial) -> None:
    """What it should learn it learns, and every metric that it writes is defined."""
    learned(trial.case, trial.records)
    assert undefined_metrics(trial.case, (name for _, _, values in trial.records for name in values)) == []
    trial.case.holds(trial.alone.by_leaf(trial.final))
    assert int(trial.final.step) == trial.case.steps


def reported(trial: Trial) -> None:
    """Every metric of all evaluations of its task is defined."""
    evaluations = compile_evaluations(trial.setting.model, trial.setting.evaluations, trial.setting.placement)
    reports = [evaluation(trial.final) for evaluation in evaluations]
    assert undefined_metrics(trial.case, (name for report in reports for name in report.scalars)) == []


def accumulated(trial: Trial) -> None:
    """Where parts of a batch draw for themselves they still learn; elsewhere `vectorized` holds them to the batch.

    A loss that compares rows is not split.
    """
    if any(objective.compares_rows for objective in trial.setting.task.objectives):
        with pytest.raises(UserError, match=rf"config\.num_microbatches={MICRO_BATCHES} would change the loss"):
            trial.alone.made(MICRO_BATCHES)
        return
    step = jax.jit(trial.alone.made(MICRO_BATCHES), donate_argnums=0)
    _, records = trial.train(step, trial.alone.initial(trial.alone.experiment), trial.case.steps)
    learned(trial.case, records)


def resumed(trial: Trial) -> None:
    """Stopped half-way, restored and continued, it ends on the very bits of the run that was not."""
    half = trial.case.steps // 2
    assert trial.checkpoints.steps() == [half, trial.case.steps]
    abstract = jax.eval_shape(lambda state: state, trial.first)
    state = trial.checkpoints.read(half).restore(abstract)
    state, records = trial.train(trial.alone.step, state, trial.case.steps)
    assert_same_bits(state, trial.final)
    assert_only_trained_parameters_differ(trial)
    last = [values for _, split, values in (trial.records[-1], records[-1])]
    assert last[0].keys() == last[1].keys()


def mapped(trial: Trial) -> None:
    """The maps of every site are probabilities, are stored at their steps, and come back."""
    half, sites = trial.case.steps // 2, trial.setting.model.sites
    labels = trial.setting.task.axis_labels(sites).with_axis_names(sites)
    store = MapStore.open_existing(trial.folder / "maps")
    assert store.steps == (0, half, trial.case.steps)
    for step in store.steps:
        assert trial.whole_maps[step].keys() == {site.name for site in sites}
        for name, weights_LxBxHxQxK in trial.whole_maps[step].items():
            site, stored = store.site(name), store.read(name, step)
            if site.query == site.key:
                assert site.causal == (not np.triu(weights_LxBxHxQxK, 1).any()), name
            entropy = store.statistics(name).names.index("entropy")
            assert np.isfinite(store.statistics(name).values[..., entropy]).all(), name
            for example, (queries, keys) in enumerate(
                zip(labels.tokens[site.query.name], labels.tokens[site.key.name], strict=True)
            ):
                seen = weights_LxBxHxQxK[:, example, :, : len(queries)]
                # What attends to its own past has seen nothing before its first position.
                nothing_yet = site.query == site.key and not seen[:, :, 0].any()
                np.testing.assert_allclose(seen[:, :, int(nothing_yet) :].sum(-1), 1, atol=1e-5, err_msg=name)
                kept = stored[example, :, :, : len(queries), : len(keys)]
                np.testing.assert_allclose(kept, seen[..., : len(keys)], atol=1 / 255, err_msg=name)
    if trial.case.attends:
        (name,) = labels.gold_alignments or {}
        assert looks_right(store, name, trial.case.steps) >= trial.case.attends
        assert looks_right(store, name, 0) < trial.case.attends


def vectorized(trial: Trial) -> None:
    """Lanes with keys, batches and rates of their own, cut into microbatches, are their single whole runs.

    A batch is cut where the loss is linear in it. One program holds both: what cutting or the lanes did wrong differs.
    """
    task, step = trial.setting.task, trial.alone.step
    states = [trial.alone.initial(trial.case.descending(lane.rate), lane.key) for lane in LANES]
    together = jax.jit(vmap_step(trial.alone.made(1 if trial.case.sampled else MICRO_BATCHES)))
    state = stack_states(states, trial.setting.placement)
    batches = StackedBatches([task.training_batches(lane.key) for lane in LANES])
    for number in range(VECTORIZED):
        state, seen = together(state, batches[number])
        for lane, of_lane in enumerate(LANES):
            # As the loop calls it: the program is the one that trained.
            states[lane], metrics = step(states[lane], task.training_batches(of_lane.key)[number], False)
            found = {name: float(value[lane]) for name, value in (seen.denominators | seen.values).items()}
            expected = {name: float(value) for name, value in (metrics.denominators | metrics.values).items()}
            assert found == pytest.approx(expected, rel=trial.case.rounding, abs=1e-6), f"lane {lane}, step {number}"
    for lane, alone in enumerate(states):
        here, there = (
            leaves_by_path(trial.alone.by_leaf(s._replace(key=jax.random.key_data(s.key))))
            for s in (take_run(state, lane), alone)
        )
        for path, leaf in there.items():
            # What is zero but for rounding, such as the bias of a key, has no digits to compare.
            atol = 10 * trial.case.rounding * max(np.abs(leaf).max(initial=0), 0.01)
            np.testing.assert_allclose(here[path], leaf, rtol=0, atol=atol, err_msg=f"lane {lane}: {path}")
    assert together._cache_size() == step._cache_size() == 1


def looks_right(store: MapStore, site: str, step: int) -> float:
    """The share of queries whose largest weight lies on their link."""
    weights_BxLxHxQxK = store.read(site, step)
    assert store.labels.gold_alignments is not None
    return float(
        np.mean(
            [
                weights_BxLxHxQxK[example, 0, 0, link.query].argmax() == link.key
                for example, links in enumerate(store.labels.gold_alignments[site])
                for link in links
            ]
        )
    )


def raw(leaf: Any) -> bytes:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


def assert_same_bits(state: TrainState, other: TrainState) -> None:
    here, there = leaves_by_path(state), leaves_by_path(other)
    assert here.keys() == there.keys()
    assert [path for path in here if raw(here[path]) != raw(there[path])] == []


def assert_only_trained_parameters_differ(trial: Trial) -> None:
    """All parameters that an objective trains have moved, and no other has."""
    here, there = (leaves_by_path(trial.alone.by_leaf(state).variables.params) for state in (trial.first, trial.final))
    optimizers = trial.setting.optimizers
    trained = set().union(*(trained_parameters(o, optimizers[o.name], here) for o in trial.setting.task.objectives))
    assert trained == {path for path in here if raw(here[path]) != raw(there[path])}


MODES = {mode.__name__: mode for mode in (plain, reported, accumulated, resumed, mapped, vectorized)}
ROWS = [
    pytest.param(case, mode, id=f"{case.name}-{mode}", marks=[] if mode in case.daily else [pytest.mark.slow])
    for case in CASES
    for mode in MODES
    if mode != "accumulated" or case.sampled
]


@pytest.fixture(scope="module")
def trial(alone: MakeAlone, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case, str], Trial]:
    """A case, trained once for all its modes; it is watched where its maps are tested, for which it may train twice."""

    @functools.lru_cache(maxsize=2)
    def made(name: str, watched: bool) -> Trial:
        return Trial(alone(name), tmp_path_factory.mktemp("contract"), watched=watched)

    return lambda case, mode: made(case.name, mode == "mapped" or "mapped" in case.daily)


@pytest.mark.parametrize(("case", "mode"), ROWS)
def test_contract(case: Case, mode: str, trial: Callable[[Case, str], Trial]) -> None:
    MODES[mode](trial(case, mode))


# Of every family and every task one of the table's sections.
OF_FAMILY = {case.model["family"]: case.model for case in CASES}
OF_TASK = {case.task["name"]: case.config["task"] for case in CASES}


def test_every_family_and_every_task_is_in_the_table() -> None:
    assert set(FAMILIES.all_names()) <= set(OF_FAMILY)
    assert set(TASKS.all_names()) <= set(OF_TASK)


@pytest.mark.parametrize("task", TASKS.all_names())
def test_a_family_that_does_not_serve_a_task_is_refused(task: str) -> None:
    interface = build_synthetic_task(task_config(OF_TASK[task])).interface
    for family, model in OF_FAMILY.items():
        if interface.signature not in FAMILIES[family].signatures:
            with pytest.raises(UserError, match=rf"config\.model\.family={family} supports .*, but the task needs"):
                build(model_config(model), interface, Precision())
