"""The wheel, installed where no checkout is: its files, its command, and runs, studies and pages made with it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGES = ("transformer", "launch")
CONFIG = '''"""A small language model of one's own text."""

from ml_collections import ConfigDict


def get_config():
    return ConfigDict(dict(
        name="mine", steps=2, log_every=1, eval_every=2, maps_every=2, checkpoint_every=2,
        task=dict(name="language_modeling", dataset="book.txt", tokenizer="characters", context_length=32, batch_size=8,
                  probe_length=16),
        model=dict(family="decoder", layers=1, width=16, heads=2, feed_forward=32, max_length=64),
        optimizer=dict(algorithm="adam", warmup_steps=2),
    ))


def get_sweep(sweep):
    return sweep.choice("optimizer.learning_rate", [1e-3, 3e-3])


def get_ablation(ablation):
    arms = {"slow": {}, "fast": {"optimizer.learning_rate": 3e-2}}
    return ablation(question="Is a faster rate better?", arms=arms, reference="slow", seeds=[1, 2])
'''
FAMILY = """
import dataclasses
from transformer.models import decoder

@dataclasses.dataclass(frozen=True)
class OwnConfig(decoder.DecoderConfig):
    pass

FAMILY = dataclasses.replace(decoder.FAMILY, config_class=OwnConfig, sizes={})
"""


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built as pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    built = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


class Installed(NamedTuple):
    """An environment that has the wheel, and a folder of one's own."""

    environment: Path
    folder: Path

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call a program of the environment in the folder, as with the environment activated."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADWISE"))}
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        # One device, and programs as quickly compiled as those of the tests.
        variables |= {"PATH": path, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        program = shutil.which(words[0], path=path) or words[0]
        return subprocess.run(
            [program, *words[1:]], cwd=self.folder, env=variables, capture_output=True, text=True, check=False
        )

    def done(self, *words: str) -> str:
        """What a call prints that succeeds."""
        ended = self.call(*words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def refused(self, *words: str) -> str:
        """The one line of a call that is a mistake."""
        ended = self.call(*words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
        return ended.stderr


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel and the packages of this one, but not this checkout, and a folder to work in.

    The folder has files by the names of the library, which nothing may take for it.
    """
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("research")
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    packages = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # Lines of a .pth file are searched, and no .pth file that lies there is read: the checkout is not found.
    (site / "packages.pth").write_text("\n".join(packages) + "\n")
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile"]
    done = subprocess.run([*pip, str(wheel)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Somebody else's, as a careless package leaves it.
    (site / "experiments" / "captioning").mkdir(parents=True)
    for file in ("experiments/__init__.py", "experiments/captioning/task.py"):
        (site / file).write_text("raise SystemExit('not of this library')\n")
    for package in (*PACKAGES, "experiments"):
        (folder / f"{package}.py").write_text("raise SystemExit('not the library')\n")
    (folder / "my.py").write_text(CONFIG)
    (folder / "lab").mkdir()
    (folder / "lab" / "mine.py").write_text(FAMILY)
    (folder / "book.txt").write_text("".join(f"The fox number {n} sleeps and the dog wakes.\n" for n in range(400)))
    return Installed(environment, folder)


@pytest.fixture(scope="module")
def trained(installed: Installed) -> str:
    """What training a run in the folder `run` prints, by a model of one's own."""
    return installed.done("headwise", "train", "--config=my.py", "--workdir=run", "--config.model.family=lab.mine")


def test_the_wheel_holds_the_library_and_its_commands_alone(root: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entries,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    files = {path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()}
    assert names == {path.relative_to(root).as_posix() for path in files if "__pycache__" not in path.parts}
    assert {Path(name).suffix for name in names} == {".py", ".js", ".ts", ".css", ".html", ".json", ".yaml", ".sbatch"}
    scripts = ConfigParser()
    scripts.read_string(entries)
    assert dict(scripts["console_scripts"]) == {"headwise": "launch.headwise:main"}


def test_the_environment_has_no_checkout(root: Path, installed: Installed) -> None:
    said = installed.done("python", "-P", "-c", "import sys, transformer; print(transformer.__file__, *sys.path)")
    file, *path = said.split()
    assert Path(file).is_relative_to(installed.environment)
    assert str(root) not in path


def test_headwise_lists_its_commands_and_refuses_what_is_none(installed: Installed) -> None:
    said = installed.done("headwise", "--help")
    assert re.search(r"\n  train +Train a model, or resume a run that was stopped\.\n", said)
    assert installed.done("headwise", "--version") == "0.1.0\n"
    assert "usage: headwise sweep --config=VALUE --workdir=VALUE" in installed.done("headwise", "sweep", "--help")
    assert "did you mean 'train'?" in installed.refused("headwise", "tarin")
    # By its path, where the environment is not activated.
    script = str(installed.environment / "bin" / "headwise")
    bare = subprocess.run([script, "maps"], cwd=installed.folder, capture_output=True, text=True, check=False)
    assert f"for example: {script} maps --workdir=" in bare.stderr


def test_a_run_is_trained_and_names_what_to_do_next(installed: Installed, trained: str) -> None:
    assert "complete; write the page of its heads: headwise maps --workdir=run --trust=lab.mine\n" in trained
    (start,) = json.loads((installed.folder / "run" / "environment.json").read_text())
    assert (start["commit"], start["packages"]["headwise"]) == (None, "0.1.0")
    assert start["command"].endswith("headwise train --config=my.py --workdir=run --config.model.family=lab.mine")


def test_what_only_a_checkout_has_is_told_in_one_line(installed: Installed) -> None:
    train = ("headwise", "train", "--workdir=x")
    missing = "in Headwise's repository, which an installed library does not hold: clone it, or name a Python file of"
    assert missing in installed.refused(*train, "--config=experiments/demo.py")
    project = ("--config=my.py", "--config.task.name=experiments.captioning.task")
    assert "which an installed library does not hold: clone the repository" in installed.refused(*train, *project)
    for name in ("reproduce", "benchmark", "compile_experiments", "backend_support", "generate_docs"):
        assert f"unknown command '{name}'" in installed.refused("headwise", name)


@pytest.mark.slow
def test_the_commands_that_training_prints_run_as_they_stand(installed: Installed, trained: str) -> None:
    printed = [shlex.split(line.partition(": ")[2].strip()) for line in trained.splitlines() if ": headwise " in line]
    assert [words[:2] for words in printed] == [["headwise", "maps"], ["headwise", "evaluate"]]
    for words in printed:
        installed.done(*words)
    assert "decoder/" in (installed.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "add --trust=lab.mine," in installed.refused(*printed[1][:-1])


@pytest.mark.slow
def test_a_sweep_trains_its_trials_in_processes_of_their_own(installed: Installed) -> None:
    said = installed.done("headwise", "sweep", "--config=my.py", "--workdir=sweep", "--num_workers=2")
    assert "2 of 2 finished: 2 done" in said
    (best,) = [line.partition("train it again")[2] for line in said.splitlines() if "train it again" in line]
    assert "headwise train --config=my.py --config.optimizer.learning_rate=" in best
    installed.done(*shlex.split(best))
    page = (installed.folder / "sweep" / "sweep.html").read_text(encoding="utf-8")
    assert '"maps_command":"headwise maps"' in page
    assert '"command":"headwise sweep --config=my.py --workdir=sweep --num_workers=2"' in page


@pytest.mark.slow
def test_an_ablation_compares_its_arms(installed: Installed) -> None:
    said = installed.done("headwise", "ablate", "--config=my.py", "--workdir=study")
    assert "4 of 4 finished: 4 done" in said
    result = json.loads((installed.folder / "study" / "ablation.json").read_text())
    assert result["about"]["command"] == "headwise ablate --config=my.py --workdir=study"
    assert result["about"]["maps_command"] == "headwise maps"
    assert all("headwise train --config=my.py" in cell["command"] for cell in result["runs"])


@pytest.mark.slow
def test_several_processes_of_this_machine_train_together(installed: Installed) -> None:
    launcher = ("headwise", "clusters.local", "--num_processes=2")
    said = installed.done(*launcher, "--", "--config=my.py", "--workdir=together")
    assert "[0] complete; write the page of its heads: headwise maps --workdir=together\n" in said


@pytest.mark.slow
def test_a_benchmark_measures_the_library_that_is_installed(installed: Installed) -> None:
    said = installed.done("headwise", "benchmark_backends", "--sequence_lengths=16", "--repeats=1")
    assert "einsum" in said
