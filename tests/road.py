"""How much a newcomer reads between the command `train` and the logits of attention.

    python -m tests.road

The files of this project that have a call open at the moment in which the first training step multiplies queries by
keys: whoever follows a query from the command to its logits reads these, and no others. Each counts whole, comments and
docstrings included. Prints a line a file, outermost first, and their sum.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "experiments/language/induction.py"
WORDS = ("--config.maps_every=0", "--config.head_statistics_every=0")


class _Multiplied(BaseException):
    """Raised where queries meet keys, to end the run."""

    def __init__(self, files: list[str]):
        super().__init__()
        self.files = files


def _ours(frame: FrameType) -> str | None:
    """The file of a frame from the root of the checkout; None where it is not of the library or its commands."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    return name if name.startswith(("transformer/", "launch/")) else None


def _watch(frame: FrameType, event: str, argument: Any) -> None:
    if event != "call" or frame.f_code.co_name != "einsum" or frame.f_back is None:
        return
    if not (_ours(frame.f_back) or "").startswith("transformer/attention/"):
        return
    files: list[str] = []
    caller: FrameType | None = frame.f_back
    while caller is not None:
        if (name := _ours(caller)) is not None:
            files.append(name)
        caller = caller.f_back
    if "transformer/training/loop.py" in files:
        raise _Multiplied(list(dict.fromkeys(reversed(files))))


def road() -> dict[str, int]:
    """The lines of every file on the road, outermost first."""
    import launch.train
    import transformer.training.train
    from launch.cli import run

    loop = transformer.training.train.run
    programs = transformer.training.train.programs_to_compile

    def watched(*arguments: Any, **named: Any) -> Any:
        sys.setprofile(_watch)  # only here: what is watched takes several times as long
        return loop(*arguments, **named)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        words = [f"--config={CONFIG}", f"--workdir={folder}/run", *WORDS]
        transformer.training.train.run = watched  # type: ignore[assignment]
        # A thread that traces the step first would leave the loop's own thread nothing to trace.
        transformer.training.train.programs_to_compile = lambda *_: iter(())
        try:
            run(launch.train.COMMAND, launch.train.main, words)
        except _Multiplied as end:
            return {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in end.files}
        finally:
            sys.setprofile(None)
            transformer.training.train.run = loop
            transformer.training.train.programs_to_compile = programs
    raise AssertionError("the run ended without a product of queries and keys in transformer/attention")


if __name__ == "__main__":
    lines = road()
    for file, count in lines.items():
        print(f"{count:6,}  {file}")
    print(f"{sum(lines.values()):6,}  in {len(lines)} files")
