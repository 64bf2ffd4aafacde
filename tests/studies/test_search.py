"""Who proposes trials: the grid, chance, and Optuna told of what became of its own proposals."""

import importlib.util
import itertools
import math
import subprocess
import sys
from pathlib import Path
from random import Random

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
    # Optuna knows what became of all but the last.
    search_algorithm.suggest(trial_store)
    told = search_algorithm._study.get_trials()
    assert [trial.state.name for trial in told[:40]] == [
        "COMPLETE" if state == TrialState.DONE else "PRUNED" for state in states
    ]
    assert not (ROOT / "optuna.journal").exists()


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
def test_a_proposal_that_was_never_planned_is_given_up(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    search_algorithm = open_optuna_search("tpe", trial_store, base(), RATES, seed=0, maximize=False)
    lost, kept = search_algorithm.suggest(trial_store), search_algorithm.suggest(trial_store)
    assert lost != kept
    trial_store.append_trials([kept])
    search_algorithm.suggest(trial_store)
    assert [trial.state.name for trial in search_algorithm._study.get_trials()] == ["FAIL", "RUNNING", "RUNNING"]
    with trial_store.hold_trial(kept) as lease:
        lease.record_outcome(TrialOutcome(TrialState.DONE, 0.25, 3, ""))
    # Another process, after a line that a kill tore.
    with (tmp_path / "optuna.journal").open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    again = open_optuna_search("tpe", TrialStore.open_existing(tmp_path), base(), RATES, seed=0, maximize=False)
    again.suggest(trial_store)
    told = again._study.get_trials()
    assert [trial.state.name for trial in told] == ["FAIL", "COMPLETE", "FAIL", "RUNNING"]
    assert told[1].value == 0.25


@needs_optuna
def test_a_proposal_that_cannot_be_is_passed_over(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    heads = sweep.choice("model.heads", [3, 2, 5, 7])
    search_algorithm = open_optuna_search("tpe", trial_store, base(), heads, seed=0, maximize=False)
    trial = search_algorithm.suggest(trial_store)
    assert trial.overrides == {"model.heads": 2}
    trial_store.append_trials([trial])
    assert search_algorithm.suggest(trial_store) is None


@needs_optuna
def test_hyperband_needs_reports_before_the_last_step(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "hyperband"})
    for every in (0, 9, 10):
        with pytest.raises(UserError, match=f"config.eval_every={every} gives none before step 9"):
            open_optuna_search("hyperband", trial_store, base(steps=9, eval_every=every), RATES, seed=0, maximize=False)


@needs_optuna
def test_what_cannot_be_proposed_or_reached_is_one_line(tmp_path):
    trial_store = TrialStore.open(tmp_path, {"engine": "tpe"})
    search_algorithm = open_optuna_search(
        "tpe", trial_store, base(), sweep.choice("model.heads", [3]), seed=0, maximize=False
    )
    with pytest.raises(UserError, match=r"in the trial model\.heads=3"):
        search_algorithm.suggest(trial_store)
    with pytest.raises(UserError, match="--storage cannot be used: "):
        open_optuna_search("tpe", trial_store, base(), RATES, seed=0, maximize=False, url="nosuchdatabase://here")


@needs_optuna
def test_sweeps_of_one_database_are_studies_of_their_own_though_only_their_directories_differ(tmp_path):
    """Each would end the other's trials, as proposals that were never planned, and propose what the other has left."""
    url = f"sqlite:///{tmp_path}/studies.db"
    proposed = []
    for folder in ("a/rates", "b/rates"):
        (tmp_path / folder).mkdir(parents=True)
        trial_store = TrialStore.open(tmp_path / folder, {"engine": "tpe"})
        for _ in range(2):  # as two workers
            search = open_optuna_search("tpe", trial_store, base(), RATES, seed=0, maximize=False, url=url)
            trial = search.suggest(trial_store)
            trial_store.append_trials([trial])
            proposed.append(trial.overrides)
    assert proposed[:2] == proposed[2:]
    assert proposed[0] != proposed[1]


def known_to(search_algorithm):
    """What Optuna knows of each trial: how it ended, its value, its reports, and the rungs that it has come to."""
    return {
        trial.user_attrs["trial"]: (
            trial.state.name,
            trial.value,
            trial.intermediate_values,
            {name for name in trial.system_attrs if name.startswith("completed_rung")},
            trial.params,
        )
        for trial in search_algorithm._study.get_trials()
        if "trial" in trial.user_attrs
    }


def connected(trial_store, engine="tpe", space=RATES):
    return open_optuna_search(engine, trial_store, base(steps=9, eval_every=1), space, seed=0, maximize=False)


def damaged(content):
    """A journal with a bit changed, torn in its middle, without a line, cut, empty, or something else."""
    random = Random(4)
    for _ in range(12):
        place, bit = random.randrange(len(content)), 1 << random.randrange(8)
        yield content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
    lines = content.splitlines(keepends=True)
    for _ in range(3):
        place = random.randrange(len(content) - 100)
        yield content[:place] + content[place + random.randrange(1, 100) :]
        yield b"".join(lines[: random.randrange(1, len(lines))])
    line = random.randrange(len(lines) - 1)
    yield b"".join([*lines[:line], *lines[line + 1 :]])
    yield b"".join([*lines[:line], lines[line], *lines[line:]])
    yield b""
    yield b"[" * 100_000 + b"\n"
    yield b'{"op_code": 0, "worker_id": "w", "study_name": "s", "directions": [1]}\n'  # as Optuna's own backend writes


@needs_optuna
def test_a_damaged_journal_is_made_anew_from_the_trial_store(tmp_path, capsys):
    trial_store, search_algorithm = run(tmp_path, "tpe", 8)
    search_algorithm.suggest(trial_store)
    journal = tmp_path / "optuna.journal"
    whole, names = journal.read_bytes(), {trial.name for trial in trial_store.trials()}
    expected = {name: about for name, about in known_to(connected(trial_store)).items() if name in names}
    assert len(expected) == 8
    told = 0
    for content in damaged(whole):
        journal.write_bytes(content)
        again = connected(trial_store)
        assert again.suggest(trial_store).name not in names
        assert {name: about for name, about in known_to(again).items() if name in names} == expected
        # It is whole now: the next worker says nothing of it.
        told += "it is made anew from the trial store" in capsys.readouterr().err
        connected(trial_store).suggest(trial_store)
        assert capsys.readouterr().err == ""
    assert told >= 16
    journal.unlink()
    assert known_to(connected(trial_store)) == {}
    again = connected(trial_store)
    again.suggest(trial_store)
    assert {name: about for name, about in known_to(again).items() if name in names} == expected


@needs_optuna
def test_a_journal_that_knows_more_than_the_trial_store_is_made_anew(tmp_path, capsys):
    """As of a sweep whose trial_store was put back from a copy, or of another one."""
    run(tmp_path / "long", "tpe", 8)
    short, _ = run(tmp_path / "short", "tpe", 3, seed=7)
    (tmp_path / "short" / "optuna.journal").write_bytes((tmp_path / "long" / "optuna.journal").read_bytes())
    search_algorithm = connected(short)
    search_algorithm.suggest(short)
    assert "it knows values that the trial store does not" in capsys.readouterr().err
    trials = {trial.name for trial in short.trials()}
    assert (
        {name for name, (state, *_) in known_to(search_algorithm).items() if state == "COMPLETE"}
        <= trials
        <= set(known_to(search_algorithm))
    )


@needs_optuna
def test_a_worker_whose_journal_is_taken_away_goes_on(tmp_path):
    """Another worker makes a damaged journal anew while this one has read it."""
    trial_store, first = run(tmp_path, "hyperband", 6)
    first._tell_outcomes(trial_store)
    expected = known_to(first)
    journal = tmp_path / "optuna.journal"
    journal.write_bytes(journal.read_bytes().replace(b'"operation"', b'"operatioN"', 1))
    connected(trial_store, "hyperband")
    trial = first.suggest(trial_store)
    trial_store.append_trials([trial])
    assert not first.should_prune(trial, 1, 0.5)
    for name, about in expected.items():
        assert known_to(first)[name] == about
    assert known_to(first)[trial.name][:3] == ("RUNNING", None, {1: 0.5})
    assert sorted(path.name for path in tmp_path.glob("optuna*")) == ["optuna.journal", "optuna.journal.lock"]
