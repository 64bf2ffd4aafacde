"""The listing of a folder of runs: states, metrics, conditions, orders, groups, and files of any kind."""

import json
import os
from pathlib import Path

import pytest

from tests.studies.written_runs import CONFIG, learning_curve, with_values, write_run
from transformer.config import ABSENT, UserError
from transformer.runs.jsonl_reading import MetricName
from transformer.runs.run_directory import RunDirectory
from transformer.studies.run_listing.formatting import format_json, group_values, plain_lines, problem_lines, runs_table
from transformer.studies.run_listing.listing import Listing, RunIndex
from transformer.studies.run_listing.run_summary import RunState, RunSummary
from transformer.studies.run_listing.selection import (
    ListedRuns,
    condition_keys,
    differing_keys,
    group_runs,
    select_runs,
    short_keys,
    sort_runs,
    table_keys,
)
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import trial_from_config
from transformer.system.terminal import format_size

LOSS, ACCURACY = MetricName("validation", "loss"), MetricName("validation", "accuracy")


def line(step: int, split: str = "validation", **values: float | None) -> dict:
    return {"step": step, "split": split, **values}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: their best losses are 1, 2 and 3, the last of the first run is worse."""
    write_run(tmp_path / "a", lines=[line(500, loss=1.0, accuracy=0.5), line(1000, loss=1.5, accuracy=0.7)])
    write_run(tmp_path / "deep" / "b", {"seed": 1, "model.width": 64}, lines=[line(500, loss=2.0)])
    write_run(tmp_path / "c", {"seed": 2, "model.norm_placement": "post"}, lines=[line(1000, loss=3.0)])
    for age, name in enumerate(("deep/b", "c", "a")):
        for file in (tmp_path / name).iterdir():
            os.utime(file, (1e9 - 1000 * age, 1e9 - 1000 * age))
    return tmp_path


@pytest.fixture
def listing(folder: Path) -> Listing:
    return RunIndex(folder).read()


def names(runs: list[RunSummary]) -> list[str]:
    return [run.name for run in runs]


def only_run(folder: Path) -> RunSummary:
    (run,) = RunIndex(folder).read().runs
    return run


# States


def state_of(folder: Path, **arguments) -> RunState:
    write_run(folder / "run", **arguments)
    return only_run(folder).state


def test_a_run_whose_last_step_is_logged_or_saved_is_finished(tmp_path):
    assert state_of(tmp_path / "logged", lines=[line(1000, loss=1.0)]) is RunState.FINISHED
    assert state_of(tmp_path / "short", lines=[line(999, loss=1.0)]) is RunState.STOPPED
    (tmp_path / "short" / "run" / "checkpoints" / "1000").mkdir(parents=True)
    assert only_run(tmp_path / "short").state is RunState.FINISHED
    assert only_run(tmp_path / "short").step == 1000


def test_a_run_that_a_process_holds_is_running(tmp_path):
    config = with_values(CONFIG, {})
    with RunDirectory.claim(tmp_path / "run", config):
        assert only_run(tmp_path).state is RunState.RUNNING
    assert only_run(tmp_path).state is RunState.STOPPED


@pytest.mark.parametrize(
    ("starts", "state"),
    [
        ([{"error": "TrainingDiverged: steps 1 to 3 made no update"}], RunState.DIVERGED),
        ([{"error": "NonFiniteError: a map is not finite"}], RunState.DIVERGED),
        ([{"error": "OSError: no space"}], RunState.FAILED),
        ([{"error": "OSError: no space"}, {}], RunState.STOPPED),  # started again since
        ([{"diverged_at": 7}], RunState.DIVERGED),
        ([{"converted": {"from": "x"}}], RunState.CONVERTED),
    ],
)
def test_a_start_says_how_it_ended(tmp_path, starts, state):
    assert state_of(tmp_path, starts=starts) is state


def test_a_last_loss_that_is_not_finite_is_divergence(tmp_path):
    lines = [line(1, "train", loss=3.0), line(2, "train", loss=None)]
    assert state_of(tmp_path / "a", lines=lines) is RunState.DIVERGED
    assert state_of(tmp_path / "b", lines=lines[::-1]) is RunState.STOPPED


def test_an_error_that_ends_a_run_is_recorded_and_a_stop_is_not(tmp_path):
    from transformer.runs.exceptions import RunStopped

    with RunDirectory.claim(tmp_path / "run", with_values(CONFIG, {})) as directory:
        with pytest.raises(ZeroDivisionError), directory.record_error():
            _ = 1 / 0
        assert directory.starts()[-1].error == "ZeroDivisionError: division by zero"
    assert (only_run(tmp_path).state, only_run(tmp_path).problems) == (RunState.FAILED, ("division by zero",))
    with RunDirectory.claim(tmp_path / "run", with_values(CONFIG, {})) as directory:
        with pytest.raises(RunStopped), directory.record_error():
            raise RunStopped("saved")
        assert directory.starts()[-1].error is None
    assert only_run(tmp_path).state is RunState.STOPPED


def test_the_trials_of_a_sweep_are_its_runs_and_the_sweep_counts_them(tmp_path):
    trials = [trial_from_config({"seed": seed}, with_values(CONFIG, {"seed": seed})) for seed in range(4)]
    store = TrialStore.open(
        tmp_path / "rates", {"config": CONFIG, "metric": "validation/speed", "direction": "maximize"}
    )
    (study,) = RunIndex(tmp_path).read().studies  # of which no trial is planned yet
    assert (study.state, study.counts) == (RunState.STOPPED, "0 of 0 ended")
    store.append_trials(trials)
    for trial, state in zip(trials, (TrialState.DONE, TrialState.DIVERGED, TrialState.PRUNED), strict=False):
        with store.hold_trial(trial) as lease:
            lease.record_outcome(
                TrialOutcome(state, 1.0, 10, "the loss is not finite" if state.value[1] == "i" else "")
            )
        (store.directory(trial) / "config.json").write_text(json.dumps(trial.config))
        (store.directory(trial) / "metrics.jsonl").write_text(json.dumps(line(10, speed=3.0)))
    listing = RunIndex(tmp_path).read()
    assert [run.state.value for run in sort_runs(listing, listing.runs, "config.seed")] == [
        "finished",
        "diverged",
        "pruned",
    ]
    assert {run.files.study for run in listing.runs} == {"rates"}
    assert listing.runs[0].name == f"rates/trials/{listing.runs[0].files.path.name}"
    (study,) = listing.studies
    assert (study.name, study.kind, study.state) == ("rates", "sweep", RunState.STOPPED)
    assert study.counts == "3 of 4 ended: 1 pruned, 1 diverged"
    some = ListedRuns(listing, listing.runs[:1], [], [])
    assert some.studies() == ListedRuns(listing, listing.runs, [], []).studies() == [study]
    assert ListedRuns(listing, [], [], []).studies() == []
    assert listing.direction(MetricName("validation", "speed")) == "maximize"
    assert listing.direction(LOSS) == "minimize"


def test_what_is_no_run_is_left_out(tmp_path):
    write_run(tmp_path / "run", lines=learning_curve(1.0, 100, 10, 0))
    (tmp_path / "run" / "checkpoints" / "5" / "state").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "5" / "config.json").write_text("{}")
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / ".hidden" / "run").mkdir(parents=True)
    (tmp_path / ".hidden" / "run" / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert names(RunIndex(tmp_path).read().runs) == ["run"]
    assert names(RunIndex(tmp_path / "run").read().runs) == ["."]
    for name, says in (("absent", "is missing"), ("run/config.json", "is a file")):
        with pytest.raises(UserError, match=says):
            RunIndex(tmp_path / name)


# Conditions, orders, groups


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], ["a", "c", "deep/b"]),
        (["state=finished"], ["a", "c"]),
        (["state!=finished"], ["deep/b"]),
        (["config.model.width=64"], ["deep/b"]),
        (["config.model.width=64.0"], ["deep/b"]),
        (["config.model.width!=64"], ["a", "c"]),
        (["config.model.width>64"], ["a", "c"]),
        (["config.model.width>=64", "config.seed<2"], ["a", "deep/b"]),
        (["config.model.norm_placement=p*t"], ["c"]),
        (["config.model.norm_placement=post"], ["c"]),
        (["config.model.norm_placement=pos"], []),
        (["validation/loss<=2"], ["a", "deep/b"]),
        (["validation/loss<2"], ["a"]),
        (["validation/accuracy>0"], ["a"]),
        (["name=deep/*"], ["deep/b"]),
        (["step<1000"], ["deep/b"]),
        (["age>2d"], ["a", "c", "deep/b"]),
        (["age<2h"], []),
        (["size<1MB"], ["a", "c", "deep/b"]),
        (["size>1MB"], []),
    ],
)
def test_runs_are_chosen_by_conditions(listing, conditions, expected):
    assert sorted(names(select_runs(listing, conditions))) == expected


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("state", "is no condition: write KEY=VALUE"),
        ("=3", "is no condition"),
        ("stat=running", "unknown key 'stat': did you mean 'state'"),
        ("config.model.widht=3", "did you mean 'config.model.width'"),
        ("validation/los<3", "did you mean 'validation/loss'"),
        ("model.width=3", "did you mean 'config.model.width'"),
        ("age<2y", "is no number: write 90s, 15m, 2h or 3d"),
        ("size>big", "is no number: write 500kB, 25MB or 1GB"),
        ("step<many", "'many' is no number"),
        ("age=2h", "write age<2h or age>2h"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(listing, condition, says):
    with pytest.raises(UserError, match=says.replace(".", r"\.")):
        select_runs(listing, [condition])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("name", ["a", "c", "deep/b"]),
        ("-name", ["deep/b", "c", "a"]),
        ("age", ["deep/b", "c", "a"]),
        ("-age", ["a", "c", "deep/b"]),
        ("validation/loss", ["a", "deep/b", "c"]),
        ("-validation/loss", ["c", "deep/b", "a"]),
        ("config.model.width", ["deep/b", "a", "c"]),
    ],
)
def test_runs_are_sorted(listing, key, expected):
    assert names(sort_runs(listing, listing.runs, key)) == expected


def test_what_a_run_does_not_have_comes_last_in_both_orders(listing):
    for key in ("validation/accuracy", "-validation/accuracy"):
        assert sorted(names(sort_runs(listing, listing.runs, key))[1:]) == ["c", "deep/b"]


def test_runs_are_grouped_by_the_values_of_keys(listing):
    groups = group_runs(listing, listing.runs, ["config.model.norm_placement", "state"])
    assert [(group.values, names(group.runs)) for group in groups] == [
        (("post", "finished"), ["c"]),
        (("pre", "finished"), ["a"]),
        (("pre", "stopped"), ["deep/b"]),
    ]
    (pre,) = [
        group for group in group_runs(listing, listing.runs, ["config.model.norm_placement"]) if "pre" in group.values
    ]
    assert group_values(listing, pre, LOSS) == [1.0, 2.0]


def test_only_keys_in_which_runs_differ_are_listed(listing, folder):
    assert differing_keys(listing.runs) == ["seed", "model.width", "model.norm_placement"]
    assert differing_keys(select_runs(listing, ["name=a"])) == []
    write_run(folder / "d")
    config = with_values(CONFIG, {"name": "other", "model.width": 128.0})
    (folder / "d" / "config.json").write_text(json.dumps({**config, "extra": [1]}))
    keys = differing_keys(RunIndex(folder).read().runs)
    assert keys == ["seed", "model.width", "model.norm_placement", "extra"]


def test_one_and_true_differ_as_in_json(tmp_path):
    for name, seed in (("a", 1), ("b", True)):
        write_run(tmp_path / name, {"seed": seed})
    assert differing_keys(RunIndex(tmp_path).read().runs) == ["seed"]


def test_short_keys_tell_keys_apart():
    keys = ["seed", "task.seed", "model.width", "model.encoder.layers", "model.decoder.layers"]
    assert list(short_keys(keys).values()) == ["seed", "task.seed", "width", "encoder.layers", "decoder.layers"]


# Values


def test_last_and_best_values(listing):
    (run,) = select_runs(listing, ["name=a"])
    assert (run.last(LOSS), run.best(LOSS, "minimize")) == ((1000, 1.5), (500, 1.0))
    assert run.best(ACCURACY, listing.direction(ACCURACY)) == (1000, 0.7)
    assert run.best(ACCURACY, None) is None
    assert run.last(MetricName("test", "loss")) is None
    assert listing.main_metrics() == [LOSS, ACCURACY]
    assert listing.with_directions({LOSS: "maximize"}).direction(LOSS) == "maximize"


def shown(listing: Listing) -> ListedRuns:
    runs = sort_runs(listing, listing.runs, "name")
    return ListedRuns(listing, runs, listing.main_metrics(), differing_keys(runs), table_keys(runs))


def test_plain_lines_have_a_cell_a_column(listing, folder):
    heading, *lines = [text.split("\t") for text in plain_lines(shown(listing))]
    assert heading[:7] == ["run", "config", "state", "step", "steps", "validation/loss", "best validation/loss"]
    assert {len(cells) for cells in lines} == {len(heading)}
    by_column = dict(zip(heading, lines[0], strict=True))
    assert by_column["validation/loss"] == "1.5"
    assert by_column["best validation/accuracy"] == "0.7"
    assert (by_column["config.seed"], by_column["config.model.norm_placement"]) == ("0", "pre")
    assert by_column["size"] == str(sum(file.stat().st_size for file in (folder / "a").iterdir()))
    assert lines[2][heading.index("validation/accuracy")] == ""


def table_text(listing: Listing, width: int) -> str:
    import io

    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width).print(runs_table(shown(listing), width))
    return stream.getvalue()


def test_a_table_fits_its_terminal_and_counts_the_keys_that_do_not(listing):
    wide = table_text(listing, 160)
    assert "norm_placement" in wide
    assert "without" not in wide
    assert [text.split()[:3] for text in wide.splitlines()[3:6]] == [
        ["a", "demo", "finished"],
        ["c", "demo", "finished"],
        ["deep/b", "demo", "stopped"],
    ]
    for width in (100, 80, 60):
        narrow = table_text(listing, width)
        assert "deep/b demo" in narrow
        assert max(len(text.rstrip()) for text in narrow.splitlines()) <= width
    assert "without 2 metrics and 2 config keys in which the runs differ: see the page" in " ".join(narrow.split())
    assert "1.5" in table_text(listing, 80)


def test_no_cell_of_a_table_is_cut_at_any_width(tmp_path):
    for number in range(6):
        values = {"seed": number, "task.batch_size": 8 * number, "optimizer.learning_rate": 0.00123 * number}
        values |= {f"model.setting_{place}": 10_000 + number for place in range(12)}
        write_run(tmp_path / f"a_longer_name_{number}", values, lines=[line(1000, loss=1.2345 + number, accuracy=0.5)])
    listed = shown(RunIndex(tmp_path).read())
    for width in range(48, 240, 3):
        text = table_text(listed.listing, width)
        assert "…" not in text
        assert max(len(row.rstrip()) for row in text.splitlines()) <= width
        rows = [row for row in text.splitlines() if "finished" in row]
        for row, run in zip(rows, listed.runs, strict=True):
            assert row.rstrip().endswith(f" {format_size(run.num_bytes)}")
            assert "1000/1000" in row
    assert "setting_3" in text


def test_keys_in_which_only_families_differ_are_no_columns(tmp_path):
    write_run(tmp_path / "a", {"seed": 0, "model.family": "decoder", "model.depth": 2})
    write_run(tmp_path / "b", {"seed": 1, "model.family": "decoder", "model.depth": 2})
    write_run(tmp_path / "c", {"seed": 1, "model.family": "encoder", "model.depth": 9, "model.pooling": "mean"})
    runs = RunIndex(tmp_path).read().runs
    assert table_keys(runs) == ["model.family", "seed"]
    assert {"model.depth", "model.pooling"} < set(differing_keys(runs))
    named = ["state", "config.model.depth", *condition_keys(["config.model.pooling=mean", "age<2d"])]
    assert table_keys(runs, named) == ["model.depth", "model.pooling", "model.family", "seed"]
    assert plain_lines(shown(RunIndex(tmp_path).read()))[0].count("config.") == 2
    write_run(tmp_path / "d", {"task.name": "classification"})
    assert "task.name" in table_text(RunIndex(tmp_path).read(), 200)


def test_json_has_everything_but_the_curves(listing):
    values = json.loads(format_json(shown(listing), group_runs(listing, listing.runs, ["state"]), ["state"]))
    first = values["runs"][0]
    assert first["metrics"]["validation/loss"] == {
        "last": {"step": 1000, "value": 1.5},
        "best": {"step": 500, "value": 1.0},
    }
    assert first["differences"] == {"seed": 0, "model.width": 128, "model.norm_placement": "pre"}
    assert [group["runs"] for group in values["groups"]] == [["a", "c"], ["deep/b"]]


# Files of any kind


HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\t\n"


def damage(name: str, content: bytes):
    def write(run: Path) -> None:
        (run / name).write_bytes(content)

    return write


def link(name: str):
    def write(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to("/etc/passwd")

    return write


def pipe(name: str):
    def write(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return write


def folder_for(name: str):
    def write(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return write


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damage("config.json", b"{"), "config.json is not JSON"),
        (damage("config.json", b"[1]"), "config.json is no JSON object"),
        (damage("config.json", b"[" * 100_000), "stand too deep"),
        (
            damage("config.json", b'{"task": 3, "model": {"family": "decoder"}}'),
            "config.task=3 must be a group of keys",
        ),
        (damage("config.json", b'{"steps": "x", "steps": 1}'), "twice"),
        (damage("config.json", b"\xff"), "config.json is not JSON"),
        (link("config.json"), "config.json is missing, or no regular file"),
        (pipe("config.json"), "config.json is missing, or no regular file"),
        (folder_for("config.json"), "no regular file"),
        (damage("metrics.jsonl", b"\x00\xff\n" * 3), "3 lines of metrics.jsonl cannot be read"),
        (
            damage("metrics.jsonl", b'{"step": 1}\n{"step": 2, "split": "train", "loss": 1}\n'),
            "1 line of metrics.jsonl",
        ),
        (damage("metrics.jsonl", b"[" * 100_000 + b"\n{}\n"), "2 lines of metrics.jsonl cannot be read"),
        (damage("metrics.jsonl", b'{"step": 1e400, "split": 2}\n'), "1 line of metrics.jsonl"),
        (folder_for("metrics.jsonl"), "metrics.jsonl"),
        (damage("environment.json", b"{}"), "environment.json"),
        (damage("outcome.json", b'{"state": "done"}'), "outcome.json"),
        (damage("checkpoints", b"no folder"), ""),
    ],
)
def test_a_damaged_file_is_said_in_the_row_of_its_run(folder, spoil, says):
    spoil(folder / "a")
    listing = RunIndex(folder).read()
    assert names(listing.runs) == ["a", "c", "deep/b"]
    listed = shown(listing)
    assert says in "; ".join(listing.runs[0].problems)
    assert all(len(problem) < 200 and "\n" not in problem for problem in listing.runs[0].problems)
    assert len(plain_lines(listed)) == 4
    json.loads(format_json(listed, [], []))
    assert listing.runs[1].last(LOSS) == (1000, 3.0)


def test_a_line_that_is_being_written_is_no_damage(tmp_path):
    run = write_run(tmp_path / "run", lines=[line(10, loss=1.0)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "split": "valid')
    assert only_run(tmp_path).problems == ()
    assert only_run(tmp_path).last(LOSS) == (10, 1.0)


def test_of_a_large_file_the_start_and_the_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer.studies.run_listing.run_summary._MAX_METRICS_BYTES", 4000)
    run = write_run(tmp_path / "run", lines=[line(step, loss=1.0 * step) for step in range(1000)])
    summary = only_run(tmp_path)
    assert summary.curves[LOSS][0] == (0, 0.0)
    assert summary.last(LOSS) == (999, 999.0)
    assert len(summary.curves[LOSS]) < 100
    assert summary.step == 999
    (problem,) = summary.problems
    assert problem.startswith("metrics.jsonl is large: ")
    assert (run / "metrics.jsonl").stat().st_size > 8000


def test_values_that_are_not_finite_or_not_text_are_shown(tmp_path):
    for name, text in (("a", '{"steps": 10, "task": {"x": NaN}}'), ("b", '{"steps": 10, "task": {"x": [1e999]}}')):
        write_run(tmp_path / name)
        (tmp_path / name / "config.json").write_text(text)
    listed = shown(RunIndex(tmp_path).read())
    assert listed.keys == ["task.x"]
    assert json.loads(format_json(listed, [], []))["runs"][0]["differences"] == {"task.x": "nan"}


def test_names_of_a_stranger_write_no_control_characters(tmp_path):
    run = write_run(tmp_path / HOSTILE.replace("/", "_"), {"name": HOSTILE}, lines=[line(1, **{HOSTILE: 1.0})])
    write_run(tmp_path / "b", {"model.norm_placement": HOSTILE})
    os.rename(run, os.fsencode(tmp_path) + b"/\xff" + os.fsencode(run.name))
    listing = RunIndex(tmp_path).read()
    listed = shown(listing)
    everything = [*plain_lines(listed), *problem_lines(listed), table_text(listing, 400)]
    assert not any(character in text for text in everything for character in "\x1b\r")
    assert len(plain_lines(listed)) == 3
    assert {text.count("\t") for text in plain_lines(listed)} == {plain_lines(listed)[0].count("\t")}
    "\n".join(everything).encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_said(folder):
    (folder / "deep").chmod(0)
    try:
        listing = RunIndex(folder).read()
    finally:
        (folder / "deep").chmod(0o700)
    assert names(listing.runs) == ["a", "c"]
    assert listing.problems == ["deep cannot be searched: Permission denied"]


def test_a_run_is_read_again_only_if_it_changed(folder, monkeypatch):
    from transformer.studies.run_listing import listing as module

    read: list[str] = []
    read_run = module.read_run
    monkeypatch.setattr(module, "read_run", lambda files: read.append(files.name) or read_run(files))
    index = RunIndex(folder)
    first = index.scan()
    index.read(first)
    assert read == ["a", "c", "deep/b"]
    assert index.scan().version == first.version
    with (folder / "c" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line(1001, loss=0.5)) + "\n")
    assert index.scan().version != first.version
    listing = index.read()
    assert read == ["a", "c", "deep/b", "c"]
    assert listing.runs[1].last(LOSS) == (1001, 0.5)


def test_an_absent_value_is_no_value(listing):
    (run,) = select_runs(listing, ["name=c"])
    assert run.config.get("no.such.key", ABSENT) is ABSENT
    assert select_runs(listing, ["validation/accuracy!=0.7"]) != []
