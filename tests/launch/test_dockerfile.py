"""The Dockerfile: what its layers copy, install and run, without Docker."""

import fnmatch
import json
import os
import re
import shutil
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

LOCKS = ("tpu", "gpu")


class Instruction(NamedTuple):
    name: str
    text: str


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile without comments, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def named(text: str, *names: str) -> list[str]:
    return [each.text for each in instructions(text) if each.name in names]


def ignored(patterns: list[str], path: str) -> bool:
    """Whether .dockerignore leaves out a path: a pattern without **/ counts from the root alone."""
    parts = path.split("/")
    places = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(
        fnmatch.fnmatchcase(part, pattern[3:]) for pattern in patterns if pattern.startswith("**/") for part in parts
    ) or any(fnmatch.fnmatchcase(place, pattern) for pattern in patterns for place in places)


class Image:
    """What a build of a Dockerfile does, in a folder instead of an image and a venv instead of its Python."""

    def __init__(self, context: Path, files: Path, python: Path, arguments: Mapping[str, str]):
        self.context, self.files, self.arguments = context, files, arguments
        lines = (context / ".dockerignore").read_text().splitlines()
        self.patterns = [line for line in lines if line and not line.startswith("#")]
        self.workdir = files
        self.variables: dict[str, str] = {}
        self.environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))},
        }

    def build(self, text: str) -> None:
        for each in instructions(text):
            getattr(self, f"do_{each.name.lower()}")(each.text)

    def place(self, path: str) -> Path:
        return self.files / path.lstrip("/") if path.startswith("/") else self.workdir / path

    def expand(self, text: str) -> str:
        return string.Template(text).substitute(self.variables)

    def do_arg(self, text: str) -> None:
        name, _, default = text.partition("=")
        self.variables[name] = self.arguments.get(name, default)

    def do_env(self, text: str) -> None:
        for word in text.split():
            name, _, value = self.expand(word).partition("=")
            # A folder of the image is one below `files`.
            self.environment[name] = str(self.place(value)) if value.startswith("/") else value

    def do_workdir(self, text: str) -> None:
        self.workdir = self.place(text)
        self.workdir.mkdir(parents=True, exist_ok=True)

    def do_copy(self, text: str) -> None:
        source, target = self.expand(text).split()
        if source != ".":
            self.place(target).mkdir(parents=True, exist_ok=True)
            shutil.copy(self.context / source, self.place(target))
            return
        for path in self.unignored():
            (self.place(target) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.context / path, self.place(target) / path)

    def unignored(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.context):
            place = Path(folder).relative_to(self.context)
            folders[:] = [name for name in folders if not ignored(self.patterns, (place / name).as_posix())]
            paths = [(place / name).as_posix() for name in files]
            yield from (path for path in paths if not ignored(self.patterns, path))

    def do_run(self, text: str) -> str:
        # A shell of the build sees the arguments as variables.
        done = subprocess.run(
            ["sh", "-c", text],
            cwd=self.workdir,
            env={**self.environment, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def do_from(self, text: str) -> None:
        assert re.fullmatch(r"python:3\.\d+-slim", text)

    def do_user(self, text: str) -> None:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", text)

    def do_cmd(self, text: str) -> None:
        self.command = json.loads(text)


@pytest.fixture
def dockerfile(root: Path) -> str:
    return (root / "Dockerfile").read_text()


def test_the_image_runs_as_a_user_without_rights_on_a_python_that_the_project_supports(root, dockerfile):
    (base,) = named(dockerfile, "FROM")
    (user,) = named(dockerfile, "USER")
    # Kubernetes can tell from numbers alone that it is not root.
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert [each.name for each in instructions(dockerfile)][-2:] == ["USER", "CMD"]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = base.removeprefix("python:").removesuffix("-slim")
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_all_that_is_installed_is_locked_by_hash_and_agrees_with_the_other_locks(root, dockerfile):
    installs = [line for line in named(dockerfile, "RUN") if "pip" in line]
    assert len(installs) == 1
    assert "--require-hashes" in installs[0]
    assert "--no-cache-dir" in installs[0]
    assert re.findall(r"--requirement=(\S+)", installs[0]) == ["requirements/${ACCELERATOR}.txt"]
    assert "ACCELERATOR=tpu" in named(dockerfile, "ARG")
    pinned = {}
    for lock in ("run", "dev", *LOCKS):
        text = (root / "requirements" / f"{lock}.txt").read_text()
        entries = re.split(r"\n(?=\S)", text.strip())
        assert all("--hash=sha256:" in entry for entry in entries)
        pinned[lock] = {entry.split("==")[0]: re.split(r"[ ;\\]", entry)[0] for entry in entries}
    for lock, plugin in zip(LOCKS, ("libtpu", "jax-cuda13-plugin"), strict=True):
        assert {plugin, "gcsfs", "google-cloud-storage"} <= set(pinned[lock])
        assert set(pinned["run"].values()) <= set(pinned[lock].values())
        known = {name: pin for name, pin in pinned[lock].items() if name in pinned["dev"]}
        assert known.items() <= pinned["dev"].items()


def test_the_code_is_copied_after_the_packages_and_without_what_no_run_needs(root, dockerfile):
    order = [each for each in instructions(dockerfile) if each.name in ("COPY", "RUN")]
    install = next(number for number, each in enumerate(order) if "pip" in each.text)
    assert [each.text for each in order[install:] if each.name == "COPY"] == [". ."]
    patterns = (root / ".dockerignore").read_text().splitlines()
    for line in (root / ".gitignore").read_text().splitlines():
        bare = line.strip("/")
        assert {bare, f"**/{bare}"} & set(patterns), f".dockerignore lacks {line}"
    for path in (".git/config", "tests/a.py", "runs/demo/config.json", "launch/__pycache__/a.pyc", "a/node_modules/b"):
        assert ignored(patterns, path)
    for path in ("launch/train.py", "transformer/runs/checkpoint.py", "experiments/demo.py", "pyproject.toml"):
        assert not ignored(patterns, path)


@pytest.mark.slow
def test_the_layers_build_and_train(root, tmp_path, dockerfile, request):
    # Nearly two gigabytes, which pytest would keep.
    request.addfinalizer(lambda: shutil.rmtree(tmp_path / "venv"))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    commit = "0123456789abcdef"
    image = Image(root, tmp_path / "image", tmp_path / "venv" / "bin" / "python", {"COMMIT": commit})
    image.build(dockerfile)
    assert not (image.workdir / "tests").exists()
    image.environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    Path(image.environment["HOME"]).mkdir()
    image.do_run("python -m pip check && python -c 'import libtpu, gcsfs, google.cloud.storage'")
    assert "--workdir" in image.do_run(" ".join(image.command))
    # As a pod starts it: in the folder of the image, with nothing of this environment.
    image.do_run(
        "python -m launch.train --config=experiments/demo.py --workdir=$HOME/run --grace_seconds=240 "
        "--config.steps=2 --config.eval_every=0 --config.maps_every=0 --config.head_statistics_every=0"
    )
    run = Path(image.environment["HOME"]) / "run"
    (started,) = json.loads((run / "environment.json").read_text())
    assert started["commit"] == commit
    assert (run / "metrics.jsonl").exists()
