"""A run answers, shows and publishes what it is judged by: the parameters that its config evaluates."""

import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer
from launch import cli, generate
from tests.training.written_run import CONFIG, with_average, with_params, write_run
from transformer.interpret import show
from transformer.maps.store import MapStore
from transformer.runs.run_directory import RunDirectory
from transformer.training.huggingface_conversion import export_to_huggingface
from transformer.training.run_loading import load_run
from transformer.training.run_setup import compile_run_probe

pytestmark = pytest.mark.slow

SITE = "decoder/self"
AVERAGES = {"slow": {"kind": "exponential", "patterns": ("layers/*", "embedding/*")}}
AVERAGED = CONFIG | {"parameter_averages": AVERAGES, "task": {**CONFIG["task"], "eval_parameters": "slow"}}
Shown = Callable[[Path], Mapping[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run judged by an average of some parameters, one that has learned the same numbers, and one of others."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "averaged": write_run(folder / "averaged", AVERAGED, with_average("slow", 5)),
        "plain": write_run(folder / "plain", CONFIG, with_params(5)),
        "raw": write_run(folder / "raw", CONFIG, with_params(6)),
    }


@pytest.fixture
def same(runs: dict[str, Path]) -> Callable[[Shown], None]:
    """Whether the first run shows what the second shows, which the third does not."""

    def check(shown: Shown) -> None:
        found = {name: shown(run) for name, run in runs.items()}
        assert found["averaged"].keys() == found["plain"].keys()
        for name, values in found["plain"].items():
            np.testing.assert_array_equal(found["averaged"][name], values, err_msg=name)
        assert any(not np.array_equal(found["raw"][name], values) for name, values in found["plain"].items())

    return check


def test_what_is_generated_and_its_maps(same: Callable[[Shown], None], capsys: pytest.CaptureFixture[str]) -> None:
    def generated(run: Path) -> dict[str, Any]:
        assert (
            cli.run(generate.COMMAND, generate.main, [f"--workdir={run}", "--text=Permission", "--max_new_tokens=8"])
            == 0
        )
        lines = capsys.readouterr().out
        (folder,) = (run / "generated").iterdir()
        return {"lines": lines, "maps": MapStore.open_existing(folder / "maps").read(SITE, 0)}

    same(generated)


def test_the_page_of_a_checkpoint(same: Callable[[Shown], None], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        show, "write_report", lambda run, budget, maps: seen.append(MapStore.open_existing(maps).read(SITE, 0))
    )

    def shown(run: Path) -> dict[str, Any]:
        show.write_checkpoint_report(RunDirectory.open(run))
        return {"maps": seen.pop()}

    same(shown)


def test_the_maps_of_a_text(same: Callable[[Shown], None]) -> None:
    same(lambda run: {"maps": transformer.load(run).run_with_maps("Permission")[SITE].weights})


def test_the_probe_in_training(same: Callable[[Shown], None]) -> None:
    def kept(run: Path) -> dict[str, Any]:
        experiment, setting, state = load_run(run)
        opened: Any = types.SimpleNamespace(experiment=experiment, directory=RunDirectory.open(run))
        return {
            str(place): np.asarray(leaf)
            for place, leaf in enumerate(jax.tree.leaves(compile_run_probe(setting, opened).run(state)))
        }

    same(kept)


def test_what_is_published(same: Callable[[Shown], None], tmp_path: Path) -> None:
    def published(run: Path) -> dict[str, Any]:
        made = export_to_huggingface(run, tmp_path / run.name)
        assert ("the parameters are the average 'slow', by which the run is judged" in made.notes) == (
            run.name == "averaged"
        )
        return load_file(tmp_path / run.name / "model.safetensors")

    same(published)
