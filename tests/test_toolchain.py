"""The set-up scripts: which Python they take, and when they install. Pythons here are small fakes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = ("sh", "dirname", "cmp", "cat", "cp", "rm", "mkdir")


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    """A checkout with the scripts and two locks, and a PATH that holds the bare tools."""
    shutil.copytree(root / ".ci", tmp_path / ".ci")
    (tmp_path / "requirements").mkdir()
    for lock in ("run", "dev", "docs"):
        (tmp_path / "requirements" / f"{lock}.txt").write_text(f"{lock} 1\n")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(path: Path) -> Path:
    """A Python that passes the probe by printing its own path, and writes down what it was asked to do."""
    return executable(
        path,
        'echo "$*" >> "$CALLS"\n'
        'case "$*" in\n'
        '  *_base_executable*) echo "$0" ;;\n'
        '  --version) echo "Python 3.13.9" ;;\n'
        '  *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;\n'
        '  *"pip install"*) [ ! -e broken ] || { echo "no such package"; exit 1; } ;;\n'
        "esac",
    )


def call(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": str(checkout / "bin"),
        "HOME": str(checkout),
        "CALLS": str(checkout / "calls"),
    } | environment
    return subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def installs(checkout: Path) -> int:
    return (checkout / "calls").read_text().count("pip install")


def test_a_python_on_path_is_taken_before_pyenv(checkout):
    here = python(checkout / "bin" / "python3.12")
    python(checkout / ".pyenv" / "versions" / "3.13.1" / "bin" / "python3")
    assert call(checkout, ".ci/find_python").stdout == f"{here}\n"


def test_a_shim_that_fails_is_passed_over(checkout):
    executable(checkout / "bin" / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    executable(checkout / "bin" / "python3", "exit 1")
    older = python(checkout / "root" / "versions" / "3.12.4" / "bin" / "python3")
    python(checkout / "root" / "versions" / "3.11.9" / "bin" / "python3")
    assert call(checkout, ".ci/find_python", PYENV_ROOT=str(checkout / "root")).stdout == f"{older}\n"
    newer = python(checkout / "root" / "versions" / "3.13.0" / "bin" / "python3")
    assert call(checkout, ".ci/find_python", PYENV_ROOT=str(checkout / "root")).stdout == f"{newer}\n"


def test_without_a_python_one_line_says_so(checkout):
    executable(checkout / "bin" / "python3", "exit 1")
    for script in ([".ci/find_python"], [".ci/install", "run"]):
        done = call(checkout, *script)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("error: no Python >= 3.12 found")


def test_an_unchanged_lock_installs_once_and_a_changed_one_again(checkout):
    python(checkout / "bin" / "python3.13")
    first = call(checkout, ".ci/install", "run")
    assert first.stdout.startswith("Making .venv with Python 3.13.9 and installing requirements/run.txt")
    again = call(checkout, ".ci/install", "run")
    assert (again.returncode, again.stdout, again.stderr, installs(checkout)) == (0, "", "", 1)
    # The time of a file says nothing: a checkout sets it anew.
    os.utime(checkout / "requirements" / "run.txt")
    call(checkout, ".ci/install", "run")
    assert installs(checkout) == 1
    (checkout / "requirements" / "run.txt").write_text("run 2\n")
    changed = call(checkout, ".ci/install", "run")
    assert changed.stdout.startswith("Installing requirements/run.txt into .venv")
    assert installs(checkout) == 2


def test_the_environment_imports_the_checkout_from_any_folder(checkout, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    elsewhere = f"import sysconfig; sysconfig.get_path = lambda _: '{library}'"
    real = f'exec "{sys.executable}" -c "{elsewhere}\n$2" "$3"'
    python(checkout / "bin" / "python3.13")
    fake = checkout / "bin" / "python3.13"
    fake.write_text(fake.read_text().replace("  --version)", f"  *headwise.pth*) {real} ;;\n  --version)"))
    for _ in range(2):
        assert call(checkout, ".ci/install", "run").returncode == 0
        path, platform = (library / "headwise.pth").read_text().splitlines()
        assert path == str(checkout)
        assert platform.startswith("import runpy; runpy.run_path")
        # One that was made before, or moved, is mended.
        (library / "headwise.pth").unlink()


@pytest.mark.parametrize("lock", ["dev", "docs"])
def test_the_locks_of_the_tests_and_of_the_site_serve_the_runs_too(checkout, lock):
    python(checkout / "bin" / "python3.13")
    call(checkout, ".ci/install", lock)
    call(checkout, ".ci/install", "run")
    assert installs(checkout) == 1


def test_a_failed_install_shows_its_log_and_is_tried_again(checkout):
    python(checkout / "bin" / "python3.13")
    (checkout / "broken").touch()
    failed = call(checkout, ".ci/install", "run")
    assert failed.returncode == 1
    assert "no such package" in failed.stderr
    assert "error: installing requirements/run.txt failed" in failed.stderr
    (checkout / "broken").unlink()
    assert call(checkout, ".ci/install", "run").returncode == 0
    assert installs(checkout) == 2


def test_after_a_failed_install_the_former_lock_is_installed_anew(checkout):
    python(checkout / "bin" / "python3.13")
    lock = checkout / "requirements" / "run.txt"
    former = lock.read_text()
    call(checkout, ".ci/install", "run")
    lock.write_text("run 2\n")
    (checkout / "broken").touch()
    call(checkout, ".ci/install", "run")
    (checkout / "broken").unlink()
    lock.write_text(former)
    call(checkout, ".ci/install", "run")
    assert installs(checkout) == 3


def test_clean_keeps_the_runs(root):
    recipe = (root / "Makefile").read_text().split("\nclean:")[1]
    assert "rm -rf .venv" in recipe
    assert not any("runs" in line for line in recipe.splitlines()[1:])
