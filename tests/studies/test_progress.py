"""How far a sweep is: the reports of runs, the order of the table, its lines, its file and its summary."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console

from tests.studies.fake_worker import sweep, trial
from transformer.runs.jsonl_reading import (
    LastMetric,
    MetricName,
    last_metric,
    last_step,
    list_metrics,
    parse_metric_name,
    read_last_records,
    read_records,
)
from transformer.studies.sweeps.sweep_progress import (
    best_finished,
    count_states,
    open_progress_display,
    progress_table,
    read_trial_statuses,
    sort_best_first,
    summarize_sweep,
    write_csv,
)
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore

ROOT = Path(__file__).resolve().parents[2]
LOSS = MetricName("validation", "loss")
LINES = (
    '{"step": 2, "split": "train", "loss": 3.0}\n'
    '{"step": 4, "split": "validation", "loss": 2.0, "exact_match/de": 0.5}\n'
    '{"step": 6, "split": "train", "loss": 1.0}\n'
    '{"step": 6, "split": "validation", "loss": null}\n'
    '{"step": 8, "split": "train", "lo'
)


def test_reports_are_read_up_to_a_torn_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_records(file) == read_last_records(file) == []
    file.write_text(LINES)
    records = read_records(file)
    assert records == read_last_records(file)
    assert len(records) == 4
    assert last_step(records) == 6
    assert last_step([]) == 0
    assert last_metric(records, LOSS) == LastMetric(6, None)
    assert last_metric(records, parse_metric_name("validation/exact_match/de")) == LastMetric(4, 0.5)
    assert last_metric(records, parse_metric_name("test/loss")) is None
    assert list_metrics(records) == ["validation/exact_match/de", "validation/loss", "train/loss"]


def test_the_last_reports_of_a_long_run_are_read_without_the_others(tmp_path):
    line = '{"step": %d, "split": "train", "loss": 1.0}\n'
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(line % step for step in range(5000)))
    found = read_last_records(file)
    assert found[-1]["step"] == 4999
    assert len(found) < 2000
    assert found == read_records(file)[-len(found) :]


@pytest.fixture
def rows(tmp_path):
    """A trial store of six trials, one of every state, and its rows as `read_trial_statuses` finds them."""
    trials = [trial(4, seed=seed) for seed in range(6)]
    trial_store = sweep(tmp_path / "s", trials)
    outcomes = [
        TrialOutcome(TrialState.DONE, 0.75, 4, ""),
        TrialOutcome(TrialState.DONE, 0.5, 4, ""),
        TrialOutcome(TrialState.DIVERGED, None, 3, "loss is nan [at step 3]"),
        TrialOutcome(TrialState.FAILED, None, 0, "disk full, at once"),
    ]
    for each, outcome in zip(trials, outcomes, strict=False):
        with trial_store.hold_trial(each) as lease:
            lease.record_outcome(outcome)
    trial_store.directory(trials[4]).mkdir(parents=True)
    (trial_store.directory(trials[4]) / "metrics.jsonl").write_text(LINES.replace("null", "1.25"))
    with trial_store.hold_trial(trials[4]):
        return trial_store, read_trial_statuses(trial_store, trials, LOSS)


def seeds(rows):
    return [row.trial.config["seed"] for row in rows]


def test_rows_are_what_the_trial_store_and_the_runs_say_and_the_best_come_first(rows):
    _, rows = rows
    assert [row.state.value for row in rows] == ["done", "done", "diverged", "failed", "running", "pending"]
    assert [row.value for row in rows] == [0.75, 0.5, None, None, 1.25, None]
    assert [row.step for row in rows] == [4, 4, 3, 0, 6, 0]
    assert seeds(sort_best_first(rows, maximize=False)) == [1, 0, 4, 2, 3, 5]
    assert seeds(sort_best_first(rows, maximize=True)) == [0, 1, 4, 2, 3, 5]
    assert count_states(rows, 8) == "4 of 8 finished: 2 done, 1 diverged, 1 failed; 1 running, 3 pending"


def test_a_terminal_has_a_table_with_the_best_first_and_no_more_rows_than_fit(rows):
    _, rows = rows
    stream = io.StringIO()
    console = rich.console.Console(file=stream, width=140)
    console.print(progress_table(rows, 8, LOSS, False, 3))
    shown = stream.getvalue()
    names = [row.trial.name for row in sort_best_first(rows, False)]
    places = [shown.find(name) for name in names]
    assert places[:3] == sorted(places[:3])
    assert min(places[:3]) > 0
    assert places[3:] == [-1] * 3
    assert "and 3 more" in shown
    assert "4 of 8 finished" in shown
    stream.truncate(0)
    console.print(progress_table(rows, 8, LOSS, False, 30))
    assert "loss is nan [at step 3]" in stream.getvalue()


def test_elsewhere_a_line_says_what_has_changed(rows):
    _, rows = rows
    stream = io.StringIO()
    watch = open_progress_display(LOSS, False, stream)
    watch.show(rows[:2], 6)
    watch.show(rows[:2], 6)
    first = stream.getvalue().splitlines()
    assert len(first) == 3
    assert first[0].startswith(f"{rows[0].trial.name}  done      step 4  validation/loss 0.75  seed=")
    watch.show(rows, 6)
    watch.close()
    later = stream.getvalue().splitlines()[3:]
    assert [line.split()[1] for line in later[:-1]] == ["diverged", "failed", "running"]
    assert later[0].endswith("loss is nan [at step 3]")
    assert later[-1] == count_states(rows, 6)


def test_the_file_has_every_trial_and_the_summary_the_best(rows):
    trial_store, rows = rows
    rows = [row._replace(trial=row.trial._replace(overrides={"seed": row.trial.config["seed"]})) for row in rows]
    rows[5] = rows[5]._replace(trial=rows[5].trial._replace(overrides={"model.sizes": [1, 2]}))
    with write_csv(trial_store, rows, LOSS).open() as file:
        found = list(csv.DictReader(file))
    assert [line["trial"] for line in found] == [row.trial.name for row in rows]
    assert [line["validation/loss"] for line in found] == ["0.75", "0.5", "", "", "1.25", ""]
    assert [line["seed"] for line in found] == ["0", "1", "2", "3", "4", ""]
    assert found[5]["model.sizes"] == "[1, 2]"
    assert found[3]["message"] == "disk full, at once"
    assert (trial_store.path / found[4]["directory"] / "metrics.jsonl").is_file()
    best = best_finished(rows, maximize=False)
    said = summarize_sweep(trial_store, rows, LOSS, best, "python -m launch.train --config=x.py")
    assert "best: validation/loss 0.5  seed=1" in said
    assert str(trial_store.directory(rows[1].trial)) in said
    assert "train it again  python -m launch.train --config=x.py" in said
    assert "failed: disk full, at once" in said
    assert "--retry_failed" in said
    none = [row for row in rows if row.state != TrialState.DONE]
    assert best_finished(none, maximize=False) is None
    assert "best" not in summarize_sweep(trial_store, none, LOSS, None, "")


def test_a_trial_that_ends_while_it_is_looked_at_has_its_outcome(tmp_path, monkeypatch):
    trial_store, real = sweep(tmp_path / "s", [trial(4)]), TrialStore.state

    def state(self, each):
        found = real(self, each)
        if not (tmp_path / "ended").exists():
            (tmp_path / "ended").touch()
            with trial_store.hold_trial(each) as lease:
                lease.record_outcome(TrialOutcome(TrialState.DONE, 0.5, 4, ""))
        return found

    monkeypatch.setattr(TrialStore, "state", state)
    (row,) = read_trial_statuses(trial_store, trial_store.trials(), LOSS)
    assert (row.state, row.value, row.step) == (TrialState.DONE, 0.5, 4)


def test_compiled_programs_are_packed_with_zlib_in_a_folder_of_ones_own(tmp_path):
    # Better packers are there, and stay for others.
    for name in ("zstandard.py", "compression/zstd.py"):
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text("")
    program = (
        "import os, sys, zlib\nfrom pathlib import Path\nfrom launch.compilation_cache import enable_cache_in\n"
        "folder = Path(sys.argv[1])\nenable_cache_in(folder)\n"
        "assert 'jax' in sys.modules and 'zstandard' not in sys.modules\n"
        "import jax, zstandard\njax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)\n"
        "jax.jit(lambda x: x + 1)(1.0)\n"
        "[zlib.decompress(file.read_bytes()) for file in folder.glob('*-cache')] or sys.exit('nothing is kept')\n"
        "print(oct(folder.stat().st_mode & 0o777))\n"
        "try: enable_cache_in(folder)\n"
        "except RuntimeError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "lib"), str(ROOT)])}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    words = [sys.executable, "-c", program, tmp_path / "compiled"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["0o700", "jax was imported before it was told where its programs are kept"], (
        done.stderr
    )
