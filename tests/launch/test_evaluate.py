"""How launch.evaluate reads its flags, and refuses those that are not for a run."""

from pathlib import Path

import pytest

from launch.evaluate import COMMAND, parse_num_shots
from launch.flag_parsing import parse_arguments
from tests.training.written_run import CONFIG
from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.training.config import resolve_config
from transformer.training.run_loading import load_ensemble


def test_shots_are_whole_numbers() -> None:
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,1,4"])) == (0, 1, 4)
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run"])) is None
    with pytest.raises(UserError, match=r"--num_shots=0,x must be whole numbers from 0 to 2147483647, joined"):
        parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,x"]))


def test_a_flag_that_the_task_of_a_run_does_not_have_is_refused(tmp_path: Path) -> None:
    with RunDirectory.claim(tmp_path / "run", resolve_config(CONFIG).to_config()):
        pass
    with pytest.raises(UserError, match=r"run is a run of the task 'language_modeling', which has no num_beams to ch"):
        load_ensemble([tmp_path / "run"], task_changes={"num_beams": 2, "eval_parameters": "raw"})
