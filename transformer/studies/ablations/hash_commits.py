"""Find the git commit that holds the hash of a registration: a timestamp that others can check."""

import dataclasses
import datetime
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from transformer.runs.run_directory import parse_time

_TIMEOUT = 120  # seconds of one search in a history
_CLOCK_DIFFERENCE = 86_400  # seconds by which two machines may disagree
_OLDEST = 1_000_000_000  # smaller numbers git takes for something else
_LOG = ("log", "--no-show-signature")  # a user's setting would print more lines
_GOOD_SIGNATURES = ("G", "U")  # git's %G?: valid, and valid by a key of unknown trust


@dataclasses.dataclass(frozen=True)
class HashCommit:
    """A commit whose message or files have a hash.

    Attributes:
        commit: The commit.
        date: Its date, as its committer wrote it, as ISO 8601 in UTC.
        is_signed: Whether it has a valid signature.
        pushed_to: A remote branch that has it, as far as this clone knows; empty if none has.
    """

    commit: str
    date: str
    is_signed: bool
    pushed_to: str


def find_hash_commit(sha256: str, since: datetime.datetime, folders: Sequence[Path]) -> HashCommit | None:
    """Find the oldest commit that adds a hash, in its message or in a file, on any branch.

    Args:
        sha256: The hash.
        since: When the hash was made; commits that are older by more than a day are not searched.
        folders: Folders of repositories. Git runs there, and takes their settings: name none of a stranger.

    Returns:
        The commit; None if there is none, no folder is in a repository, or there is no git.
    """
    commits: list[tuple[datetime.datetime, str, str]] = []
    oldest = f"--since={max(_OLDEST, int(since.timestamp()) - _CLOCK_DIFFERENCE)}"
    roots = dict.fromkeys(root for folder in folders if (root := _run_git(folder, "rev-parse", "--show-toplevel")))
    for root in roots:
        for search in (("--fixed-strings", f"--grep={sha256}"), (f"-S{sha256}", "--no-textconv", "--no-ext-diff")):
            lines = _run_git(Path(root), *_LOG, "--all", oldest, "--format=%H %cI", *search)
            for commit, _, date in (line.partition(" ") for line in lines.split("\n")):
                time = parse_time(date)
                if time is not None:
                    commits.append((time, commit, root))
    if not commits:
        return None
    time, commit, root = min(commits)
    branches = _run_git(Path(root), "branch", "--remotes", "--contains", commit, "--format=%(refname:short)")
    return HashCommit(
        commit,
        time.isoformat(timespec="seconds"),
        _run_git(Path(root), *_LOG, "-1", "--format=%G?", commit) in _GOOD_SIGNATURES,
        branches.partition("\n")[0],
    )


def describe_hash_commit(commit: HashCommit | None, num_runs_before: int) -> str:
    """Say which commit holds the hash of a registration.

    Args:
        commit: The commit; None if no commit has the hash.
        num_runs_before: The number of runs that began before the date of the commit.
    """
    if commit is None:
        return "Not timestamped: no commit holds the hash, so that registration.json alone says when it was made."
    signed = "signed" if commit.is_signed else "not signed"
    pushed = f"pushed to {commit.pushed_to}" if commit.pushed_to else "not pushed"
    sentence = f"The hash is in commit {commit.commit[:12]} of {format_time(commit.date)} ({signed}, {pushed})"
    if num_runs_before:
        return f"{sentence}, after {num_runs_before} runs had begun: it does not show that the registration is older."
    if not commit.is_signed and not commit.pushed_to:
        return f"{sentence}: this clone alone says so until it is pushed."
    return f"{sentence}."


def format_time(time: str) -> str:
    """Format a time such as "2026-11-27T15:35:47+00:00" as "2026-11-27 15:35 UTC"."""
    return f"{datetime.datetime.fromisoformat(time).astimezone(datetime.UTC).isoformat(' ')[:16]} UTC"


def _run_git(folder: Path, *words: str) -> str:
    """Return what a git command prints; nothing if it fails."""
    command = ["git", "-C", str(folder), *words]
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=_TIMEOUT, env=quiet
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
