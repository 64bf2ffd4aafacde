"""How launch.evaluate reads its numbers of shots."""

import pytest

from launch.evaluate import COMMAND, num_shots_of
from launch.flag_parsing import parse_arguments
from transformer.config import UserError


def test_shots_are_whole_numbers() -> None:
    assert num_shots_of(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,1,4"])) == (0, 1, 4)
    assert num_shots_of(parse_arguments(COMMAND, ["--workdir=run"])) is None
    with pytest.raises(UserError, match=r"--num_shots=0,x must be whole numbers from 0 to 2147483647, joined"):
        num_shots_of(parse_arguments(COMMAND, ["--workdir=run", "--num_shots=0,x"]))
