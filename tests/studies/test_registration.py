"""What a report says of a registration that was copied, re-dated, made after a run, damaged or forged."""

import dataclasses
import datetime
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.studies.tiny import ablation, base
from transformer.config import UserError, hash_config, to_config
from transformer.storage.json_checksum import add_checksum, strip_checksum
from transformer.studies.ablations import registration as registrations
from transformer.studies.ablations.collect_results import first_start_of_run
from transformer.studies.ablations.hash_commits import find_hash_commit
from transformer.studies.ablations.registration import (
    check_registration,
    describe_registration,
    register,
    registration_contents,
    write_registration,
)
from transformer.studies.ablations.run_plan import plan_runs
from transformer.studies.ablations.study_metadata import StudyMetadata, read_metadata, study_identity, write_metadata
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore

SPEC = ablation(
    seeds=(1, 2, 3),
    tuning_grid={"optimizer.warmup_steps": (0, 2)},
    known_before="seed 1 was published",
    predictions=({"arm": "pre", "direction": "better", "at_least": 0.1},),
)
PLANNED = plan_runs(SPEC, base())
CONTENTS = registration_contents(SPEC, base(), PLANNED)
REGISTERED = "2026-01-02T03:04:05+00:00"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registered study of twelve runs, which began after its registration."""
    path = tmp_path_factory.mktemp("registered") / "study"
    trial_store = TrialStore.open(path, study_identity(SPEC, base()))
    registration = register(trial_store, None, CONTENTS)
    write_metadata(path, StudyMetadata({"name": "tiny"}, {}, registration=registration.sha256))
    write_registration(path, registration)
    trial_store.append_trials([each.trial for each in PLANNED])
    for each in PLANNED:
        with trial_store.hold_trial(each.trial) as lease:
            lease.record_start(0)
            lease.record_outcome(TrialOutcome(TrialState.DONE, 0.5, 2, ""))
        folder = trial_store.directory(each.trial)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        (folder / "environment.json").write_text(json.dumps([{"started": now}]))
    return path


def recorded_hash(path: Path) -> str | None:
    """The hash of the registration by about.json."""
    metadata = read_metadata(path)
    return None if metadata is None else metadata.registration


def sentences(path: Path, contents: Mapping[str, Any] = CONTENTS) -> list[str]:
    """What the report says first of the study in a folder."""
    trial_store = TrialStore.open_existing(path)
    starts = [
        first_start_of_run(trial_store.directory(trial), trial_store.attempt_times(trial))
        for trial in trial_store.trials()
        if trial_store.has_begun(trial)
    ]
    checked = check_registration(path, recorded_hash(path), contents, starts, lambda sha256, since: None)
    if checked is None:
        return []
    json.dumps(to_config(checked), allow_nan=False)
    lines = describe_registration(checked)
    assert lines[0].startswith("Exploratory: ") == checked.is_contradicted
    return lines


def edit(file: Path, change: Callable[[Json], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def seal(content: Json) -> None:
    """The right hash of a registration, as who writes one by hand would compute it."""
    content["sha256"] = hash_config({key: value for key, value in content.items() if key != "sha256"})


def forge(path: Path, change: Callable[[Json], object], *, in_about: bool = True) -> None:
    """Change a registration, with its hash and, if `in_about`, the hash in about.json."""
    edit(path / "registration.json", lambda content: (change(content), seal(content)))
    sha256 = json.loads((path / "registration.json").read_text())["sha256"]
    if in_about:
        edit(path / "about.json", lambda about: about.update(registration=sha256))


def begin(path: Path, seconds: float, *, attempts: bool = True, number: int = 0) -> None:
    """Let a run have begun at another time, by its outcome or by its attempts."""
    name = PLANNED[number].trial.name
    file = path / "trials" / name / ("attempts.jsonl" if attempts else "outcome.json")
    content = add_checksum({**strip_checksum(json.loads(file.read_text())), "began": seconds})
    file.write_text(json.dumps(content) + "\n")


def environment(path: Path, starts: Any, number: int = 0) -> None:
    (path / "trials" / PLANNED[number].trial.name / "environment.json").write_text(json.dumps(starts))


def test_a_sound_registration_came_before_the_first_run(sound: Path) -> None:
    first, known, stamp = sentences(sound)
    assert first.startswith("Registered on 20")
    assert ", before its first run on 20" in first
    assert known == "Known before the registration: seed 1 was published"
    assert stamp.startswith("Not timestamped: no commit holds the hash")


DAY = 86_400
EARLY = 1_700_000_000
WITH_WORDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "re-dated": (
        lambda path: edit(path / "registration.json", lambda it: it.update(registered=REGISTERED)),
        "changed after it was written",
    ),
    "re-dated with its hash": (
        lambda path: forge(path, lambda it: it.update(registered=REGISTERED), in_about=False),
        "copied or made again",
    ),
    "dated after the runs, with all hashes": (
        lambda path: forge(path, lambda it: it.update(registered="2099-01-01T00:00:00+00:00")),
        "12 of 12 runs began before it, the first on 20",
    ),
    "hash of zeros": (
        lambda path: edit(path / "registration.json", lambda it: it.update(sha256="0" * 64)),
        "changed after it was written",
    ),
    "without its commit": (
        lambda path: edit(path / "registration.json", lambda it: it.update(commit="abc")),
        "changed after it was written",
    ),
    "a prediction more": (
        lambda path: forge(path, lambda it: it["study"]["predictions"].append({"arm": "pre"})),
        "changed since: predictions was [",
    ),
    "no predictions": (
        lambda path: forge(path, lambda it: it["study"].pop("predictions")),
        "changed since: predictions was null",
    ),
    "known before is another": (
        lambda path: forge(path, lambda it: it["study"].update(known_before="nothing\nRegistered on 2020")),
        "changed since: known_before was",
    ),
    "known before is an object": (
        lambda path: forge(path, lambda it: it["study"].update(known_before={"a": [1]})),
        "changed since: known_before was",
    ),
    "a seed less": (
        lambda path: forge(path, lambda it: it["study"].update(seeds=[1, 2])),
        "changed since: seeds was [1, 2], is [1, 2, 3]",
    ),
    "an arm more": (
        lambda path: forge(path, lambda it: it["study"]["arms"].update(other={})),
        'changed since: arms["other"] is left out',
    ),
    "another threshold": (
        lambda path: forge(path, lambda it: it["study"].update(learned_threshold=1)),
        "changed since: learned_threshold was 1, is null",
    ),
    "true for 1": (
        lambda path: forge(path, lambda it: it["study"]["base"].update(seed=True)),
        'changed since: base["seed"] was true, is 1',
    ),
    "another default": (
        lambda path: forge(path, lambda it: it["study"]["base"]["optimizer"].update(weight_decay=0.5)),
        'changed since: base["optimizer"]["weight_decay"] was 0.5, is 0.0',
    ),
    "a default less": (
        lambda path: forge(path, lambda it: it["study"]["base"]["optimizer"].pop("weight_decay")),
        'changed since: base["optimizer"]["weight_decay"] is new',
    ),
    "a default of an arm": (
        lambda path: forge(path, lambda it: it["study"]["settings"]["arm 'post'"].update({"model.dropout": 0.5})),
        'changed since: settings["arm \'post\'"]["model.dropout"] is left out',
    ),
    "the configs of the runs": (
        lambda path: forge(path, lambda it: it["study"].update(runs="0" * 64)),
        "changed since: the resolved configs of the runs are others",
    ),
    "other judging code": (
        lambda path: forge(path, lambda it: it["study"].update(code="0" * 64)),
        "changed since: the code that judges is not the registered one",
    ),
    "no judging code": (
        lambda path: forge(path, lambda it: it["study"].pop("code")),
        "changed since: the code that judges is not the registered one",
    ),
    "another rule": (
        lambda path: forge(path, lambda it: it["study"].update(rule="whatever looks best")),
        "changed since: rule was",
    ),
    "a field of its own": (
        lambda path: forge(path, lambda it: it["study"].update({"judge\n": 1})),
        "changed since: judge\\n is of another version",
    ),
    "an empty study": (
        lambda path: forge(path, lambda it: it.update(study={})),
        "changed since: question was null, is",
    ),
    "only what an older version fixed": (
        lambda path: forge(path, lambda it: [it["study"].pop(key) for key in ("settings", "runs", "code")]),
        "changed since: settings was null",
    ),
    "about.json without its hash": (
        lambda path: edit(path / "about.json", lambda about: about.pop("registration")),
        "copied or made again",
    ),
    "about.json with another hash": (
        lambda path: edit(path / "about.json", lambda about: about.update(registration="1" * 64)),
        "copied or made again",
    ),
    "about.json is gone": (lambda path: (path / "about.json").unlink(), "copied or made again"),
    "the registration is gone": (lambda path: (path / "registration.json").unlink(), "registration.json is gone"),
    "an attempt before it": (lambda path: begin(path, EARLY), "1 of 12 runs began before it, the first on 2023-11-14"),
    "an outcome before it": (lambda path: begin(path, EARLY, attempts=False), "1 of 12 runs began before it"),
    "all attempts before it": (
        lambda path: [begin(path, EARLY + number, number=number) for number in range(12)],
        "12 of 12 runs began before it, the first on 2023-11-14 22:13 UTC",
    ),
    "a first start before it, and a resume after": (
        lambda path: environment(
            path, [{"started": "2020-01-01T00:00:00+00:00"}, {"started": "2099-01-01T00:00+00:00"}]
        ),
        "1 of 12 runs began before it, the first on 2020-01-01 00:00 UTC",
    ),
    "a start in another zone": (
        lambda path: environment(path, [{"started": "2020-01-01T00:00:00+14:00"}]),
        "the first on 2019-12-31 10:00 UTC",
    ),
    "a run of another study": (
        lambda path: environment(path, [{"started": "0001-01-01T00:00:00+00:00"}]),
        "1 of 12 runs began before it",
    ),
}


@pytest.mark.parametrize("name", WITH_WORDS)
def test_what_contradicts_a_registration_is_said_first(sound: Path, tmp_path: Path, name: str) -> None:
    change, words = WITH_WORDS[name]
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    change(path)
    lines = sentences(path)
    assert lines[0].startswith("Exploratory: ")
    assert words in lines[0]
    assert not [line for line in lines if "\n" in line or "before its first run" in line]


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda file: file.write_text("{"), "is not JSON"),
    "empty": (lambda file: file.write_text(""), "is not JSON"),
    "a list": (lambda file: file.write_text("[]"), "is no JSON object but a list"),
    "too deep": (lambda file: file.write_text("[" * 100_000), "too deep in one another"),
    "no UTF-8": (lambda file: file.write_bytes(b'{"registered": "\xff"}'), "is not JSON"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "is a folder, and a file is to stand there"),
    "no time": (lambda file: edit(file, lambda it: it.update(registered="yesterday")), "registered: it must be a time"),
    "no zone": (
        lambda file: edit(file, lambda it: it.update(registered="2026-01-01T00:00:00")),
        "registered: it must be a time with its zone",
    ),
    "a number for a time": (lambda file: edit(file, lambda it: it.update(registered=0)), "registered=0"),
    "a time beyond all": (
        lambda file: edit(file, lambda it: it.update(registered="9999-12-31T23:59:59-23:00")),
        "registered: it must be a time",
    ),
    "no study": (lambda file: edit(file, lambda it: it.pop("study")), "study"),
    "a study of null": (lambda file: edit(file, lambda it: it.update(study=None)), "study=None"),
    "no hash": (lambda file: edit(file, lambda it: it.pop("sha256")), "sha256"),
    "a short hash": (lambda file: edit(file, lambda it: it.update(sha256="ab")), "64 hexadecimal digits"),
    "a key of its own": (lambda file: edit(file, lambda it: it.update(verified=True)), "verified"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_registration_is_refused_in_one_line(sound: Path, tmp_path: Path, name: str) -> None:
    change, words = REFUSED[name]
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    change(path / "registration.json")
    with pytest.raises(UserError) as refusal:
        sentences(path)
    assert words in str(refusal.value)
    assert "registration.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


ATTEMPTS = Path("trials", PLANNED[0].trial.name, "attempts.jsonl")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: begin(path, 9e11),  # beyond every calendar
        lambda path: environment(path, [{"started": "some day"}]),
        lambda path: environment(path, [{}, {"started": "2099-01-01T00:00+00:00"}]),
        lambda path: environment(path, [{"started": "2020-01-01T00:00:00"}]),
        lambda path: (path / ATTEMPTS).write_text('garbage\n{"step": 0, "began": 1e9, "worker": "x"}\n{}\n'),
        lambda path: (
            [(path / "trials" / PLANNED[0].trial.name / name).unlink() for name in ("attempts.jsonl", "outcome.json")]
            + [environment(path, [])]
        ),
    ],
)
def test_runs_whose_first_start_is_not_readable_show_nothing(
    sound: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    change(path)
    first, *_ = sentences(path)
    assert "but 1 of 12 runs have no start time, so that nothing shows that it came before the runs" in first
    assert "before its first run" not in first


def test_attempts_that_cannot_be_read_are_named(sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    (path / ATTEMPTS).unlink()
    (path / ATTEMPTS).mkdir()
    with pytest.raises(UserError, match=r"attempts\.jsonl is a folder, and a file is to stand there"):
        sentences(path)


def test_a_start_that_was_forgotten_for_a_new_try_is_the_first(sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    file = path / "trials" / PLANNED[0].trial.name / "attempts.jsonl"
    lines = [{"step": 0, "began": EARLY, "worker": "x"}, {"forgotten": True}, {"step": 0, "began": EARLY + 9e8}]
    file.write_text("".join(json.dumps(add_checksum(line)) + "\n" for line in lines))
    assert "1 of 12 runs began before it, the first on 2023-11-14" in sentences(path)[0]


def test_a_copied_registration_does_not_register_a_judged_study(sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "study"))
    (path / "registration.json").unlink()
    edit(path / "about.json", lambda about: about.pop("registration"))
    assert sentences(path) == []
    begin(path, EARLY)
    shutil.copy(sound / "registration.json", path)
    (first, *_) = sentences(path)
    assert "copied or made again" in first
    assert "1 of 12 runs began before it" in first
    with pytest.raises(UserError, match="has a registration that is not its own"):
        register(TrialStore.open_existing(path), recorded_hash(path), CONTENTS)


def test_a_changed_default_and_changed_code_change_the_registration(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer.training.optimizer import OptimizerConfig

    unchanged = registration_contents(SPEC, base(), plan_runs(SPEC, base()))
    assert unchanged == CONTENTS
    assert "beta2" not in base()["optimizer"]
    (beta2,) = (field for field in dataclasses.fields(OptimizerConfig) if field.name == "beta2")
    monkeypatch.setattr(beta2, "default", 0.25)
    contents = registration_contents(SPEC, base(), plan_runs(SPEC, base()))
    assert 'changed since: base["optimizer"]["beta2"] was 0.98, is 0.25.' in sentences(sound, contents)[0]
    monkeypatch.undo()
    monkeypatch.setattr(registrations, "judging_code_version", lambda: "0" * 64)
    contents = registration_contents(SPEC, base(), PLANNED)
    assert "the code that judges is not the registered one" in sentences(sound, contents)[0]


def test_more_seeds_are_the_same_runs_and_other_settings_are_not() -> None:
    def hash_of_runs(**changes: Any) -> Any:
        changed = dataclasses.replace(SPEC, **changes)
        return registration_contents(changed, base(), plan_runs(changed, base()))["runs"]

    assert hash_of_runs(seeds=(1, 2, 3, 4)) == hash_of_runs(seeds=(5, 6)) == CONTENTS["runs"]
    assert hash_of_runs(tuning_grid={"optimizer.warmup_steps": (0, 3)}) != CONTENTS["runs"]


def test_the_commit_that_holds_the_hash_is_named(sound: Path, tmp_path: Path) -> None:
    def git(*words: str, date: str = "2026-02-01T00:00:00+0000") -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        dates = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date, "PATH": "/usr/bin:/bin:/usr/local/bin"}
        command = ["git", *identity, *words]
        return subprocess.run(
            command, cwd=tmp_path / "work", env=dates, check=True, capture_output=True, text=True
        ).stdout

    (tmp_path / "work" / "configs").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main")
    sha256 = "ab" * 32
    since, folder = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), tmp_path / "work" / "configs"
    git("commit", "--allow-empty", "-m", "nothing")
    assert find_hash_commit(sha256, since, [folder]) is None
    (folder / "registration.json").write_text(json.dumps({"sha256": sha256}))
    git("add", ".")
    git("commit", "-m", "registered", date="2026-02-03T04:05:06+0000")
    found = find_hash_commit(sha256, since, [folder, tmp_path])
    assert found is not None
    assert (found.commit, found.date) == (git("rev-parse", "HEAD").strip(), "2026-02-03T04:05:06+00:00")
    assert (found.is_signed, found.pushed_to) == (False, "")
    git("init", "--bare", "--quiet", str(tmp_path / "remote"))
    git("remote", "add", "origin", str(tmp_path / "remote"))
    git("push", "--quiet", "origin", "main")
    found = find_hash_commit(sha256, since, [folder])
    assert found is not None
    assert found.pushed_to == "origin/main"
    # The oldest counts, and a message will do.
    git("commit", "--allow-empty", "-m", f"SHA-256 {sha256}", date="2026-02-02T00:00:00+0000")
    found = find_hash_commit(sha256, since, [folder])
    assert found is not None
    assert found.date == "2026-02-02T00:00:00+00:00"
    assert find_hash_commit(sha256, datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC), [folder]) is None


@pytest.mark.parametrize(
    ("date", "pushed", "words"),
    [
        ("2020-01-01T00:00:00+00:00", "origin/main", "(not signed, pushed to origin/main)."),
        ("2020-01-01T00:00:00+00:00", "", "this clone alone says so until it is pushed."),
        ("2099-01-01T00:00:00+00:00", "origin/main", "after 12 runs had begun: it does not show"),
    ],
)
def test_a_commit_shows_only_what_is_older_than_the_runs(sound: Path, date: str, pushed: str, words: str) -> None:
    from transformer.studies.ablations.hash_commits import HashCommit

    trial_store = TrialStore.open_existing(sound)
    starts = [first_start_of_run(trial_store.directory(trial), ()) for trial in trial_store.trials()]
    commit = HashCommit("ab" * 20, date, False, pushed)
    checked = check_registration(sound, recorded_hash(sound), CONTENTS, starts, lambda sha256, since: commit)
    assert checked is not None
    assert describe_registration(checked)[2].startswith("The hash is in commit abababababab of 20")
    assert describe_registration(checked)[2].endswith(words) or words in describe_registration(checked)[2]
