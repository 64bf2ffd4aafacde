"""An ensemble's probabilities are the mean of its members', at once and step by step, whatever their families."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch import cli, evaluate
from transformer.config import UserError
from transformer.decoding.ensemble import Ensemble, join_variables
from transformer.layers.functional_module import Precision
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Model
from transformer.models.recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.training import driver, run_loading
from transformer.training.compiled_evaluation import compile_evaluations, evaluation_view
from transformer.training.compiled_probe import Probe
from transformer.training.config import resolve_config
from transformer.training.run_loading import load_ensemble, load_run
from transformer.training.run_setup import compile_run_probe

INTERFACE = TaskInterface(
    {"source": InputSpec((2, 4)), "target": InputSpec((2, 3))}, {"joint": 9}, 0, 1, 2, output="target tokens"
)
SOURCE = np.array([[3, 4, 5, 2], [6, 2, 0, 0]], np.int32)
TARGET = np.array([[1, 7, 8], [1, 3, 4]], np.int32)


def members() -> list[Model]:
    small: dict[str, Any] = {"width": 8, "heads": 2, "feed_forward": 8, "max_length": 8}
    configs = [
        EncoderDecoderConfig(encoder_layers=1, decoder_layers=1, **small),
        RecurrentEncoderDecoderConfig(width=4),
    ]
    return [build(config, INTERFACE, Precision()) for config in configs]


@pytest.mark.slow
def test_probabilities_are_the_mean_at_once_and_in_steps() -> None:
    models = members()
    each = [jax.jit(model.init)(jax.random.key(number)) for number, model in enumerate(models)]
    ensemble, variables, inputs = Ensemble.of(models), join_variables(each), {"source": SOURCE, "target": TARGET}
    assert (ensemble.sites, ensemble.max_length) == ((), 8)
    expected = np.zeros((2, 3, 9))
    for model, of_model in zip(models, each, strict=True):
        logits = np.asarray(
            jax.jit(lambda v, model=model: model.apply(v, inputs, train=False)[0])(of_model), np.float64
        )
        expected += np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) / 2
    whole = jax.jit(lambda v: ensemble.logits(v, ensemble.apply(v, inputs, method="hidden", train=False)[0]))
    np.testing.assert_allclose(np.exp(whole(variables)), expected, rtol=1e-5)
    cache, tokens = jax.jit(lambda v: ensemble.init_cache(v, inputs, num_beams=2, length=3))(variables)
    assert (np.asarray(tokens) == 1).all()
    step = jax.jit(ensemble.step)
    for place in range(3):
        logits, cache, _ = step(variables, cache, jnp.repeat(TARGET[:, place], 2))
        np.testing.assert_allclose(np.exp(logits), np.repeat(expected[:, place], 2, axis=0), rtol=1e-5)
    with pytest.raises(ValueError, match="outside of training"):
        ensemble.apply(variables, inputs, train=True)


def test_the_shortest_member_limits_an_ensemble() -> None:
    short = EncoderDecoderConfig(encoder_layers=1, decoder_layers=1, width=8, heads=2, feed_forward=8, max_length=6)
    assert Ensemble.of([*members(), build(short, INTERFACE, Precision())]).max_length == 6


def nothing_seen(*given: Any) -> Probe:
    """The probe of a model without sites."""
    return Probe(dataclasses.replace(compile_run_probe(*given).capture_plan, sites=()), lambda state: {})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Trained runs, of which nothing was measured and no map kept: that would compile more than training does."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "compile_evaluations", lambda *arguments: [])
        patch.setattr(driver, "compile_run_probe", nothing_seen)
        for name, symbols, model in (
            ("recurrent", 6, {"family": "recurrent_encoder_decoder", "width": 8, "embedding_width": 8}),
            (
                "luong",
                6,
                {"family": "recurrent_encoder_decoder", "width": 8, "embedding_width": 8, "attention_query": "current"},
            ),
            ("others", 7, {"family": "recurrent_encoder_decoder", "width": 8, "embedding_width": 8}),
        ):
            task = {
                "name": "translation",
                "dataset": f"copy/length=3,num_symbols={symbols},train=40,validation=8,test=8",
                "vocab_size": 2 * symbols + 5,
                "bucket_lengths": (4,),
                "tokens_per_batch": 32,
                "num_beams": 2,
            }
            optimizer = {"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0}
            config = {"name": name, "steps": 2, "eval_every": 0, "maps_every": 0}
            config |= {"task": task, "model": model, "optimizer": optimizer}
            driver.train(resolve_config(config), folder / name)
            found.append(folder / name)
    return found


@pytest.mark.slow
def test_runs_are_evaluated_as_one(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--workdir={runs[0]}", f"--ensemble={runs[1]}", "--split=test"]
    assert cli.run(evaluate.COMMAND, evaluate.main, words) == 0
    told = capsys.readouterr().out
    _, components, state = load_ensemble(runs[:2])
    batch = {
        name: value for name, value in components.task.training_batches(0)[0].items() if name in ("source", "target")
    }
    mean = np.mean(
        [np.exp(np.asarray(jax.nn.log_softmax(model.apply(v, batch, train=False)[0]))) for model, v in parts(runs[:2])],
        axis=0,
    )
    ours = components.model.apply(state.variables, batch, train=False)[0]
    np.testing.assert_allclose(np.exp(ours), mean, rtol=1e-4)
    assert "exact_match" in told
    assert "alignment" not in told  # an ensemble has no maps


def parts(runs: list[Path]) -> list[tuple[Model, Any]]:
    return [(components.model, state.variables) for _, components, state in map(load_run, runs)]


@pytest.mark.slow
def test_a_run_that_evaluates_an_average_joins_with_it(runs: list[Path], tmp_path: Path) -> None:
    config = json.loads((runs[0] / "config.json").read_text())
    config["parameter_averages"] = {"mean": {"kind": "mean", "start": 1, "every": 1}}
    config["task"] |= {"eval_parameters": "mean"}
    driver.train(resolve_config(config | {"steps": 4}), tmp_path / "averaged")
    _, components, state = load_run(tmp_path / "averaged")
    _, other, of_other = load_run(runs[1])
    averaged = evaluation_view(components.model, state, "mean").variables
    assert (averaged.params["output"]["kernel"] != state.variables.params["output"]["kernel"]).any()
    _, ensemble, joint = load_ensemble([tmp_path / "averaged", runs[1]])
    batch = {
        name: value for name, value in components.task.training_batches(0)[0].items() if name in ("source", "target")
    }
    logits = [
        model.apply(variables, batch, train=False)[0]
        for model, variables in ((components.model, averaged), (other.model, of_other.variables))
    ]
    mean = np.mean([np.exp(np.asarray(jax.nn.log_softmax(each))) for each in logits], axis=0)
    chosen = evaluation_view(ensemble.model, joint, "mean").variables
    np.testing.assert_allclose(np.exp(ensemble.model.apply(chosen, batch, train=False)[0]), mean, rtol=1e-4)
    assert {each.parameters for each in ensemble.task.evaluations} <= {"mean", "raw"}
    (report,) = (
        run(joint)
        for each, run in zip(
            ensemble.evaluations,
            compile_evaluations(ensemble.model, ensemble.evaluations, ensemble.placement),
            strict=True,
        )
        if (each.name, each.split) == ("translation", "test")
    )
    assert 0 <= report.scalars["exact_match"] <= 1


@pytest.mark.slow
def test_runs_that_do_not_fit_are_refused_in_one_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"--workdir={runs[0]}", f"--ensemble={runs[2]}"]
    assert cli.run(evaluate.COMMAND, evaluate.main, words) == 2
    assert "cannot join an ensemble with" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(run_loading, "tokenizer_digests", lambda path: {"tokenizer.json": str(path)})
        with pytest.raises(UserError, match="its tokenizer is another"):
            load_ensemble(runs[:2])
    kept = (runs[1] / "tokenizer.json").read_text()
    (runs[1] / "tokenizer.json").write_text(json.dumps(json.loads(kept)) + "\n")
    try:
        with pytest.raises(UserError, match=r"tokenizer.json has changed since the checkpoint of step 2"):
            load_ensemble(runs[:2])
    finally:
        (runs[1] / "tokenizer.json").write_text(kept)
