"""Runs and sweeps under paths that a library could take for something else: the same files and figures, or refused."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launch.evaluate
import launch.maps
import launch.sweep
import launch.train
from launch import cli
from tests.launch.test_sweep import CONFIG
from tests.training.small_run import without_clock
from transformer.maps.store import MapStore
from transformer.runs.checkpoint import Checkpoints
from transformer.training import build, partitioning

# Together what the slow test tries one by one.
MANY = "a[b] *?~$HOME#%20;c:d&'e\"漢字{f}=,@!..."
NAMES = (
    "a[b]",
    "[!a]",
    "a*b?",
    "**",
    "~a",
    "$HOME",
    "a:b=c,d@e",
    "漢字é",
    "dots...",
    "n" * 200,
    "a b'c\"d#e%20f",
    "link",
)
REFUSED = ("a\\b", "logs:", "a.__lock")


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharding has its tests."""
    monkeypatch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the commands are called in, with a config file."""
    folder = tmp_path_factory.mktemp("runs")
    text = CONFIG.replace("SPACE", "sweep.choice('seed', [1])").replace('"maps_every": 0', '"maps_every": 2')
    (folder / "smallest.py").write_text(text)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    """What is found under a plain path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        return found_under("plain")


def call(command: Any, *words: str) -> int:
    try:
        return cli.run(command.COMMAND, command.main, words)
    except SystemExit as ended:  # a worker's
        return int(ended.code or 0)


def found_under(name: str) -> dict[str, Any]:
    """Train, resume, evaluate, map and sweep under a path; the files and the figures of it."""
    run, sweep = Path("runs") / name, Path("sweeps") / name
    for path in (run, sweep):
        path.parent.mkdir(exist_ok=True)
        if name == "link":
            path.with_name("meant [there]").mkdir()
            path.symlink_to("meant [there]")
    for words in (["--config=smallest.py", "--config.steps=2"], ["--config.steps=4"]):
        assert call(launch.train, f"--workdir={run}", *words) == 0
    assert call(launch.evaluate, f"--workdir={run}") == 0
    assert call(launch.maps, f"--workdir={run}") == 0
    assert call(launch.sweep, "--config=smallest.py", f"--workdir={sweep}", "--worker") == 0
    with Checkpoints.open_read_only(run / "checkpoints") as checkpoints:
        checkpoint = checkpoints.read(4)
    (trial,) = (sweep / "trials").iterdir()
    store = MapStore.open_existing(run / "maps")
    return {
        "files": sorted({_without_names(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}),
        "of the sweep": sorted({_without_names(path.relative_to(sweep)) for path in sweep.rglob("*")}),
        "leaves": checkpoint._entries,
        "metrics": [without_clock(run), without_clock(trial)],
        "maps": {site.name: store.read(site.name, 4).tobytes() for site in store.sites},
    }


def _without_names(path: Path) -> str:
    """A file's path without what no two runs share: times, and the names that orbax gives its files."""
    return re.sub(r"[0-9a-f]{16,}|tfevents\..*|\d+\.new", "", str(path))


@pytest.mark.slow
def test_a_path_of_many_special_characters_is_one_as_any(plain: dict[str, Any], folder: Path) -> None:
    assert found_under(MANY) == plain
    # Nothing was made beside it.
    assert sorted(os.listdir(folder / "runs")) == sorted(["plain", MANY])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_awkward_path_is_one_as_any(plain: dict[str, Any], folder: Path, name: str) -> None:
    assert found_under(name) == plain


@pytest.mark.parametrize("name", REFUSED)
def test_a_path_that_cannot_be_is_refused_before_anything_is_made(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(os.listdir(folder))
    for command, words in ((launch.train, []), (launch.sweep, ["--worker"])):
        assert call(command, "--config=smallest.py", f"--workdir={name}", *words) == 2
        assert capsys.readouterr().err.startswith(f"error: {name} cannot hold a run: ")
    # Python keeps the config file's bytecode beside it.
    assert set(os.listdir(folder)) - {"__pycache__"} == before - {"__pycache__"}
