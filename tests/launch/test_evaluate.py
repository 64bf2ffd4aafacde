"""How launch.evaluate reads its flags, and refuses those that are not for a run."""

from pathlib import Path
from typing import Any

import pytest

from launch.evaluate import COMMAND, parse_num_shots, search_changes
from launch.flag_parsing import parse_arguments
from tests.training.written_run import CONFIG
from transformer.config import UserError
from transformer.decoding.beam import EarlyStopping
from transformer.runs.run_directory import RunDirectory
from transformer.training.config import resolve_config
from transformer.training.run_loading import load_ensemble, open_run


def test_shots_are_whole_numbers() -> None:
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,1,4"])) == (0, 1, 4)
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run"])) is None
    with pytest.raises(UserError, match=r"--num_shots=0,x must be whole numbers from 0 to 2147483647, joined"):
        parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,x"]))


TRANSLATION = {**CONFIG, "task": {"name": "translation"}, "model": {"family": "encoder_decoder"}}
POWER = {"decoding": {"length_power": 2.0, "early_stopping": "never"}}


@pytest.mark.parametrize(
    ("own", "flags", "expected"),
    [
        ({}, ["--length_power=1.5"], (0.6, 1.5, None)),
        ({"length_penalty": 1.0, "coverage_penalty": 0.2}, ["--length_power=1.5"], (0.6, 1.5, None)),
        (POWER, ["--early_stopping=full"], (0.6, 2.0, EarlyStopping.FULL)),
        (POWER, ["--length_penalty=0.9"], (0.9, None, None)),
        (POWER, ["--length_power=1.5", "--early_stopping=estimate"], (0.6, 1.5, EarlyStopping.ESTIMATE)),
    ],
)
def test_the_search_of_a_run_is_replaced_as_a_whole(
    tmp_path: Path, own: dict[str, Any], flags: list[str], expected: tuple[Any, ...]
) -> None:
    config = {**TRANSLATION, "task": {**TRANSLATION["task"], "num_beams": 4, **own}}
    with RunDirectory.claim(tmp_path / "run", resolve_config(config).to_config()):
        pass
    changes = search_changes(parse_arguments(COMMAND, [f"--workdir={tmp_path / 'run'}", *flags]))
    task = open_run(tmp_path / "run", task_changes=changes).experiment.task
    assert (task.length_penalty, task.decoding.length_power, task.decoding.early_stopping) == expected


def test_flags_of_two_searches_and_of_no_search_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--length_penalty has no effect .*--length_power, as they are of different"):
        parse_arguments(COMMAND, ["--workdir=run", "--length_power=1", "--length_penalty=1"])
    with RunDirectory.claim(tmp_path / "run", resolve_config(CONFIG).to_config()):
        pass
    changes = search_changes(parse_arguments(COMMAND, [f"--workdir={tmp_path / 'run'}", "--length_power=1"]))
    with pytest.raises(UserError, match="which has no coverage_penalty or length_penalty to change"):
        open_run(tmp_path / "run", task_changes=changes)
    with RunDirectory.claim(tmp_path / "other", resolve_config(TRANSLATION).to_config()):
        pass
    with pytest.raises(UserError, match=r"has no decoding\.power or decoding\.samples\.x or other\.x to change"):
        open_run(tmp_path / "other", task_changes=dict.fromkeys(("decoding.power", "other.x", "decoding.samples.x")))


def test_a_flag_that_the_task_of_a_run_does_not_have_is_refused(tmp_path: Path) -> None:
    with RunDirectory.claim(tmp_path / "run", resolve_config(CONFIG).to_config()):
        pass
    with pytest.raises(UserError, match=r"run is a run of the task 'language_modeling', which has no num_beams to ch"):
        load_ensemble([tmp_path / "run"], task_changes={"num_beams": 2, "eval_parameters": "raw"})
