"""Whether this is a checkout or an installed library, and how commands are called in each."""

import os
import sys
from pathlib import Path

import pytest

from transformer.system import command_invocation
from transformer.system.command_invocation import (
    find_checkout,
    register_console_script,
    shell_command,
    subprocess_command,
)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the package."""
    monkeypatch.setattr(command_invocation, "PACKAGE_PARENT", tmp_path)
    return tmp_path


def test_the_tests_run_from_a_checkout(root: Path) -> None:
    assert find_checkout() == root


def test_a_checkout_has_experiments_and_no_record_of_an_installation(beside: Path) -> None:
    assert find_checkout() is None
    (beside / "experiments").mkdir()
    assert find_checkout() is None
    (beside / "experiments" / "__init__.py").touch()
    assert find_checkout() == beside
    # Where libraries are installed, a folder of that name is whoever's.
    (beside / "headwise-0.1.0.dist-info").mkdir()
    assert find_checkout() is None


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A console script, in a folder that is not on PATH."""
    monkeypatch.setenv("HEADWISE_COMMAND", "")
    monkeypatch.setenv("PATH", os.defpath)
    path = tmp_path / "bin" / "headwise"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_commands_are_named_as_modules_unless_the_console_script_was_started(script: Path) -> None:
    assert shell_command("clusters.local") == ["python", "-m", "launch.clusters.local"]
    assert subprocess_command("sweep") == [sys.executable, "-m", "launch.sweep"]


def test_the_console_script_is_named_as_a_shell_finds_it(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_console_script(str(script))
    assert shell_command("maps") == [str(script), "maps"]
    monkeypatch.chdir(script.parent)
    register_console_script("./headwise")
    assert shell_command("maps") == [str(script), "maps"]
    monkeypatch.setenv("PATH", str(script.parent))
    register_console_script(str(script))
    assert shell_command("maps") == ["headwise", "maps"]
    assert subprocess_command("sweep") == [sys.executable, "-P", "-m", "launch.headwise", "sweep"]
    # A script of the same name that comes first on PATH is another one.
    other = script.parent.with_name("other") / "headwise"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    register_console_script(str(other))
    assert shell_command("maps") == [str(other), "maps"]
