"""How launch.evaluate reads its numbers of shots."""

import pytest

from launch.evaluate import COMMAND, parse_num_shots
from launch.flag_parsing import parse_arguments
from transformer.config import UserError


def test_shots_are_whole_numbers() -> None:
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,1,4"])) == (0, 1, 4)
    assert parse_num_shots(parse_arguments(COMMAND, ["--workdir=run"])) is None
    with pytest.raises(UserError, match=r"--num_shots=0,x must be whole numbers from 0 to 2147483647, joined"):
        parse_num_shots(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,x"]))
