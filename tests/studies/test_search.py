"""Who proposes trials: the grid, chance, and Optuna told of what became of its own proposals."""

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies.fake_worker import Sleeping
from tests.studies.tiny import base
from transformer.config import UserError
from transformer.studies.sweeps.optuna_search import check_installed, open_optuna_search
from transformer.studies.sweeps.search_algorithm import choose_algorithm, plan_trials, resolve_num_trials
from transformer.studies.sweeps.search_space import SearchSpaceBuilder
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import make_trial, trial_from_config
from transformer.studies.sweeps.worker import run_worker

ROOT = Path(__file__).resolve().parents[2]
sweep = SearchSpaceBuilder()
GRID = sweep.product(sweep.choice("model.norm_placement", ["pre", "post"]), sweep.choice("seed", [1, 2, 3]))
RATES = sweep.log_uniform("optimizer.learning_rate", 1e-4, 1e-1)
needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="the extra `sweep`")


def overrides(trials):
    return [dict(trial.overrides) for trial in trials]


def test_a_trial_is_named_by_its_resolved_config():
    first = make_trial(base(), {"optimizer.learning_rate": 1e-3})
    assert make_trial(base(), {}) == first._replace(overrides={})  # what stands there already
    others = [{"seed": 2}, {"optimizer.learning_rate": 2e-3}, {"model.norm_placement": "post"}]
    assert len({make_trial(base(), each).name for each in others} | {first.name}) == 4
    with pytest.raises(UserError, match=r"width.* \(in the trial model.heads=3\)$"):
        make_trial(base(), {"model.heads": 3})


def test_a_grid_is_every_point_in_order_and_less_of_it_its_beginning():
    expected = [
        {"model.norm_placement": place, "seed": seed} for place, seed in itertools.product(["pre", "post"], [1, 2, 3])
    ]
    assert overrides(plan_trials("grid", base(), GRID, 6, 0)) == expected
    assert overrides(plan_trials("grid", base(), GRID, 4, 0)) == expected[:4]
    assert overrides(plan_trials("grid", base(), GRID, 99, 0)) == expected


def test_chance_repeats_nothing_and_follows_from_the_seed():
    first = plan_trials("random", base(), GRID, 4, 7)
    assert len({trial.name for trial in first}) == 4
    assert plan_trials("random", base(), GRID, 4, 7) == first
    everything = plan_trials("random", base(), GRID, 99, 7)
    assert everything[:4] == first
    assert {trial.name for trial in everything} == {trial.name for trial in plan_trials("grid", base(), GRID, 6, 0)}
    assert plan_trials("random", base(), GRID, 6, 8) != everything
    rates = plan_trials("random", base(), sweep.product(RATES, sweep.integers("seed", 1, 9)), 20, 0)
    assert plan_trials("random", base(), sweep.product(RATES, sweep.integers("seed", 1, 9)), 5, 0) == rates[:5]
    assert len({trial.name for trial in rates}) == 20
    assert all(1e-4 <= trial.overrides["optimizer.learning_rate"] <= 1e-1 for trial in rates)


def test_points_that_make_one_config_are_one_trial():
    twice = sweep.chain(GRID, sweep.choice("seed", [1, 2]))
    assert twice.num_points == 8
    assert len(plan_trials("grid", base(), twice, 8, 0)) == 6


def test_the_engine_and_the_total_follow_from_the_space():
    assert [choose_algorithm(None, space) for space in (GRID, RATES)] == ["grid", "random"]
    assert choose_algorithm("tpe", GRID) == "tpe"
    assert [resolve_num_trials(None, GRID), resolve_num_trials(4, RATES)] == [6, 4]
    for make, says in (
        (
            lambda: choose_algorithm("annealing", GRID),
            "--search_algorithm=annealing is unknown; there are grid, random",
        ),
        (lambda: choose_algorithm("grid", RATES), "--search_algorithm=grid needs a finite space"),
        (lambda: resolve_num_trials(None, RATES), "say how many trials there are to be, as --num_trials=20"),
        (lambda: resolve_num_trials(0, GRID), "--num_trials=0 must be at least 1"),
    ):
        with pytest.raises(UserError) as told:
            make()
        assert says in str(told.value)


def test_grid_and_chance_do_without_optuna_and_the_others_name_the_extra(monkeypatch):
    program = (
        "import sys\nsys.modules['optuna'] = None\n"
        "from tests.studies.tiny import base\nfrom tests.studies.test_search import GRID\n"
        "from transformer.studies.sweeps import optuna_search\n"
        "from transformer.studies.sweeps.search_algorithm import plan_trials\n"
        "print(len(plan_trials('grid', base(), GRID, 6, 0)), len(plan_trials('random', base(), GRID, 6, 0)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "6 6\n", done.stderr
    monkeypatch.setattr("transformer.studies.sweeps.optuna_search.find_spec", lambda name: None)
    for engine in ("tpe", "gp", "hyperband"):
        with pytest.raises(UserError, match=r"needs Optuna, .*pip install optuna"):
            check_installed(engine)
    monkeypatch.setattr("transformer.studies.sweeps.optuna_search.find_spec", lambda name: name == "optuna" or None)
    check_installed("tpe")
    with pytest.raises(UserError, match="--search_algorithm=gp needs PyTorch"):
        check_installed("gp")


class Bowl(Sleeping):
    """Trials whose loss falls with every step toward how far their rate is from 0.01, in orders of magnitude."""

    def train(self, trial, directory, report):
        rate = trial.config["optimizer"]["learning_rate"]
        if rate > 0.05:
            raise FloatingPointError("loss is nan")
        about = {"ticks": 9, "loss": 1.0 + abs(math.log10(rate) + 2)}
        super().train(trial_from_config({}, about), directory, report)


def run(path, engine, total, space=RATES, maximize=False, seed=0):
    facts = {"engine": engine, "space": space.describe(), "metric": "validation/loss", "direction": maximize}
    trial_store = TrialStore.open(path, facts)
    search_algorithm = open_optuna_search(
        engine, trial_store, base(steps=9, eval_every=1), space, seed=seed, maximize=maximize
    )
    run_worker(trial_store, search_algorithm, total=total, metric="validation/loss", trainer=Bowl())
    return trial_store, search_algorithm


@needs_optuna
def test_tpe_goes_where_the_loss_was_low_and_goes_on_where_it_stopped(tmp_path):
    trial_store, _ = run(tmp_path, "tpe", 15)
    trial_store, search_algorithm = run(tmp_path, "tpe", 40)
    trials = trial_store.trials()
    assert len({trial.name for trial in trials}) == len(trials) == 40
    states = [trial_store.state(trial) for trial in trials]
    assert set(states) <= {TrialState.DONE, TrialState.DIVERGED}
    rates = [math.log10(trial.overrides["optimizer.learning_rate"]) for trial in trials]
    near = [abs(rate + 2) < 0.5 for rate in rates]
    # Of chance's draws a third are as near.
    assert sum(near[-20:]) > 12, rates
    told = search_algorithm.build_study().get_trials()
    assert [trial.state.name for trial in told] == [
        "COMPLETE" if state == TrialState.DONE else "PRUNED" for state in states
    ]
    # The trial store is all there is of it.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.json", "trials", "trials.jsonl"]


@needs_optuna
def test_a_finite_space_is_exhausted_by_tpe_without_doubles(tmp_path):
    trial_store, _ = run(tmp_path, "tpe", 6, space=GRID)
    assert len({trial.name for trial in trial_store.trials()}) == 6
    trial_store, _ = run(tmp_path, "tpe", 9, space=GRID)
    assert len(trial_store.trials()) == 6


@needs_optuna
def test_hyperband_prunes_the_worse_and_never_the_best(tmp_path):
    trial_store, _ = run(tmp_path, "hyperband", 24)
    outcomes = [trial_store.outcome(trial) for trial in trial_store.trials()]
    pruned = [each for each in outcomes if each.state == TrialState.PRUNED]
    done = [each for each in outcomes if each.state == TrialState.DONE]
    assert pruned
    assert done
    assert all(1 <= each.step < 9 and each.value is not None for each in pruned)
    assert all(each.step == 9 for each in done)
    assert len(done) < len(pruned)


@needs_optuna
def test_what_optuna_is_told_follows_from_the_trial_store_alone(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    search_algorithm = open_optuna_search("tpe", trial_store, base(), RATES, seed=0, maximize=False)
    first = search_algorithm.suggest()
    # A proposal whose worker died before it was planned is made again.
    assert search_algorithm.suggest() == first
    trial_store.append_trials([first])
    second = search_algorithm.suggest()
    trial_store.append_trials([second])
    with trial_store.hold_trial(second) as lease:
        lease.record_outcome(TrialOutcome(TrialState.DONE, 0.25, 3, ""))
    again = open_optuna_search("tpe", TrialStore.open_existing(tmp_path), base(), RATES, seed=0, maximize=False)
    told = again.build_study().get_trials()
    assert [(trial.state.name, trial.value) for trial in told] == [("RUNNING", None), ("COMPLETE", 0.25)]
    assert again.suggest() == search_algorithm.suggest() not in (first, second)


@needs_optuna
def test_a_proposal_that_cannot_be_is_passed_over(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    heads = sweep.choice("model.heads", [3, 2, 5, 7])
    search_algorithm = open_optuna_search("tpe", trial_store, base(), heads, seed=0, maximize=False)
    trial = search_algorithm.suggest()
    assert trial.overrides == {"model.heads": 2}
    trial_store.append_trials([trial])
    assert search_algorithm.suggest() is None


@needs_optuna
def test_hyperband_needs_reports_before_the_last_step(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "hyperband"})
    for every in (0, 9, 10):
        with pytest.raises(UserError, match=f"config.eval_every={every} gives none before step 9"):
            open_optuna_search("hyperband", trial_store, base(steps=9, eval_every=every), RATES, seed=0, maximize=False)


@needs_optuna
def test_what_cannot_be_proposed_is_one_line(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    search_algorithm = open_optuna_search(
        "tpe", trial_store, base(), sweep.choice("model.heads", [3]), seed=0, maximize=False
    )
    with pytest.raises(UserError, match=r"in the trial model\.heads=3"):
        search_algorithm.suggest()


def connected(trial_store, engine="hyperband"):
    return open_optuna_search(engine, trial_store, base(steps=9, eval_every=1), RATES, seed=0, maximize=False)


def known_to(search_algorithm):
    """What Optuna knows of each trial: how it ended, its value, its reports, and the rungs that it has come to."""
    return [
        (trial.state.name, trial.value, trial.intermediate_values, trial.system_attrs, trial.params)
        for trial in search_algorithm.build_study().get_trials()
    ]


@needs_optuna
@pytest.mark.filterwarnings("ignore:PartialFixedSampler")
def test_an_infinite_space_is_not_exhausted_where_the_sampler_repeats_itself(tmp_path, monkeypatch):
    space = sweep.chain(sweep.choice("seed", [1, 2]), RATES)
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    search_algorithm = open_optuna_search("tpe", trial_store, base(), space, seed=0, maximize=False)
    sampler = importlib.import_module("optuna").samplers.PartialFixedSampler
    make_sampler = search_algorithm._make_sampler
    monkeypatch.setattr(search_algorithm, "_make_sampler", lambda seed: sampler({"member": 0}, make_sampler(seed)))
    for _ in range(5):
        trial_store.append_trials([search_algorithm.suggest()])
    assert len(trial_store.trials()) == 5


@needs_optuna
@pytest.mark.parametrize("engine", ["tpe", "hyperband"])
def test_another_worker_is_told_the_same_and_suggests_the_same(tmp_path, engine):
    trial_store, search_algorithm = run(tmp_path, engine, 12)
    other = connected(TrialStore.open_existing(tmp_path), engine)
    known = known_to(search_algorithm)
    assert known_to(other) == known
    assert {state for state, *_ in known} >= {"COMPLETE", "PRUNED"}
    if engine == "hyperband":
        for trial, (_, _, reports, rungs, _) in zip(trial_store.trials(), known, strict=True):
            last = trial_store.outcome(trial).step
            assert set(reports) == set(range(1, last + 1) if last < 9 else range(1, 9))
            assert set(rungs) <= {f"completed_rung_{number}" for number in range(3)}
    assert other.suggest() == search_algorithm.suggest()


@needs_optuna
def test_hyperband_compares_with_what_other_workers_have_reported(tmp_path):
    trial_store, _ = run(tmp_path, "hyperband", 12)
    best = min(trial_store.outcome(trial).value or math.inf for trial in trial_store.trials())
    search_algorithm = connected(trial_store)
    stopped = {value: 0 for value in (best / 100, 100 * best)}
    for value in [*stopped] * 4:  # not every bracket stops trials early
        trial = search_algorithm.suggest()
        trial_store.append_trials([trial])
        directory = trial_store.directory(trial)
        directory.mkdir(parents=True)
        for step in range(1, 10):
            with (directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "split": "validation", "loss": value}) + "\n")
            stops = search_algorithm.should_prune(trial, step, value)
            # A resumed trial comes to a step again, and another worker is told the same.
            assert connected(trial_store).should_prune(trial, step, value) == stops
            if stops:
                assert step < 9  # nothing is saved by stopping at the last step
                stopped[value] += 1
                break
    assert stopped[best / 100] == 0 < stopped[100 * best]


@needs_optuna
def test_a_trial_that_is_not_of_the_space_is_told_of(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    trial_store.append_trials([make_trial(base(), {"seed": 2})])
    search_algorithm = open_optuna_search("tpe", trial_store, base(), RATES, seed=0, maximize=False)
    with pytest.raises(UserError, match="is not a point of the search space"):
        search_algorithm.suggest()
