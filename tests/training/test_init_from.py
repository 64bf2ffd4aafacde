"""Runs that begin with the parameters of another: what is loaded is loaded bit for bit, and the rest starts as ever."""

import dataclasses
import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.interpret.conftest import write_gpt2
from tests.training import written_run
from tests.training.small_run import Killed
from tests.training.written_run import write_run
from transformer.config import UserError
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.load import load_tokenizer
from transformer.huggingface.convert import open_model_folder
from transformer.layers.lora import LoraConfig
from transformer.models.model import Variables, leaves_by_path
from transformer.runs.checkpoint import Checkpoints, DamagedCheckpoint
from transformer.runs.run_directory import RunDirectory
from transformer.studies.ablations import comparability
from transformer.training import build, driver, init_from, run_loading, vmapped
from transformer.training import config as experiment
from transformer.training import partitioning as mesh
from transformer.training.compiled_probe import Probe
from transformer.training.init_from import build_initial_state
from transformer.training.init_plan import InitializeFromConfig
from transformer.training.state import TrainState
from transformer.training.writers.open_writers import RunWriters

STEPS = 2
CONFIG: dict[str, Any] = {
    "name": "pre-trained",
    "steps": STEPS,
    "seed": 3,
    "log_every": 1,
    "eval_every": 0,
    "maps_every": 0,
    "checkpoint_every": 1,
    "task": {
        "name": "language_modeling",
        "dataset": "repeated/num_symbols=8,min_segment_length=2,max_segment_length=4,length=16,"
        "train=32,validation=8,test=8",
        "tokenizer": "bytes",
        "context_length": 12,
        "batch_size": 4,
        "num_probe_examples": 2,
        "probe_length": 12,
        "num_repeated_sequences": 0,
    },
    "model": {
        "family": "decoder",
        "vocab_size": 260,
        "layers": 1,
        "width": 8,
        "heads": 2,
        "feed_forward": 16,
        "max_length": 16,
        "tie_embeddings": False,
        "output_bias": True,
    },
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 0},
    "parameter_averages": {"slow": {"kind": "exponential"}, "norms": {"kind": "exponential", "patterns": ("*norm*",)}},
}
LARGER = CONFIG["model"] | {"vocab_size": 264, "max_length": 14}
RESIZE = ("resize embedding/table", "resize unembedding/*", "resize output_bias/*", "resize positions/table")


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Sharding has a test of its own; maps and evaluations are not looked at here, and compiled for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (build, vmapped):
            patch.setattr(module, "make_placement", lambda config: mesh.single_device_placement())
        patch.setattr(driver, "open_writers", lambda *arguments, **named: RunWriters(()))
        patch.setattr(driver, "compile_run_probe", lambda *arguments: Probe({}, lambda state: {}))  # type: ignore[arg-type]
        patch.setattr(driver, "compile_evaluations", lambda *arguments: [])
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    folder = tmp_path_factory.mktemp("runs") / "source"
    driver.train(experiment.resolve_config(CONFIG), folder)
    return folder


def resolved(source: Path, *rules: str, **changes: Any) -> experiment.ExperimentConfig:
    """A run that begins from another, by rules; `origin` says more of it."""
    origin = {"run": str(source), "rules": rules, **changes.pop("origin", {})}
    return experiment.resolve_config({**CONFIG, "name": "fine-tuned", "seed": 5, "initialize_from": origin, **changes})


def begun(
    made: experiment.ExperimentConfig, folder: Path
) -> tuple[TrainState, Callable[[], TrainState], init_from.Initialization]:
    """The state that a run begins with, what makes the one that it would begin with alone, and what is said of it."""
    folder.mkdir(exist_ok=True)
    setting = build.build_components(made, folder)
    key = jax.random.key(made.run.seed)
    state, report = build_initial_state(made.initialize_from, setting, key, folder)
    assert report is not None
    return state, functools.partial(setting.init_state, key), report


@functools.cache
def shapes_in(source: Path) -> TrainState:
    """The shapes of the source's state."""
    return build.build_components(experiment.resolve_config(CONFIG), source).abstract_state


@functools.cache
def stored(source: Path, prefix: str = "variables/params", step: int = STEPS) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint under a prefix, read with the shapes that its run has."""
    state = Checkpoints.open_read_only(source / "checkpoints").read(step).restore(shapes_in(source))
    found = leaves_by_path(state._replace(key=0))
    return {
        path.removeprefix(f"{prefix}/"): np.asarray(x) for path, x in found.items() if path.startswith(f"{prefix}/")
    }


def params(state: TrainState) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in leaves_by_path(state.variables.params).items()}


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The very bits."""
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        assert (found[path].dtype, found[path].tobytes()) == (leaf.dtype, leaf.tobytes()), path


def test_a_run_begins_with_what_another_learned(source: Path, tmp_path: Path) -> None:
    state, alone, report = begun(resolved(source), tmp_path)
    assert_same(params(state), stored(source))
    drawn = params(alone())
    assert not any(np.array_equal(leaf, drawn[path]) for path, leaf in params(state).items() if "kernel" in path)
    assert int(state.step) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.optimizers))
    # The averages are of what was loaded, and no array lies in two places, or the step could not be donated the state.
    assert_same({path: np.asarray(leaf) for path, leaf in state.averages["slow"].items()}, stored(source))
    assert set(state.averages["norms"]) == {path for path in params(state) if "norm" in path}
    assert_same(
        {path: np.asarray(leaf) for path, leaf in state.averages["norms"].items()},
        {path: leaf for path, leaf in stored(source).items() if "norm" in path},
    )
    leaves = [*jax.tree.leaves(state.variables), *jax.tree.leaves(state.averages)]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size}) == len(leaves)
    total = sum(leaf.size for leaf in params(state).values())
    assert report.format_lines() == [
        f"initialized from {source} at step {STEPS}",
        f"  loaded: {len(params(state))} parameters ({total:,} numbers)",
    ]


def test_another_vocabulary_more_positions_and_a_fresh_head(source: Path, tmp_path: Path) -> None:
    rules = ("unembedding/* = fresh", "output_bias/* = fresh", "resize embedding/table", "resize positions/table")
    state, alone, report = begun(resolved(source, *rules, model=LARGER), tmp_path)
    before, drawn, found = stored(source), params(alone()), params(state)
    rows = {"embedding/table": (260, 264), "positions/table": (16, 14)}
    for path, leaf in found.items():
        if path in rows:
            there, here = rows[path]
            common = min(there, here)
            assert leaf.shape[0] == here
            expected = np.concatenate([before[path][:common], drawn[path][common:]])
            assert leaf.tobytes() == expected.tobytes()
        else:
            fresh = path.startswith(("unembedding", "output_bias"))
            assert leaf.tobytes() == (drawn if fresh else before)[path].tobytes(), path
    assert_same({path: np.asarray(leaf) for path, leaf in state.averages["slow"].items()}, found)
    # All but the head, of 8 weights and a bias a token, and the 4 new rows of the table.
    kept = sum(leaf.size for leaf in found.values()) - (8 + 1) * 264 - 4 * 8
    assert report.format_lines()[1] == f"  loaded: {len(found) - 2} parameters ({kept:,} numbers)"
    assert report.format_lines()[2:] == [
        "  resized: embedding/table (260, 8) -> (264, 8), 260 along axis 0 kept",
        "  resized: positions/table (16, 8) -> (14, 8), 14 along axis 0 kept",
        "  initialized randomly by rule 'output_bias/* = fresh': output_bias/bias",
        "  initialized randomly by rule 'unembedding/* = fresh': unembedding/kernel",
        "  not used: output_bias/bias, unembedding/kernel",
    ]


def test_a_column_a_token_is_resized_too(source: Path, tmp_path: Path) -> None:
    state, alone, report = begun(resolved(source, *RESIZE, model=LARGER), tmp_path)
    path = "unembedding/kernel"
    expected = np.concatenate([stored(source)[path], params(alone())[path][:, 260:]], axis=1)
    assert np.array_equal(params(state)[path], expected)
    assert report.to_dict()["resized"][path] == [[8, 260], [8, 264]]


def test_an_average_is_taken_where_there_is_one(source: Path, tmp_path: Path) -> None:
    state, _, _ = begun(resolved(source, origin={"average": "slow"}), tmp_path)
    assert_same(params(state), stored(source, "averages/slow"))
    raw = stored(source)
    assert not np.array_equal(params(state)["positions/table"], raw["positions/table"])
    state, _, report = begun(resolved(source, origin={"average": "norms", "step": 1}), tmp_path)
    of_norms = stored(source, "averages/norms", step=1)
    assert_same(params(state), stored(source, step=1) | of_norms)
    assert report.num_averaged == len(of_norms)
    assert f"{len(of_norms)} as the average 'norms' has them" in report.format_lines()[1]


def test_narrower_parameters_are_cast_and_said_to_be(source: Path, tmp_path: Path) -> None:
    state, _, report = begun(resolved(source, *RESIZE, model=LARGER, precision={"parameters": "bfloat16"}), tmp_path)
    expected = stored(source)["positions/table"][:14].astype(jnp.bfloat16)
    assert params(state)["positions/table"].tobytes() == expected.tobytes()
    count = len(params(state))
    assert f"  cast: {count} parameters float32 -> bfloat16" in report.format_lines()
    assert report.to_dict()["cast"]["norm/scale"] == ["float32", "bfloat16"]


@pytest.mark.slow
def test_a_whole_run_begins_there_once_and_goes_on_without(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = shutil.copytree(source, tmp_path / "origin")
    # Of the source's own sizes, so that the program of its step serves here too.
    fresh = "unembedding/* = fresh"
    made = resolved(origin, fresh)
    seen: list[dict[str, np.ndarray]] = []
    inner = driver.train_loop

    def watched(state: TrainState, *arguments: Any, **named: Any) -> None:
        seen.append(params(state))
        inner(state, *arguments, **named)

    def stopped(save: Any, **named: Any) -> Any:
        def once(state: TrainState, progress: Any) -> None:
            save(state, progress)
            if int(state.step) == 1:
                raise Killed

        return once

    def killed(state: TrainState, *arguments: Any, **named: Any) -> None:
        watched(state, *arguments, **named | {"save": stopped(named["save"])})

    monkeypatch.setattr(driver, "train_loop", killed)
    with pytest.raises(Killed):
        driver.train(made, tmp_path / "run")
    assert f"initialized from {origin} at step {STEPS}" in capsys.readouterr().out
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.facts()["initialized_from"]["fresh"] == {"unembedding/kernel": fresh}
    before = stored(source)
    same = {path for path, leaf in seen[0].items() if np.array_equal(leaf, before[path])}
    assert same == set(before) - {"unembedding/kernel"}
    after = Checkpoints.open_read_only(directory.checkpoints_dir)
    assert after.latest() == 1
    # What it began from is read no more: it may be gone, but it is still what the config says.
    shutil.rmtree(origin)
    monkeypatch.setattr(driver, "train_loop", watched)
    with pytest.raises(UserError, match=r"holds a run with config\.initialize_from\.step=null, not 1"):
        driver.train(resolved(origin, fresh, origin={"step": 1}), tmp_path / "run")
    driver.train(made, tmp_path / "run")
    out = capsys.readouterr().out
    assert "resuming from step 1" in out
    assert "initialized from" not in out
    assert not np.array_equal(seen[1]["positions/table"], seen[0]["positions/table"])
    starts = json.loads(directory.environment_file.read_text())
    assert ["initialized_from" in start for start in starts] == [True, False]


def test_the_tokenizer_comes_along_where_it_is_asked_for(source: Path, tmp_path: Path) -> None:
    task = CONFIG["task"] | {"tokenizer": "existing"}
    for tokenizer in (False, True):
        made = resolved(source, task=task, origin={"copy_tokenizer": tokenizer})
        if tokenizer:
            init_from.copy_source_tokenizer(made.initialize_from, tmp_path)
            assert (tmp_path / "tokenizer.json").read_text() == (source / "tokenizer.json").read_text()
            assert begun(made, tmp_path)[2].source.notes == ()
        else:
            with pytest.raises(
                UserError, match=r"config\.task\.tokenizer=existing.*config\.initialize_from\.copy_tokenizer"
            ):
                build.build_components(made, tmp_path)
    (tmp_path / "tokenizer.json").write_text((source / "tokenizer.json").read_text() + "\n")
    _, _, report = begun(resolved(source), tmp_path)
    assert report.format_lines()[-1].startswith(f"  note: {source} has another tokenizer (config")


@pytest.mark.slow
def test_vmapped_begin_there_too(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        resolved(
            source,
            *RESIZE,
            model=LARGER,
            name=f"seed {seed}",
            seed=seed,
            steps=1,
            optimizer={"learning_rate": rate, "warmup_steps": 1},
        )
        for seed, rate in ((7, 0.01), (8, 0.02))
    ]
    states: list[TrainState] = []

    def stopped(state: TrainState, *arguments: Any, **named: Any) -> None:
        states.append(state)
        raise Killed

    monkeypatch.setattr(driver, "train_loop", stopped)
    with pytest.raises(Killed):
        vmapped.train_vmapped(runs, [tmp_path / "one", tmp_path / "two"])
    stacked = states[0]
    found = {path: np.asarray(leaf) for path, leaf in leaves_by_path(stacked.variables.params).items()}
    before = stored(source)
    for number in range(2):
        assert np.array_equal(found["layers/attention/query/kernel"][number], before["layers/attention/query/kernel"])
        assert np.array_equal(found["embedding/table"][number, :260], before["embedding/table"])
        assert RunDirectory.open(tmp_path / ("one", "two")[number]).facts()["initialized_from"]["step"] == STEPS
    assert not np.array_equal(found["embedding/table"][0, 260:], found["embedding/table"][1, 260:])
    np.testing.assert_allclose(stacked.hyperparameters["language_modeling"]["learning_rate"], [0.01, 0.02])
    # Nothing was saved yet: they begin there again.
    with pytest.raises(Killed):
        vmapped.train_vmapped(runs, [tmp_path / "one", tmp_path / "two"])
    assert np.array_equal(leaves_by_path(states[1].variables.params)["norm/scale"][1], before["norm/scale"])


def test_an_ablation_says_with_what_its_arms_begin(source: Path, tmp_path: Path) -> None:
    made = resolved(source)
    task = build.build_components(made, tmp_path).task
    found = {
        path: np.asarray(leaf)
        for path, leaf in leaves_by_path(comparability.compute_initial_parameters(made, task)).items()
    }
    assert_same(found, stored(source))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no run": ({"run": "RUNS/none"}, r"run=RUNS/none is missing; name the --workdir"),
    "no run directory": ({"run": "RUNS"}, r"run=RUNS is no run directory: it has no config\.json"),
    "published weights": ({"run": "RUNS/published"}, r"run: RUNS/published holds no model\.safetensors"),
    "a step of published weights": (
        {"run": "RUNS/published", "step": 3},
        r"step=3 is of runs: .* is a published model",
    ),
    "no step": ({"step": 7}, r"step=7: .* has checkpoints of \[1, 2\] alone"),
    "no average": ({"average": "slwo"}, r"average='slwo' is no average of .*: did you mean 'slow'\?"),
    "itself": ({"run": "RUNS/new"}, r"run=RUNS/new is this very run: name another"),
    "a rule": ({"rules": ("head",)}, r"rules: 'head' is no rule"),
    "a typo": ({"rules": ("positons/* = fresh",)}, r"rules: 'positons/\* = fresh' matches no parameter of this run"),
    "a size": ({}, r"the parameter embedding/table \(264, 8\) .* \(260, 8\) .*'resize embedding/table'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_told_in_one_line_before_anything_compiles(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, says = REFUSED[name]
    origin = {"run": str(source), **origin}
    origin["run"] = origin["run"].replace("RUNS", str(tmp_path))
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text('{"model_type": "gpt2"}')

    def compiled(*arguments: Any, **named: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(build, "jit_for_one_call", lambda *arguments: compiled)
    folder = tmp_path / "new"
    with pytest.raises(
        UserError, match=r"config\.initialize_from.*" + says.replace("RUNS", re.escape(str(tmp_path)))
    ) as told:
        driver.train(experiment.resolve_config({**CONFIG, "model": LARGER, "initialize_from": origin}), folder)
    assert "\n" not in str(told.value)
    assert not folder.exists() or {entry.name for entry in folder.iterdir()} <= {"lock"}  # a corrected one can start


@dataclasses.dataclass(frozen=True)
class Toy:
    """A run that begins, of any shapes, with the axes of its variables by name."""

    abstract_state: TrainState
    names: Variables
    class_names: tuple[str, ...] = ()

    @property
    def model(self) -> Any:
        return self

    def axes(self) -> Variables:
        return self.names

    def init_state(self, key: Any, variables: Variables | None = None) -> TrainState:
        fresh = jax.tree.map(
            lambda leaf: placed(np.full(leaf.shape, -1, leaf.dtype), leaf.sharding), self.abstract_state.variables
        )
        return state_of(fresh if variables is None else variables)


def make_toy(abstract_state: TrainState, names: Variables, class_names: tuple[str, ...] = ()) -> Any:
    """What of a run's components initialization looks at."""
    return Toy(abstract_state, names, class_names)


def state_of(variables: Variables) -> TrainState:
    return TrainState(jnp.int32(0), jax.random.key(0), variables, {}, {}, {}, {})


def placed(array: np.ndarray, sharding: Any = None) -> jax.Array:
    where = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.make_array_from_callback(array.shape, where, array.__getitem__)


def saved(
    folder: Path, variables: Variables, config: Mapping[str, Any] | None = None, classes: tuple[str, ...] = ()
) -> Path:
    """A run directory with these variables."""
    with RunDirectory.claim(folder, config or {}):
        pass
    checkpoints = Checkpoints(folder / "checkpoints", max_to_keep=1)
    checkpoints.save(3, state_of(jax.tree.map(placed, variables)), {"classes": list(classes)})
    checkpoints.close()
    return folder


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, 99, shape).astype(dtype)


def shapes_of(arrays: Variables, **where: Any) -> TrainState:
    return state_of(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, **where), arrays))


def test_the_state_of_a_model_is_taken_as_well(tmp_path: Path) -> None:
    old = Variables({"w": numbers(3)}, {"mean": numbers(2), "count": np.int32(7) * np.ones((), np.int32)})
    run = saved(tmp_path / "run", old)
    new = Variables({"w": numbers(3), "copy": numbers(3)}, {"mean": numbers(2), "count": np.zeros((), np.int32)})
    toy = make_toy(shapes_of(new), jax.tree.map(lambda leaf: (None,) * leaf.ndim, new))
    config = InitializeFromConfig(str(run), rules=("copy = w", "state/mean = fresh"))
    state, report = build_initial_state(config, toy, jax.random.key(0), tmp_path / "new")
    found = state.variables
    assert np.array_equal(found.params["w"], old.params["w"])
    assert np.array_equal(found.params["copy"], old.params["w"])
    assert found.params["w"].unsafe_buffer_pointer() != found.params["copy"].unsafe_buffer_pointer()
    assert (found.state["mean"].tolist(), int(found.state["count"])) == ([-1, -1], 7)
    assert report is not None
    assert report.to_dict()["unused"] == ["state/mean"]


def test_parameters_come_where_they_lie(tmp_path: Path) -> None:
    """Nothing of a size that the mesh does not divide stands in the way: the old table has 6 rows, the new one 8."""
    old = {"table": numbers(6, 4), "kernel": numbers(4, 8), "half": numbers(8, 4).astype(jnp.bfloat16)}
    run = saved(tmp_path / "run", Variables(old, {}))
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    where = {"table": ("a", "b"), "kernel": ("b", "a"), "half": (("a", "b"),)}
    shapes = {"table": (8, 4), "kernel": (4, 8), "half": (8, 4)}
    abstract = {
        name: jax.ShapeDtypeStruct(shapes[name], jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))
        for name, axes in where.items()
    }
    toy = make_toy(state_of(Variables(abstract, {})), Variables({name: ("vocabulary", "embed") for name in where}, {}))
    config = InitializeFromConfig(str(run), rules=("resize table",))
    state, _ = build_initial_state(config, toy, jax.random.key(0), tmp_path / "new")
    found = state.variables.params
    for name, leaf in found.items():
        assert leaf.sharding.is_equivalent_to(abstract[name].sharding, 2), name
        assert leaf.dtype == jnp.float32
    expected = np.concatenate([old["table"], np.full((2, 4), -1)]).astype(np.float32)
    assert np.asarray(found["table"]).tobytes() == expected.tobytes()
    assert np.asarray(found["kernel"]).tobytes() == old["kernel"].tobytes()
    assert np.array_equal(found["half"], old["half"].astype(np.float32))


def test_classes_are_taken_by_name_and_said_to_be(tmp_path: Path) -> None:
    old = {"classes": {"kernel": numbers(4, 3), "bias": numbers(3)}}
    run = saved(tmp_path / "run", Variables(old, {}), classes=("O", "B-PER", "B-LOC"))
    axes = Variables({"classes": {"kernel": ("embed", "classes"), "bias": ("classes",)}}, {})
    config = InitializeFromConfig(str(run))

    def begin(*names: str) -> tuple[Any, list[str]]:
        toy = make_toy(shapes_of(Variables(old, {})), axes, names)
        state, report = build_initial_state(config, toy, jax.random.key(0), tmp_path / "new")
        assert report is not None
        return jax.tree.map(np.asarray, state.variables.params["classes"]), report.format_lines()[1:]

    same, lines = begin("O", "B-PER", "B-LOC")
    assert_same(same, old["classes"])
    assert lines == ["  loaded: 2 parameters (15 numbers)"]
    found, lines = begin("O", "B-LOC", "B-PER")
    assert_same(found, {"kernel": old["classes"]["kernel"][:, [0, 2, 1]], "bias": old["classes"]["bias"][[0, 2, 1]]})
    assert lines[1] == (
        "  classes matched by name: all 3, which stand in another order there (classes/bias, classes/kernel)"
    )
    found, lines = begin("O", "B-ORG", "B-PER")
    assert np.array_equal(found["kernel"][:, [0, 2]], old["classes"]["kernel"][:, [0, 1]])
    assert (found["kernel"][:, 1] == -1).all()
    assert lines[:2] == [
        "  loaded: 2 parameters (10 numbers)",
        "  classes matched by name: 2 of 3; initialized randomly: B-ORG (classes/bias, classes/kernel)",
    ]
    with pytest.raises(UserError, match=r"classes are x, y, z, and there O, B-PER, B-LOC; leave it fresh"):
        begin("x", "y", "z")
    nameless = saved(tmp_path / "nameless", Variables(old, {}))
    config = InitializeFromConfig(str(nameless))
    assert begin("x", "y", "z")[1][-1].endswith("its outputs are taken to be x, y, z, in this order")


def test_rows_of_tokens_are_taken_by_name(tmp_path: Path) -> None:
    def tokenizer(*words: str) -> FastTokenizer:
        vocabulary = {word: number for number, word in enumerate(words)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, words[0]))
        return FastTokenizer(backend, unk_id=0)

    old = {"table": numbers(5, 2)}
    run = saved(tmp_path / "run", Variables(old, {}))
    tokenizer("<unk>", "the", "cat", "dog", "runs").save(run)
    (tmp_path / "new").mkdir()
    tokenizer("[UNK]", "dog", "the", "bird").save(tmp_path / "new")
    # The last row fills the table up.
    new = Variables({"table": numbers(5, 2)}, {})
    toy = make_toy(shapes_of(new), Variables({"table": ("vocabulary", "embed")}, {}))
    state, report = build_initial_state(InitializeFromConfig(str(run)), toy, jax.random.key(0), tmp_path / "new")
    assert report is not None
    found = np.asarray(state.variables.params["table"])
    assert np.array_equal(found[:3], old["table"][[0, 3, 1]])
    assert (found[3:] == -1).all()
    assert "  tokens matched by name: 3 of 4; initialized randomly: bird (table)" in report.format_lines()


def of_none(variables: Variables) -> Any:
    """A run of these variables whose axes nothing asks for."""
    return make_toy(shapes_of(variables), jax.tree.map(lambda leaf: (None,) * leaf.ndim, variables))


def test_a_published_folder_is_a_source_too(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "gpt2")
    published = open_model_folder(folder).read_params()
    new = Variables({**published, "head": {"kernel": numbers(16, 3)}}, {})
    del new.params["positions"]
    toy = of_none(new)
    config = InitializeFromConfig(str(folder), copy_tokenizer=True)
    with pytest.raises(UserError, match=r"has no 'head/kernel' for the parameter head/kernel \(16, 3\)"):
        build_initial_state(config, toy, jax.random.key(0), tmp_path)
    init_from.copy_source_tokenizer(config, tmp_path)
    config = dataclasses.replace(config, rules=("head/* = fresh",))
    state, report = build_initial_state(config, toy, jax.random.key(0), tmp_path)
    assert report is not None
    found = leaves_by_path(state.variables.params)
    assert_same(
        {path: np.asarray(leaf) for path, leaf in found.items() if path != "head/kernel"},
        {path: leaf for path, leaf in leaves_by_path(published).items() if path != "positions/table"},
    )
    count = sum(leaf.size for leaf in found.values()) - 16 * 3
    assert report.format_lines() == [
        f"initialized from {folder}, a gpt2 model as Hugging Face publishes it",
        f"  loaded: {len(found) - 1} parameters ({count:,} numbers)",
        "  initialized randomly by rule 'head/* = fresh': head/kernel",
        "  not used: positions/table",
    ]
    assert load_tokenizer(tmp_path).encode(["the q"]) == load_huggingface_tokenizer(folder).encode(["the q"])
    with RunDirectory.claim(tmp_path / "other", {}) as directory:
        FastTokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))).save(directory.path)
    _, report = build_initial_state(config, toy, jax.random.key(0), tmp_path / "other")
    assert report is not None
    assert "has the axis 'vocabulary', so that entries are taken by number" in report.format_lines()[-1]


def test_what_a_run_learned_beside_its_matrices_is_merged_into_a_plain_one(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    shapes = {"kernel": (2, 4, 3, 2), "lora": {"down": (2, 4, 2), "up": (2, 2, 3, 2)}}
    draw = functools.partial(jax.tree.map, is_leaf=lambda leaf: isinstance(leaf, tuple))
    old = draw(lambda shape: random.normal(size=shape).astype(np.float32), {"query": shapes, "other": (2,)})
    run = saved(tmp_path / "run", Variables(old, {}), {"model": {"lora": {"rank": 2, "alpha": 3.0}}})
    plain = Variables({"query": {"kernel": old["query"]["kernel"]}, "other": old["other"]}, {})
    state, report = build_initial_state(
        InitializeFromConfig(str(run)), of_none(plain), jax.random.key(0), tmp_path / "new"
    )
    low = np.einsum("lir,lrhd->lihd", *(old["query"]["lora"][name].astype(np.float64) for name in ("down", "up")))
    expected = old["query"]["kernel"] + 1.5 * low
    np.testing.assert_allclose(state.variables.params["query"]["kernel"], expected, rtol=1e-5, atol=1e-6)
    assert report is not None
    assert report.format_lines()[1:] == [
        "  loaded: 2 parameters (50 numbers)",
        "  merged with their LoRA updates: query/kernel",
    ]
    # With LoRA of its own it goes on with what was learned.
    again = of_none(Variables(old, {}))
    state, report = build_initial_state(InitializeFromConfig(str(run)), again, jax.random.key(0), tmp_path / "new")
    assert_same(
        {path: np.asarray(leaf) for path, leaf in leaves_by_path(state.variables.params).items()}, leaves_by_path(old)
    )
    assert report is not None
    assert report.to_dict()["merged"] == report.to_dict()["unused"] == []
    # Where it begins anew it begins beside what was learned.
    anew = InitializeFromConfig(str(run), rules=("query/lora/* = fresh",))
    state, report = build_initial_state(anew, again, jax.random.key(0), tmp_path / "new")
    np.testing.assert_allclose(state.variables.params["query"]["kernel"], expected, rtol=1e-5, atol=1e-6)
    assert np.all(np.asarray(state.variables.params["query"]["lora"]["up"]) == -1)
    assert report is not None
    assert (report.to_dict()["merged"], report.to_dict()["unused"]) == (["query/kernel"], [])


def test_what_was_learned_at_one_scale_is_not_gone_on_with_at_another(tmp_path: Path) -> None:
    params = {"query": {"kernel": numbers(4, 3), "lora": {"down": numbers(4, 2), "up": numbers(2, 3)}}}
    model = of_none(Variables(params, {}))
    run = saved(tmp_path / "run", Variables(params, {}), {"model": {"lora": {"rank": 2, "alpha": 3.0}}})

    def check(lora: LoraConfig | None, *rules: str) -> None:
        config = InitializeFromConfig(str(run), rules=rules)
        prepared = init_from.plan_initialization(config, model.model, model.abstract_state.variables, tmp_path / "new")
        init_from.check_lora_scale(prepared, lora)

    check(LoraConfig(2, alpha=3.0))
    check(LoraConfig(2, alpha=8.0), "query/lora/* = fresh")
    check(None)
    with pytest.raises(UserError, match=r"lora\.alpha=8\.0 scales what .*run learned by 4, .* say config.*alpha=3, or"):
        check(LoraConfig(2, alpha=8.0))


def test_a_checkpoint_that_was_damaged_is_not_begun_from(tmp_path: Path) -> None:
    old = Variables({"w": numbers(64, 64)}, {})
    run = saved(tmp_path / "run", old)
    largest = max((run / "checkpoints").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 4
    largest.write_bytes(content)
    toy = make_toy(shapes_of(old), Variables({"w": ("embed", "embed")}, {}))
    with pytest.raises(DamagedCheckpoint, match="variables/params/w"):
        build_initial_state(InitializeFromConfig(str(run)), toy, jax.random.key(0), tmp_path / "new")


def test_without_a_run_to_begin_from_nothing_is_read(tmp_path: Path) -> None:
    old = Variables({"w": numbers(3)}, {})
    toy = make_toy(shapes_of(old), Variables({"w": (None,)}, {}))
    state, report = build_initial_state(InitializeFromConfig(), toy, jax.random.key(0), tmp_path)
    assert report is None
    assert state.variables.params["w"].tolist() == [-1, -1, -1]
    with pytest.raises(ValueError, match="'state/w' has the path of a leaf of the state"):
        init_from.flatten_variables(Variables({"state": {"w": 1}}, {"w": 2}))


def test_parameters_that_are_not_finite_are_refused_wherever_a_run_is_read(tmp_path: Path) -> None:
    def spoil(state: TrainState) -> TrainState:
        leaves, structure = jax.tree.flatten(state.variables.params)
        leaves[-1] = leaves[-1].at[0].set(jnp.nan)
        return state._replace(variables=state.variables._replace(params=jax.tree.unflatten(structure, leaves)))

    run = write_run(tmp_path / "run", written_run.CONFIG, spoil)
    says = r"checkpoint 0 of .*run holds NaN or infinity in .*params/.*: its training diverged; name an earlier step"
    with pytest.raises(UserError, match=says):
        run_loading.load_run(run)
    fine_tuned = experiment.resolve_config({**written_run.CONFIG, "name": "new", "initialize_from": {"run": str(run)}})
    with pytest.raises(UserError, match=r"config\.initialize_from\.run=.*run holds NaN or infinity in what \S+ takes"):
        driver.train(fine_tuned, tmp_path / "new")
