"""Whether Headwise runs from a checkout or is installed, its version, and how its commands are called."""

import importlib.metadata
import os
import shutil
import sys
import tomllib
from pathlib import Path

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
"""The folder that contains this package: the checkout, or the folder of installed libraries."""
# The environment variable with the name under which the console script was started.
_STARTED_AS = "HEADWISE_COMMAND"


def find_checkout() -> Path | None:
    """Return the checkout that this package is in, which has the experiments; None for an installed package.

    Next to an installed package is the record of its installation; a folder `experiments` there is not ours.
    """
    installed = any(PACKAGE_PARENT.glob("headwise-*.dist-info"))
    return None if installed or not (PACKAGE_PARENT / "experiments" / "__init__.py").is_file() else PACKAGE_PARENT


def headwise_version() -> str:
    """Return the version of this package: that of its checkout, or of the installed distribution."""
    declaration = PACKAGE_PARENT / "pyproject.toml"
    if find_checkout() is None or not declaration.is_file():
        return importlib.metadata.version("headwise")
    return tomllib.loads(declaration.read_text(encoding="utf-8"))["project"]["version"]


def register_console_script(script: str) -> None:
    """Record that this process was started by a console script, so that messages name commands by it.

    Args:
        script: The path of the script. If the shell does not find it by name, messages use its path.
    """
    name = os.path.basename(script)
    installed = shutil.which(name)
    is_installed = installed is not None and os.path.exists(script) and os.path.samefile(installed, script)
    os.environ[_STARTED_AS] = name if is_installed else os.path.abspath(script)


def shell_command(name: str) -> list[str]:
    """Return the words that call a command, for messages.

    They are `headwise NAME` in a process of the console script and its children, else `python -m launch.NAME`.

    Args:
        name: The name of the command, such as "clusters.local".
    """
    started_as = os.environ.get(_STARTED_AS)
    return [started_as, name] if started_as else ["python", "-m", f"launch.{name}"]


def subprocess_command(name: str, python: str | None = None) -> list[str]:
    """Return the words that start a command as another process of this machine, on the same code.

    A console script does not import from the working directory, which may have a transformer.py; nor do its processes.

    Args:
        name: The command.
        python: The Python that runs it; by default that of this process.
    """
    python = python or sys.executable
    if os.environ.get(_STARTED_AS):
        return [python, "-P", "-m", "launch.headwise", name]
    return [python, "-m", f"launch.{name}"]
