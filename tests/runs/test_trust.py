"""What a stranger's config may make a process open: nothing outside the run, until a person names it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launch import cli, evaluate, train
from transformer.config import UserError
from transformer.runs.trust import (
    check_trusted,
    external_modules,
    external_paths,
    named_resources,
    remember_config,
    trust_flags,
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this account's own runs are remembered: nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "headwise" / "begun"


def config(origin: str = "", **task: Any) -> dict[str, Any]:
    return {
        "task": {"name": "translation", "dataset": "phrases", **task},
        "model": {"family": "decoder"},
        "initialize_from": {"run": origin},
    }


def test_token_shards_and_the_patterns_of_their_text_are_asked_for() -> None:
    values = config(dataset="texts/*.txt,more", shards_dir="/shards")
    named = [("task.dataset", "texts/*.txt"), ("task.dataset", "more"), ("task.shards_dir", "/shards")]
    assert [tuple(name) for name in external_paths(values, training=False)] == named
    with pytest.raises(UserError, match=r"config\.task\.shards_dir='/shards' is outside the run"):
        check_trusted(values, ("texts/*.txt", "more"))
    check_trusted(values, ("texts/*.txt", "more", "/shards"))


@pytest.mark.parametrize("key", ["xla_flags", "libtpu_init_args"])
def test_compiler_flags_which_may_write_files_are_asked_for_when_a_run_trains_on(key: str) -> None:
    values = {**config(), key: "--xla_dump_to=/home"}
    check_trusted(values, ())
    with pytest.raises(UserError, match=rf"config\.{key}='--xla_dump_to=/home' is outside the run"):
        check_trusted(values, (), training=True)
    check_trusted(values, ("--xla_dump_to=/home",), training=True)
    check_trusted(values, (), source=(key,), training=True)


@pytest.mark.parametrize(
    ("origin", "task", "key", "named"),
    [
        ("gs://bucket/run", {}, "initialize_from.run", "gs://bucket/run"),
        ("/somewhere/run", {}, "initialize_from.run", "/somewhere/run"),
        ("", {"data_dir": "/somewhere"}, "task.data_dir", "/somewhere"),
        ("", {"data_dir": "/a,b"}, "task.data_dir", "/a,b"),
        ("", {"dataset": "FILE"}, "task.dataset", "FILE"),
        ("", {"dataset": "phrases", "test_files": "FILE"}, "task.test_files", "FILE"),
        ("", {"validation_files": "nothing,FILE"}, "task.validation_files", "FILE"),
        ("", {"dataset": "https://somewhere/text"}, "task.dataset", "https://somewhere/text"),
    ],
)
def test_what_lies_outside_a_run_is_named_and_asked_for(
    tmp_path: Path, origin: str, task: dict[str, str], key: str, named: str
) -> None:
    file = tmp_path / "text.txt"
    file.touch()
    task = {name: value.replace("FILE", str(file)) for name, value in task.items()}
    named, values = named.replace("FILE", str(file)), config(origin, **task)
    assert [tuple(name) for name in external_paths(values, training=True)] == [(key, named)]
    assert named in named_resources(values)
    says = rf"config\.{key}='{named}' is outside the run, .*: add --trust={named} if"
    with pytest.raises(UserError, match=says):
        check_trusted(values, (), training=True)
    check_trusted(values, [named], training=True)
    check_trusted(values, named.split(","), training=True)  # as a command has the word
    check_trusted(values, (), source=[key], training=True)
    if origin:
        check_trusted(values, ())  # only a run that is trained reads what it begins with


def test_sets_that_are_made_or_prepared_here_are_nobodys_files() -> None:
    for dataset in ("phrases", "phrases/train=32,validation=8", "wmt14_translate/de-en", "a\0b", ""):
        check_trusted(config(dataset=dataset), (), training=True)


def test_files_that_lie_in_the_folder_that_a_person_names_need_no_more(tmp_path: Path) -> None:
    (tmp_path / "text.txt").touch()
    check_trusted(config(dataset=str(tmp_path / "text.txt")), (), source=["task.data_dir"])


def test_what_this_account_has_begun_it_may_open_again_and_no_other_config(state: Path) -> None:
    own = config(data_dir="/somewhere")
    remember_config(own)
    check_trusted(own, ())
    with pytest.raises(UserError, match="outside the run"):
        check_trusted({**own, "seed": 2}, ())
    # Code is asked for all the same: what a module's name leads to depends on where a command is given.
    code = {**own, "model": {"family": "lab.mine"}}
    remember_config(code)
    with pytest.raises(UserError, match=r"^config\.model\.family='lab\.mine' is code .* add --trust=lab\.mine if"):
        check_trusted(code, ())
    with pytest.raises(
        UserError, match=r"'lab\.mine' is code .*; .*='/somewhere' is outside .* add --trust=lab\.mine,/somewhere if"
    ):
        check_trusted({**code, "seed": 2}, ())
    state.chmod(0o777)
    with pytest.raises(UserError, match="outside the run"):
        check_trusted(own, ())
    state.chmod(0o700)
    elsewhere = state.rename(state.with_name("elsewhere"))
    state.symlink_to(elsewhere)
    with pytest.raises(UserError, match="outside the run"):
        check_trusted(own, ())


def test_nothing_is_remembered_of_runs_that_open_nothing_outside(state: Path) -> None:
    remember_config(config())
    assert not state.exists()


def test_a_folder_with_a_strangers_config_alone_opens_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*arguments: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", connect)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(config("gs://bucket/run")))
    assert cli.run(train.COMMAND, train.main, [f"--workdir={run}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "config.initialize_from.run='gs://bucket/run' is outside the run" in said
    (run / "config.json").write_text(json.dumps(config(dataset=os.devnull)))
    assert cli.run(evaluate.COMMAND, evaluate.main, [f"--workdir={run}"]) == 2
    assert f"config.task.dataset='{os.devnull}' is outside the run" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["a.b", "__class__"])
def test_keys_that_no_config_has_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**config(), "name": "x", "optimizer": {}, "steps": 3, key: 1}))
    assert cli.run(train.COMMAND, train.main, [f"--workdir={tmp_path}"]) == 2
    assert f"unknown key config.{key}" in capsys.readouterr().err


def test_a_project_of_the_checkout_is_trusted_as_the_library_is() -> None:
    project = {"task": {"name": "experiments.captioning.task"}, "model": {"family": "experiments.captioning.model"}}
    check_trusted(project, ())
    assert (external_modules(project), trust_flags(project), named_resources(project)) == ([], [], set())
    mixed = {**project, "model": {"family": "lab.mine"}}
    with pytest.raises(
        UserError, match=r"^config\.model\.family='lab\.mine' is code from outside .* --trust=lab\.mine if"
    ):
        check_trusted(mixed, ())
    assert trust_flags(mixed) == ["--trust=lab.mine"]


@pytest.mark.parametrize(
    "name",
    ["experimentsx.captioning.task", "Experiments.captioning.task", ".experiments.captioning.task", "a.experiments.b"],
)
def test_what_only_looks_like_a_project_is_code(name: str) -> None:
    with pytest.raises(UserError, match="is code from outside this library"):
        check_trusted({"task": {"name": name}, "model": {"family": "decoder"}}, ())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("experiments..x", "names no module"),
        ("experiments.x", "is unknown"),
        ("experiments.captioning.task.more", "is unknown"),
        ("experiments.results", "is unknown"),
        ("experiments.captioning.../task", "names no module"),
        ("experiments.captioning.task,lab.mine", "names no module"),
        ("experiments.captioning.task\n", "names no module"),
    ],
)
def test_a_run_that_names_a_project_that_there_is_not_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    values = {**config(), "name": "x", "optimizer": {}, "steps": 3, "task": {"name": name}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    for command in (train, evaluate):
        assert cli.run(command.COMMAND, command.main, [f"--workdir={tmp_path}"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: config.task.name={name!r} {says}")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"optimizer": {"schedule": "lab.mine"}}, "optimizer.schedule"),
        ({"optimizers": {"critic": {"schedule": "lab.mine"}}}, "optimizers.critic.schedule"),
        # Names with dots have the path of another key, which does not hide them.
        ({"optimizers": {"a": {"schedule": "lab.mine"}, "a.schedule": "cosine"}}, "optimizers.a.schedule"),
        ({"optimizers": {"a.b": {"schedule": "lab.mine"}, "a": "cosine"}}, r"optimizers.a.b.schedule"),
    ],
)
def test_schedules_of_ones_own_are_code(section: dict[str, Any], key: str) -> None:
    values = {**config(), **section}
    with pytest.raises(UserError, match=rf"config\.{key}='lab\.mine' is code from outside .* --trust=lab\.mine if"):
        check_trusted(values, ())
    check_trusted(values, ["lab.mine"])
    assert trust_flags(values) == ["--trust=lab.mine"]
    check_trusted({**config(), "optimizer": {"schedule": "cosine"}}, ())
