"""The public names of the packages: each resolves lazily, `dir` lists no other, and the API reference has them."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_collections import ConfigDict

import transformer
from tests.markdown import ROOT
from transformer.config import UserError
from transformer.training import build
from transformer.training.config import resolve_config
from transformer.training.partitioning import single_device_placement

LAZY = ("data", "decoding", "layers", "models", "tasks", "training")
CONFIG = {
    "name": "small",
    "steps": 1,
    "checkpoint_every": 1,
    "log_every": 1,
    "task": {
        "name": "language_modeling",
        "dataset": "repeated/num_symbols=8,min_segment_length=2,max_segment_length=4,length=16,"
        "train=32,validation=8,test=8",
        "context_length": 16,
        "probe_length": 8,
    },
    "model": {"family": "decoder", "layers": 1, "width": 16, "heads": 2, "feed_forward": 16},
    "optimizer": {"learning_rate": 1e-3},
}


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Train on one device: sharding has its tests, and makes these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: single_device_placement())
        yield


def output_of(program: str, *, folder: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("package", [transformer, *(getattr(transformer, name) for name in LAZY)], ids=str)
def test_every_public_name_resolves_and_dir_lists_no_other(package: object) -> None:
    assert isinstance(package, type(transformer))
    assert dir(package) == sorted(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__name__ == name
    assert not hasattr(package, "nothing")


@pytest.mark.parametrize("name", LAZY)
def test_no_module_has_a_public_name(name: str) -> None:
    """Importing a module sets the attribute of its package, which would then be the module."""
    package = getattr(transformer, name)
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} & set(package.__all__) == set()


def test_second_level_names_need_no_other_import() -> None:
    program = (
        "import transformer\n"
        "print(transformer.training.train.__module__, transformer.models.decoder.__name__, transformer.__version__)\n"
        "print(transformer.layers.MultiHeadAttention.__name__, transformer.models.DecoderConfig.__name__)\n"
        "import transformer.training.driver, transformer.decoding.generation\n"
        "print(transformer.training.train.__name__, transformer.decoding.generate.__name__)\n"
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert output_of(program).splitlines() == [
        f"transformer.training.driver transformer.models.decoder {version}",
        "MultiHeadAttention DecoderConfig",
        "train generate",
    ]


def test_importing_packages_imports_nothing_else() -> None:
    names = [f"transformer.{name}" for name in LAZY]
    program = (
        f"import sys, importlib\nfor name in {names}: dir(importlib.import_module(name))\n"
        "print(sorted({'jax', 'numpy', 'flax', 'grain', 'orbax'} & set(sys.modules)))"
    )
    assert output_of(program) == "[]\n"


def test_the_api_reference_has_every_package_with_public_names() -> None:
    marks = {
        mark
        for page in (ROOT / "docs" / "api").glob("*.md")
        for mark in re.findall(r"<!-- api: ([\w.]+) -->", page.read_text())
    }
    assert {f"transformer.{name}" for name in (*LAZY, "attention")} <= marks
    assert {name.removeprefix("transformer.") for name in marks} <= set(transformer.__all__)


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_imports_public_names_from_their_packages(notebook: Path) -> None:
    lines = re.findall(r'^ +"((?:from|import) transformer[^"]*?)\\n"', notebook.read_text(), re.MULTILINE)
    assert len(lines) <= 8
    for line in lines:
        if line.startswith("from"):
            package = importlib.import_module(line.split()[1])
            above = importlib.import_module(".".join(line.split()[1].split(".")[:2]))  # benchmarks and costs name none
            assert above.__name__ == "transformer.config" or package is above or not hasattr(above, "__all__"), line


@pytest.mark.parametrize("make", [dict, ConfigDict, resolve_config], ids=["dict", "ConfigDict", "ExperimentConfig"])
def test_train_takes_a_config_of_any_kind(make: type, tmp_path: Path) -> None:
    run = transformer.train(make(CONFIG), str(tmp_path / "run"))
    assert run.metrics_file.is_file()
    # Again: a complete run stays as it is, and another config is refused.
    assert transformer.train(make(CONFIG), tmp_path / "run").path == run.path
    with pytest.raises(UserError, match="seed"):
        transformer.train({**CONFIG, "seed": 5}, tmp_path / "run")
