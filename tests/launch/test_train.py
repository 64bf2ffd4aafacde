"""What `launch.train` says beside what it trains."""

import shlex
from pathlib import Path

import launch.evaluate
import launch.maps
from launch.train import describe_next_commands


def test_a_complete_run_is_told_with_the_commands_that_look_at_it() -> None:
    said = describe_next_commands(
        Path("runs/my run"), {"task": {"name": "translation"}, "model": {"family": "decoder"}}
    )
    for line, command in zip(said.splitlines(), (launch.maps.COMMAND, launch.evaluate.COMMAND), strict=True):
        words = shlex.split(line.partition("python -m ")[2])
        assert words == [f"launch.{command.name}", "--workdir=runs/my run"]
