"""The search for an onset finds the planted step, wherever it lies, with as few maps as a bisection needs."""

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launch.config_files import load_config
from tests.maps.test_head_roles import CAUSAL, LABELS, planted
from transformer.config import UserError
from transformer.interpret import role_onset
from transformer.interpret.role_onset import find_role_onsets, parse_head, parse_role
from transformer.maps.capture_plan import quantize_maps, resolution_levels, statistic_names
from transformer.maps.role_rules import Role
from transformer.maps.store import MapStore
from transformer.runs.run_directory import RunDirectory, describe_environment
from transformer.training.config import resolve_config
from transformer.training.driver import train
from transformer.training.replay import ReplayedSteps, StartingPoint, open_replay

SITE = dataclasses.replace(CAUSAL, heads=("0", "1"))
LAST = 32
CHECKOUT = Path(__file__).resolve().parents[2]
# At each step the habit of every head: it plays the role from its onset on.
Onsets = Sequence[int | None]


def write_maps(store: MapStore, step: int, onsets: Onsets, strength: float = 0.9) -> None:
    """Write the maps of heads of which each plays the role from its own step on."""
    heads = [
        planted("by -1", CAUSAL, strength if onset is not None and step >= onset else 0.05).weights for onset in onsets
    ]
    weights_BxLxHxQxK = np.concatenate(heads, axis=2)
    weights = np.moveaxis(weights_BxLxHxQxK, 1, 0).astype(np.float32)
    levels = resolution_levels(*weights.shape[-2:], store.resolutions.level_sizes)
    statistics = dict.fromkeys(statistic_names(SITE, store.labels), np.zeros(weights.shape[:3], np.float32))
    store.write(step, {SITE.name: quantize_maps(weights, levels, statistics)})


def open_store(path: Path) -> MapStore:
    return MapStore.open(path, (SITE,), LABELS.with_axis_names((SITE,)), "0" * 64)


class PlantedRun:
    """A run whose state is its step, with the maps that follow from it."""

    def __init__(self, folder: Path, onsets: Onsets, stored: Sequence[int], saved: Sequence[int] = ()):
        self.onsets, self.steps, self.first_step, self.last_step = onsets, list(saved), 0, LAST
        self.components = SimpleNamespace(model=SimpleNamespace(sites=(SITE,)))
        self.directory = RunDirectory(folder / "run")
        self.num_trained = 0
        self.directory.path.mkdir()
        self.directory.environment_file.write_text(json.dumps([describe_environment()]))
        if stored:
            store = open_store(self.directory.maps_dir)
            for step in stored:
                write_maps(store, step, onsets)

    def start_before(self, step: int) -> StartingPoint:
        saved = max((saved for saved in self.steps if saved <= step), default=0)
        return StartingPoint(saved, state_of(saved))

    def train_on(self, start: StartingPoint, until: int, keep: Collection[int] = ()) -> ReplayedSteps:
        assert int(start.state) == start.step <= until
        self.num_trained += until - start.step
        return ReplayedSteps(
            start.step, state_of(until), {step: state_of(step) for step in keep if start.step <= step <= until}, {}
        )

    def compile_probe(self) -> None:
        return None


def state_of(step: int) -> Any:
    return np.int32(step)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make a planted run, whose probe writes the maps that its state says."""

    def store_probe(run: PlantedRun, probe: None, state: Any, step: int, path: Path) -> MapStore:
        assert int(state) == step
        store = open_store(path)
        write_maps(store, step, run.onsets)
        return store

    monkeypatch.setattr(role_onset, "store_probe", store_probe)
    numbers = iter(range(100))

    def make(onsets: Onsets, stored: Sequence[int] = range(0, LAST + 1, 8), saved: Sequence[int] = ()) -> Any:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return PlantedRun(folder, onsets, stored, saved)

    return make


@pytest.mark.parametrize("onset", [1, 8, 9, 15, 20, 32])
def test_the_planted_step_is_found(onset: int, plant: Callable[..., Any]) -> None:
    run = plant([onset, None])
    result = find_role_onsets(run, Role.PREVIOUS_TOKEN)
    (found,) = result.onsets
    assert (found.head.layer, found.head.head, found.step) == (0, 0, onset)
    assert found.score_before < 0.4 <= found.score
    assert found.bracket == (8 * ((onset - 1) // 8), 8 * ((onset - 1) // 8) + 8)
    assert found.num_probes == 3
    assert result.num_steps <= found.bracket[0] + 8
    assert result.verdict.startswith("bit-identical to what ran: ")


def test_the_bracket_need_not_be_a_power_of_two(plant: Callable[..., Any]) -> None:
    for onset in (3, 6, 7, 18, 30, LAST):
        (found,) = find_role_onsets(plant([onset, None], stored=(0, 5, 6, LAST)), Role.PREVIOUS_TOKEN).onsets
        assert found.step == onset
        first, last = found.bracket
        assert found.num_probes <= math.ceil(math.log2(last - first))


def test_heads_share_the_maps_of_a_bracket(plant: Callable[..., Any]) -> None:
    run = plant([19, 21])
    result = find_role_onsets(run, Role.PREVIOUS_TOKEN)
    assert [(found.head.head, found.step) for found in result.onsets] == [(0, 19), (1, 21)]
    # Steps 20, 18 and 19; then 22 and 21.
    assert sum(found.num_probes for found in result.onsets) == 5
    # The way to the bracket is made once.
    assert result.num_steps < 2 * 16


def test_a_search_starts_from_the_nearest_checkpoint(plant: Callable[..., Any]) -> None:
    run = plant([21, None], saved=(4, 15, 18, 30))
    result = find_role_onsets(run, Role.PREVIOUS_TOKEN)
    assert result.onsets[0].step == 21
    # 15 to 16, where the bracket begins; 18 to 20, 20 to 22, and 20 to 21.
    assert result.num_steps == 1 + 2 + 2 + 1


def test_a_run_without_maps_is_searched_between_its_ends(plant: Callable[..., Any]) -> None:
    run = plant([13, None], stored=(), saved=(10, LAST))
    result = find_role_onsets(run, Role.PREVIOUS_TOKEN)
    assert result.onsets[0].step == 13
    assert result.onsets[0].bracket == (0, LAST)
    assert result.onsets[0].num_probes == 5
    assert result.verdict.startswith("not compared with what ran")


def test_a_head_that_always_plays_the_role_has_no_onset(plant: Callable[..., Any]) -> None:
    result = find_role_onsets(plant([0, 4]), Role.PREVIOUS_TOKEN)
    assert [found.step for found in result.onsets] == [4]
    assert result.notes == (
        f"head 0.0 of {SITE.name} plays the role previous token since step 0, the first one that is known",
    )


def test_only_the_chosen_head_is_searched(plant: Callable[..., Any]) -> None:
    result = find_role_onsets(plant([3, 12]), Role.PREVIOUS_TOKEN, site=SITE.name, head="0.1")
    assert [found.step for found in result.onsets] == [12]


def test_maps_that_are_not_those_of_the_run_are_told(plant: Callable[..., Any]) -> None:
    run = plant([13, None])
    run.directory.maps_dir.rename(run.directory.path / "aside")
    store = open_store(run.directory.maps_dir)
    for step in range(0, LAST + 1, 8):
        write_maps(store, step, run.onsets, strength=0.8)
    result = find_role_onsets(run, Role.PREVIOUS_TOKEN)
    assert result.verdict.startswith("not bit-identical to what ran: ")
    assert "of the maps of step 16 differ" in result.verdict


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"site": "elsewhere"}, "--site=elsewhere is no attention module of this model"),
        ({"head": "7.0"}, "--head=7.0 is no head of this model: write LAYER.HEAD, which are 0.0 to 0.1"),
        ({"head": "first"}, "--head=first is no head of this model"),
        ({"head": "0.1"}, "no head 0.1 plays the role previous token at step 32"),
    ],
)
def test_a_head_that_is_not_there_or_does_not_play_is_refused(
    choice: dict[str, str], says: str, plant: Callable[..., Any]
) -> None:
    with pytest.raises(UserError, match=says.replace(".", r"\.")):
        find_role_onsets(plant([13, None]), Role.PREVIOUS_TOKEN, **choice)


def test_a_role_that_no_head_plays_is_refused_with_those_that_heads_play(plant: Callable[..., Any]) -> None:
    with pytest.raises(
        UserError, match=r"^no head plays the role induction .* roles that heads play there: "
    ) as caught:
        find_role_onsets(plant([13, None]), Role.INDUCTION)
    roles = str(caught.value).rpartition(": ")[2].split(", ")
    assert "previous_token" in roles
    assert "induction" not in roles


def test_roles_and_heads_are_parsed() -> None:
    assert parse_role("induction") is Role.INDUCTION
    assert parse_role("previous_token") is parse_role("previous token") is Role.PREVIOUS_TOKEN
    with pytest.raises(UserError, match="--bisect=copying is no role of a head: choose one of induction, previous_tok"):
        parse_role("copying")
    assert parse_head("0.1", (SITE,)) == ("0", "1")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_onset_of_induction_is_found_to_the_step(seed: int, tmp_path: Path) -> None:
    """The oracle is a run that stored the maps of every step, scored by hand.

    A head may pass the threshold more than once; the step that is found is one at which it does.
    """
    config = load_config(str(CHECKOUT / "experiments/induction_heads/configs/two_layer_transformer.py")).to_dict()
    config["seed"] = seed
    train(resolve_config(config), tmp_path / "run")
    train(resolve_config({**config, "maps_every": 1, "eval_every": 0}), tmp_path / "every")
    store = MapStore.open_existing(tmp_path / "every" / "maps")
    with open_replay(tmp_path / "run") as replay:
        result = find_role_onsets(replay, Role.INDUCTION)
    assert result.verdict.startswith("bit-identical to what ran: ")
    assert {found.head.layer for found in result.onsets} == {1}
    for found in result.onsets:
        head = found.head.layer, found.head.head
        scores = {step: induction_score(store, step)[head] for step in (found.step - 1, found.step)}
        assert scores[found.step - 1] < 0.4 <= scores[found.step]
        assert found.score_before == pytest.approx(scores[found.step - 1], abs=1e-6)
        assert found.score == pytest.approx(scores[found.step], abs=1e-6)


def induction_score(store: MapStore, step: int) -> np.ndarray:
    """The weight on the symbol after the last occurrence, less that of an even head, of the examples that repeat."""
    (site,) = store.sites
    weights_BxLxHxQxK = np.asarray(store.read(site.name, step), np.float64)
    shares, evens = [], []
    for example, period in enumerate(store.labels.periods or ()):
        if period is not None:
            queries = np.arange(period, len(store.labels.tokens[site.key.name][example]))
            shares.append(weights_BxLxHxQxK[example][:, :, queries, queries - period + 1].mean(axis=-1))
            evens.append((1 / (queries + 1)).mean())
    return (np.mean(shares, axis=0) - np.mean(evens)) / (1 - np.mean(evens))
