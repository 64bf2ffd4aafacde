"""Shallow fusion: scores are sums of two log-probabilities, and decoding does not norm them."""

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speech.task import OutputUnits, SpokenDigitRecognitionConfig, Transcription
from launch import cli, evaluate, generate
from transformer.config import UserError
from transformer.decoding import generation as decoding
from transformer.decoding.beam import BeamSearch
from transformer.decoding.ensemble import join_variables
from transformer.decoding.shallow_fusion import ShallowFusion
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import FunctionalModule, Precision
from transformer.models.model import Aux, Cache, Model, Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.text_task_base import TextTask
from transformer.training import run_loading
from transformer.training.config import resolve_config
from transformer.training.driver import train

PAD, BEGIN, END = 0, 1, 2
# Beyond these five the listener's table has two rows that are no tokens.
NUMBERS = (5, 5, 5, 0, 3)  # what the language model calls the listener's tokens


class Table(Model):
    """A model whose next token depends on the last one alone: `variables.params` are its logits [token, token]."""

    def init_cache(self, variables: Variables, inputs: Any, *, num_beams: int, length: int) -> tuple[Cache, Any]:
        first = inputs["tokens"][:, -1] if "tokens" in inputs else jnp.full(len(inputs["sound"]), BEGIN)
        rows = jnp.repeat(first, num_beams)
        return Cache((), {"seen": rows}, ()), rows

    def step(self, variables: Variables, cache: Cache, tokens_R: Any, *, key: Any = None, capture: Any = None) -> Any:
        return variables.params[tokens_R], cache._replace(rows={"seen": tokens_R}), Aux({}, {}, variables.state)


def table() -> Table:
    """What its module would be is never asked."""
    module = functools.partial(Embedding, 1, 1)
    return Table(FunctionalModule(lambda builder: module(builder=builder), Precision()), ())


def fused(weight: float) -> tuple[ShallowFusion, Variables, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    mine, theirs = random.normal(size=(7, 7)), 2 * random.normal(size=(6, 6))
    model = ShallowFusion.of(table(), table(), NUMBERS, weight)
    variables = join_variables([Variables(jnp.asarray(each, jnp.float32), {}) for each in (mine, theirs)])
    log = [each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (mine, theirs)]
    return model, variables, log[0], log[1]


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_search_finds_the_greatest_sum_of_both(weight: float) -> None:
    """Beside the best of all strings of up to three tokens, whose scores are summed one by one."""
    model, variables, mine, theirs = fused(weight)

    def score(said: tuple[int, ...]) -> float:
        pairs = list(zip((BEGIN, *said), said, strict=False))
        return sum(mine[a, b] + weight * theirs[NUMBERS[a], NUMBERS[b]] for a, b in pairs)

    strings = [(END,), *((a, END) for a in (3, 4)), *((a, b, END) for a in (3, 4) for b in (3, 4))]
    best = max(strings, key=score)
    rollout = decoding.generate(
        model,
        variables,
        {"sound": jnp.zeros((2, 3))},
        strategy=BeamSearch(8, length_penalty=0.0),
        length=3,
        tokens=decoding.SpecialTokens(PAD, BEGIN, END, len(NUMBERS)),
    )
    for row in range(2):
        assert tuple(rollout.tokens[row, 0, : rollout.lengths[row, 0]].tolist()) == best
        # Padding and the begin token are forbidden, and nothing else is normed: their share is lost.
        assert float(rollout.scores[row, 0]) == pytest.approx(score(best), abs=1e-5)


@pytest.mark.slow
def test_a_transformer_that_reads_along_is_one_that_reads_at_once() -> None:
    interface = TaskInterface({"tokens": InputSpec((2, 4))}, {"tokens": 6}, output="next tokens")
    small = {"family": "decoder", "layers": 1, "width": 8, "heads": 2, "feed_forward": 8, "max_length": 8}
    language = build(model_config(small), interface, Precision())
    listener = table()
    of_language = language.init(jax.random.key(0))
    model = ShallowFusion.of(listener, language, NUMBERS, 1.0)
    variables = join_variables([Variables(jnp.zeros((5, 5)), {}), of_language])
    cache, first = model.init_cache(variables, {"sound": jnp.zeros((2, 3))}, num_beams=2, length=3)
    said = np.int32([[1, 3, 4], [1, 4, 4], [1, 3, 3], [1, 4, 3]])
    assert first.tolist() == [1] * 4
    whole, _ = language.apply(of_language, {"tokens": np.take(NUMBERS, said)}, train=False)
    for place in range(3):
        scores, cache, _ = model.step(variables, cache, jnp.asarray(said[:, place]))
        expected = jax.nn.log_softmax(whole[:, place])[:, np.array(NUMBERS)] - np.log(5)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("spelling", "weight", "said"),
    [
        (OutputUnits.LETTERS, -1.0, "--language_model_weight=-1 must be a number of at least 0"),
        (OutputUnits.LETTERS, math.nan, "--language_model_weight=nan"),
        (OutputUnits.DIGITS, 0.3, "without the ' ' that this run's lines have between them"),
        (OutputUnits.LETTERS, 0.3, "--language_model=words has 8 positions, and this run's strings have up to 24"),
    ],
)
def test_what_cannot_read_along_is_refused(
    spelling: OutputUnits, weight: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a search was led astray without a word: beyond its positions a model reads the last one again."""
    words = SimpleNamespace(
        task=Mock(spec=TextTask, interface=TaskInterface({}, {}, output="next tokens")),
        model=SimpleNamespace(max_length=8),
    )
    monkeypatch.setattr(run_loading, "load_run", lambda *_, **__: (None, words, None))
    heard = SimpleNamespace(task=Transcription(SpokenDigitRecognitionConfig(output_units=spelling)), model=None)
    with pytest.raises(UserError, match=said):
        run_loading.add_shallow_fusion((None, heard, None), "words", weight)


@pytest.mark.slow
def test_the_commands_weigh_a_listeners_hypotheses(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    quiet = {"steps": 2, "log_every": 2, "eval_every": 0, "maps_every": 0, "checkpoint_every": 2}
    words = {"name": "language_modeling", "dataset": "digit_words", "tokenizer": "characters", "context_length": 16}
    heard = {
        "name": "experiments.speech.task",
        "dataset": "synthetic/num_speakers=1,num_takes=3",
        "max_digits": 2,
        "max_seconds": 1.5,
    }
    small = {
        "listener_width": 2,
        "pyramid": (8,),
        "speller_width": 4,
        "speller_layers": 1,
        "embedding_width": 2,
        "attention_width": 3,
    }
    runs = {
        "words": {
            "task": words | {"batching": "windows", "batch_size": 8, "prompts": ("one",), "max_new_tokens": 2},
            "model": {"family": "decoder", "layers": 1, "width": 8, "heads": 2, "feed_forward": 8, "max_length": 32},
        },
        "heard": {
            "task": heard | {"batch_size": 8, "num_eval_examples": 8, "num_probe_examples": 1},
            "model": {"family": "experiments.speech.listen_attend_spell", **small},
        },
    }
    for name, sections in runs.items():
        train(resolve_config({"name": name, "optimizer": {}, **quiet, **sections}), tmp_path / name)
    flags = [f"--workdir={tmp_path / 'heard'}", "--num_beams=2"]
    weighed = [*flags, f"--language_model={tmp_path / 'words'}"]
    assert cli.run(evaluate.COMMAND, evaluate.main, [*weighed, "--split=test"]) == 0
    assert "character_error_rate" in capsys.readouterr().out
    assert cli.run(generate.COMMAND, generate.main, [*weighed, "--language_model_weight=50", "--text=1"]) == 0
    assert (tmp_path / "heard/generated/0001/report.html").is_file()
    capsys.readouterr()
    for wrong, said in (
        ([*flags, "--language_model_weight=1", "--text=1"], "--language_model_weight=1 needs --language_model"),
        ([*flags, f"--language_model={tmp_path / 'heard'}", "--text=1"], "does not continue text"),
        (
            [f"--workdir={tmp_path / 'words'}", f"--language_model={tmp_path / 'words'}", "--text=one"],
            "symbol by symbol",
        ),
    ):
        assert cli.run(generate.COMMAND, generate.main, wrong) == 2
        assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "heard/config.json").read_text())["task"]["name"] == "experiments.speech.task"
