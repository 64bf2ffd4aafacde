"""How Headwise is on this machine, a checkout or an installed library, and how its commands are called there."""

import os
import shutil
import sys
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[1]
"""The folder that holds this package: the checkout, or the folder of the installed libraries."""
# The word that the console script was started by, for this process and those that it starts.
_STARTED_AS = "HEADWISE_COMMAND"


def checkout() -> Path | None:
    """The checkout that this package lies in, which has the experiments; None in an installed library.

    Beside an installed package stands the record of its installation; a folder `experiments` there is not ours.
    """
    installed = any(BESIDE.glob("headwise-*.dist-info"))
    return None if installed or not (BESIDE / "experiments" / "__init__.py").is_file() else BESIDE


def start_as_console_script(script: str) -> None:
    """Note that this process was started by `script`, the console script: messages name the commands by it.

    A script that a shell does not find by its name is named by its path.
    """
    name = os.path.basename(script)
    found = shutil.which(name)
    same = found is not None and os.path.exists(script) and os.path.samefile(found, script)
    os.environ[_STARTED_AS] = name if same else os.path.abspath(script)


def command_words(name: str) -> list[str]:
    """The words that begin a call of the command `name`, such as "clusters.slurm", for who reads messages here.

    In a process of the console script, and in those that it started, they are `headwise NAME`; else
    `python -m launch.NAME`.
    """
    started_as = os.environ.get(_STARTED_AS)
    return [started_as, name] if started_as else ["python", "-m", f"launch.{name}"]


def process_words(name: str) -> list[str]:
    """The words that start the command `name` as another process of this machine, on the code of this one.

    A console script does not import from the working directory, which may hold a transformer.py: nor do its processes.
    """
    if os.environ.get(_STARTED_AS):
        return [sys.executable, "-P", "-m", "launch.headwise", name]
    return [sys.executable, "-m", f"launch.{name}"]
