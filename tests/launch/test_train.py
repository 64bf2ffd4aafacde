"""What `launch.train` says beside what it trains."""

import contextlib
import shlex
from pathlib import Path
from typing import Any

import pytest

import launch.evaluate
import launch.maps
import launch.train
from launch.flag_parsing import parse_arguments
from launch.train import describe_next_commands
from transformer.config import UserError
from transformer.runs import lifecycle
from transformer.training import driver
from transformer.training.rollback import RollbackRequest


def test_a_complete_run_is_told_with_the_commands_that_look_at_it() -> None:
    said = describe_next_commands(
        Path("runs/my run"), {"task": {"name": "translation"}, "model": {"family": "decoder"}}
    )
    for line, command in zip(said.splitlines(), (launch.maps.COMMAND, launch.evaluate.COMMAND), strict=True):
        words = shlex.split(line.partition("python -m ")[2])
        assert words == [f"launch.{command.name}", "--workdir=runs/my run"]


@pytest.mark.parametrize(
    ("words", "request_of_run"),
    [
        ([], None),
        (["--rollback_to_step=0"], RollbackRequest(0, 0)),
        (["--rollback_to_step=4", "--skip_batches=2"], RollbackRequest(4, 2)),
        (["--skip_batches=2"], RollbackRequest(None, 2)),
    ],
)
def test_a_run_is_rolled_back_to_the_step_of_the_flags_the_first_included(
    words: list[str], request_of_run: RollbackRequest | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    monkeypatch.setattr(lifecycle, "run_lifecycle", lambda *addresses, **seconds: contextlib.nullcontext())
    monkeypatch.setattr(driver, "train", lambda *run, **options: requests.append(options["rewind"]))
    words = ["--config=experiments/translation/configs/recurrent_copy.py", f"--workdir={tmp_path / 'run'}", *words]
    launch.train.main(parse_arguments(launch.train.COMMAND, words))
    assert requests == [request_of_run]


@pytest.mark.parametrize("words", [[], ["--config.model.width=32"]])
def test_a_smoke_test_trains_the_shortened_config_and_prints_what_it_changed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments: list[Any] = []
    monkeypatch.setattr(lifecycle, "run_lifecycle", lambda *addresses, **seconds: contextlib.nullcontext())
    monkeypatch.setattr(driver, "train", lambda experiment, *run, **options: experiments.append(experiment))
    command = ["--config=experiments/demo.py", f"--workdir={tmp_path / 'run'}", *words]
    launch.train.main(parse_arguments(launch.train.COMMAND, [*command, "--smoke_test"]))
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("smoke test: --config.steps=20 --config.log_every=5 ")
    # What is printed does the same without the flag.
    printed = shlex.split(first.removeprefix("smoke test: "))
    launch.train.main(parse_arguments(launch.train.COMMAND, [*command, *printed]))
    assert experiments[0].run.steps == 20
    assert experiments[0] == experiments[1]


def test_a_smoke_test_refuses_a_key_that_it_sets(tmp_path: Path) -> None:
    words = ["--config=experiments/demo.py", f"--workdir={tmp_path}", "--smoke_test", "--config.eval_every=7"]
    with pytest.raises(UserError, match=r"--smoke_test sets config\.eval_every: omit --config\.eval_every, or"):
        launch.train.main(parse_arguments(launch.train.COMMAND, words))
