"""Questions that git answers about this checkout, for tests that need them."""

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _git(*words: str) -> str:
    """What git prints for a command in the checkout; nothing where it fails."""
    ran = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return ran.stdout.strip()


@functools.cache
def is_shallow() -> bool:
    """Whether this is a checkout without its history."""
    return _git("rev-parse", "--is-shallow-repository") != "false"


def is_commit(name: str) -> bool:
    """Whether a name is a commit of this project."""
    return _git("cat-file", "-t", name) == "commit"


def was_tracked(path: Path) -> bool:
    """Whether a file was in some commit of this project; without the history it counts as one."""
    return is_shallow() or bool(_git("log", "--format=%h", "-1", "--", str(path)))


@functools.cache
def is_ignored(path: Path) -> bool:
    """Whether git ignores a file or folder, so that a fresh checkout has none."""
    return bool(_git("check-ignore", str(path)))
