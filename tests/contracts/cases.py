"""The table of the contracts: every toy, and every registered task on every registered model."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.training.written_run import write_run
from transformer.logical_axes import Placement
from transformer.models.model import Variables, leaves_by_path
from transformer.training.build import TrainingComponents, build_components
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.driver import train
from transformer.training.init_from import load_variables_from_source
from transformer.training.init_plan import InitializeFromConfig
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.state import TrainState

TRANSLATION = {
    "name": "contract",
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocab_size": 200,
        "bucket_lengths": (48,),
        "tokens_per_batch": 16 * 48,
        "num_probe_examples": 3,
    },
    "model": {
        "family": "encoder_decoder",
        "vocab_size": 200,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.0,
        "max_length": 48,
    },
}

COPYING = {
    "name": "contract",
    "task": {
        **TRANSLATION["task"],
        "dataset": "copy/length=5,num_symbols=8,train=64,validation=16,test=16",
        "vocab_size": 24,
        "bucket_lengths": (6,),
        "tokens_per_batch": 16 * 6,
    },
}

MARKED_TEXTS = {
    "name": "experiments.attention_probes.task",
    "dataset": "two_offset_copy/num_kinds=2,far_offset=2,num_questions=2",
    "batch_size": 16,
    "num_eval_examples": 16,
    "num_probe_examples": 3,
}

LANGUAGE_MODELING = {
    "name": "contract",
    "task": {
        "name": "language_modeling",
        "dataset": "python_docs",
        "tokenizer": "characters",
        "batching": "packed",
        "context_length": 32,
        "batch_size": 16,
        "prompts": ("The ",),
        "max_new_tokens": 4,
        "num_probe_examples": 3,
        "probe_length": 12,
    },
    "model": {
        "family": "decoder",
        "vocab_size": 128,
        "layers": 2,
        "width": 16,
        "heads": 4,
        "kv_heads": 2,
        "feed_forward": 32,
        "activation": "swiglu",
        "norm": "rms",
        "positions": "rotary_halves",
        "biases": "none",
        "max_length": 36,
    },
}

UNTIED = LANGUAGE_MODELING | {"model": LANGUAGE_MODELING["model"] | {"tie_embeddings": False}}
PROJECTIONS = ("query", "key", "value", "output", "feed_forward")

MASKED_LANGUAGE_MODELING = LANGUAGE_MODELING | {
    "task": {
        "name": "masked_lm",
        "dataset": "python_docs",
        "tokenizer": "bytes",
        "context_length": 32,
        "batch_size": 16,
        "num_probe_examples": 3,
        "probe_length": 12,
    },
    "model": {
        "family": "encoder",
        "vocab_size": 264,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_length": 32,
    },
}

ALGORITHMS = {
    "name": "contract",
    "task": {
        "name": "experiments.neural_turing_machine.task",
        "num_bits": 2,
        "max_size": 3,
        "bucket_lengths": (8,),
        "eval_sizes": (2, 4),
        "num_eval_examples": 8,
        "num_probe_examples": 3,
    },
}


CLASSIFICATION = {
    "name": "contract",
    "task": {
        "name": "classification",
        "dataset": "word_order/max_length=4,train=32,validation=8,test=8",
        "vocab_size": 288,
        "bucket_lengths": (8,),
        "batch_size": 16,
        "num_probe_examples": 3,
    },
    "model": {
        "family": "recurrent_classifier",
        "embedding_width": 8,
        "encoder": {"width": 8, "direction": "bidirectional"},
        "vocab_size": 288,
        # The gradient of the additive score's query is a difference of nearly equal terms while outputs are small: on
        # a mesh along the sequence its rounding is 1.7e-5 of it.
        "score": "general",
    },
}

IMAGES = {
    "name": "contract",
    "task": {
        "name": "image_classification",
        "dataset": "digits/size=8,train=64,validation=16,test=16",
        "batch_size": 16,
        "num_probe_examples": 3,
    },
}
QUESTIONS = {
    "name": "contract",
    "task": {
        "name": "experiments.visual_question_answering.task",
        "dataset": "scenes/cell_pixels=8,validation=16,test=16",
        "batch_size": 16,
        "num_probe_examples": 3,
    },
}
PLACES = {"channels": (8, 8), "strides": (2, 2)}

OF_THE_CLASSIFIER = "embedding/*", "encoder/*", "query", "attention/*", "output/*"

CAPTIONS = {
    "name": "contract",
    # Two items have ten steps: two devices can share them.
    "task": {
        "name": "experiments.captioning.task",
        "min_items": 1,
        "max_items": 2,
        "cell_pixels": 4,
        "batch_size": 16,
        "num_eval_examples": 16,
        "num_probe_examples": 3,
    },
    "model": {
        "family": "experiments.captioning.model",
        "image_encoder": {"channels": (8,), "strides": (2,)},
        "width": 8,
        "embedding_width": 8,
        "doubly_stochastic_weight": 0.01,
    },
}

SPOKEN_DIGITS = {
    "name": "contract",
    # One digit by its number and the end are two steps: two devices can share them.
    "task": {
        "name": "experiments.speech.task",
        "dataset": "synthetic/num_speakers=1,num_takes=3",
        "min_digits": 1,
        "max_digits": 1,
        "max_seconds": 0.96,
        "output_units": "digits",
        "batch_size": 16,
        "num_eval_examples": 16,
        "num_probe_examples": 3,
    },
    "model": {
        "family": "experiments.speech.listen_attend_spell",
        # Eight bands every 40 ms, two of which become one.
        "audio_frontend": {"num_mel_bins": 8, "window_length": 320, "hop_length": 320},
        "listener_width": 8,
        "pyramid": (2,),
        "speller_width": 8,
        "speller_layers": 1,
        "embedding_width": 8,
        "attention_width": 8,
        "scheduled_sampling": 0.0,
        "vocab_size": 16,
    },
}

# As many layers and features as the classifier's ELMo has.
BIDIRECTIONAL = LANGUAGE_MODELING | {
    "task": LANGUAGE_MODELING["task"] | {"batching": "windows"},
    "model": {"family": "bidirectional_language_model", "width": 4, "layers": 2, "vocab_size": 288},
}

FINE_TUNING = {
    "name": "contract",
    # Three sequences an example.
    "task": {
        "name": "fine_tuning",
        "dataset": "grammar/choice/train=32,validation=8,test=8",
        "vocab_size": 285,
        "bucket_lengths": (40,),
        "batch_size": 16,
        "num_probe_examples": 1,
    },
    "model": {
        "family": "decoder",
        "vocab_size": 288,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 16,
        "max_length": 40,
    },
}

FINE_TUNED_ENCODER = {
    **FINE_TUNING["model"],
    "family": "encoder",
    # With BERT's deviation of 0.02 all states are nearly one where a model is so small, and gradients are rounding.
    "initialization": "xavier",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}

FINE_TUNED_XLNET = {
    **FINE_TUNED_ENCODER,
    "family": "xlnet",
    # The default's terms of distances cannot go around a ring, which the table of meshes asks for.
    "positions": "rotary",
}


def the_memory_is_of_what_was_read(state: TrainState) -> None:
    """Each row's is full and its own."""
    memory_BxN = np.asarray(state.task_state["memory"]).reshape(16, -1)
    assert np.all(memory_BxN != 0)
    assert len(np.unique(memory_BxN, axis=0)) == 16


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table: a family's and a task's smallest config, and what must come of it.

    `metric` is (split, name, what must hold of its first and last report). `begins_from` is the config of a run whose
    parameters it takes by `rules` (config.initialize_from): trained where it says how, as drawn where it does not.
    `rates` are objectives whose learning rate is so many times the others'. `holds` asserts what else is true of the
    last state. `attends`: the share of queries that look where they should by the end. `sampled` says why accumulation
    cannot equal the large batch. `rounding`: how far, relatively, losses may drift apart over some steps that are
    computed in another order. `meshes`: those that `make test` takes. `keeps_tree`: its parameters are not made one
    vector (tests/contracts/flat_parameters.py). `daily`: the modes of test_contracts.py that it
    takes.
    """

    name: str
    config: Mapping[str, Any]
    steps: int
    learning_rate: float
    metric: tuple[str, str, Callable[[float, float], bool]]
    averages: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    begins_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rules: tuple[str, ...] = ()
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    holds: Callable[[TrainState], None] = lambda state: None
    attends: float = 0.0
    sampled: str = ""
    rounding: float = 1e-6
    meshes: tuple[str, ...] = ()
    keeps_tree: bool = False
    daily: tuple[str, ...] = ("plain", "resumed", "mapped")

    def experiment(self, algorithm: OptimizerAlgorithm, rate: float, **changes: float) -> ExperimentConfig:
        """The case as an experiment, all of whose objectives descend alike but for their rates."""
        section = {
            "algorithm": algorithm,
            "learning_rate": rate,
            "schedule": "constant",
            "warmup_steps": 0,
            "beta1": 0.5,
        }
        config: dict[str, Any] = {
            "name": "contract",
            "steps": self.steps,
            "parameter_averages": self.averages,
            **self.config,
            "optimizer": {**self.config.get("optimizer", {}), **section, **changes},
            "optimizers": {name: {"learning_rate": factor * rate} for name, factor in self.rates.items()},
        }
        return resolve_config(config)

    def descending(self, rate: float) -> ExperimentConfig:
        """The case under plain gradient descent, by the program of Adam.

        Beside an epsilon of 1000 the root of the second moment is nothing: what is left is linear in the gradient,
        where Adam as it is would blow rounding up.
        """
        return self.experiment(OptimizerAlgorithm.ADAM, rate * 1000, beta1=0.0, epsilon=1000.0)

    def assemble(self, experiment: ExperimentConfig, folder: Path, placement: Placement) -> TrainingComponents:
        """Its task and model, where a placement puts them."""
        return build_components(experiment, folder, placement)

    def variables(self, setting: TrainingComponents, key: jax.Array) -> Variables | None:
        """What the first state is made of, where it is taken from another run; None where the key draws it all."""
        if not self.begins_from:
            return None
        folder = source_run(self.name)
        origin = InitializeFromConfig(run=folder.name, rules=self.rules)
        return load_variables_from_source(
            origin, setting.model, setting.abstract_state.variables, lambda: setting.init_state(key).variables
        )[0]


@functools.cache
def source_run(name: str) -> tempfile.TemporaryDirectory:
    """The run that a case begins from, made once."""
    (case,) = (case for case in CASES if case.name == name)
    folder = tempfile.TemporaryDirectory()
    config = {"name": "source", "eval_every": 0, "maps_every": 0, "parameter_averages": {}, **case.begins_from}
    if "optimizer" in case.begins_from:
        train(resolve_config(config), Path(folder.name))
    else:
        write_run(Path(folder.name), {"steps": 1, "optimizer": {}, **config}, lambda state: state)
    return folder


def toy(task: str, family: str = "", **choices: Any) -> dict[str, Any]:
    """The config of a task and a family in files of their own."""
    path = f"{__package__}.{task}"
    return {"task": {"name": path}, "model": {"family": f"{__package__}.{family or task}"}, **choices}


def baseline_follows_the_reward(state: TrainState) -> None:
    assert 0.6 < float(state.task_state["baseline"]) <= 1


def direction_is_the_largest_singular_one(state: TrainState) -> None:
    kernel = np.asarray(state.variables.params["critic"]["expand"]["kernel"])
    right = np.linalg.svd(kernel)[2][0]
    assert abs(right @ np.asarray(state.variables.state["critic"].u)) > 0.99
    assert set(state.averages["target"]) == {
        path for path in leaves_by_path(state.variables.params) if "generator" in path
    }


def the_mixture_of_features_has_moved(state: TrainState) -> None:
    elmo = state.variables.params["elmo"]
    assert np.abs(np.asarray(elmo["weights"])).max() > 1e-3
    assert abs(float(elmo["scale"]) - 1) > 1e-3


DESCENT = {"algorithm": "adam", "learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0, "beta1": 0.5}


def statistics_have_moved(state: TrainState) -> None:
    mean, variance = jax.tree.map(np.asarray, state.variables.state["norm"])
    assert np.abs(mean).max() > 0.01
    # All but a few of 64 features vary less than the ones that the statistics began with.
    assert np.mean(variance < 0.5) > 0.9


def the_replay_has_wrapped_and_the_target_lags(state: TrainState) -> None:
    assert int(state.task_state.written) == 40 * 8
    assert (np.asarray(state.task_state.episodes.lengths) > 0).all()
    values = {path: np.asarray(leaf) for path, leaf in leaves_by_path(state.variables.params).items()}
    behind = [np.abs(np.asarray(leaf) - values[path]).max() for path, leaf in state.averages["target"].items()]
    assert len(behind) == len(values)
    assert 0 < min(behind) <= max(behind) < 0.1


CASES = (
    Case(
        "pointer",
        toy("pointer"),
        keeps_tree=True,
        steps=120,
        learning_rate=0.01,
        metric=("train", "accuracy", lambda first, last: last > 0.95 and first < 0.9),
        attends=0.95,
        # Rounding alone makes 1.2e-6 of the loss of step 14 on the mesh of tensor and sequence.
        rounding=3e-6,
        meshes=("fsdp", "sequence"),
        daily=("plain", "resumed", "mapped", "vectorized"),
    ),
    Case(
        "hard_attention",
        toy("hard_attention"),
        keeps_tree=True,
        steps=200,
        learning_rate=0.03,
        metric=("train", "reward", lambda first, last: last > 0.8 and first < 0.5),
        holds=baseline_follows_the_reward,
        attends=0.95,
        sampled="every microbatch draws its own glimpses: equal in expectation alone",
        meshes=("data", "tensor"),
        daily=("plain", "resumed", "accumulated", "mapped", "vectorized"),
    ),
    Case(
        "two_players",
        toy("two_players", "players"),
        keeps_tree=True,
        steps=200,
        learning_rate=0.01,
        metric=("validation", "distance", lambda first, last: last < 0.4 and last < 0.7 * first),
        # Each player answers the other's rounding, and scores are small sums of large terms.
        rounding=3e-5,
        # Long enough that the players' going around one another averages out, whatever they began with.
        averages={"target": {"kind": "exponential", "decay": 0.97, "patterns": ("generator/*",)}},
        # Two time scales (Heusel et al. 2017): the critic is quicker. On this road no score meets the kink of the hinge
        # within the steps that meshes compare, where rounding alone would send the players apart.
        rates={"generator": 0.5},
        holds=direction_is_the_largest_singular_one,
        daily=(),  # paired_digits x sagan has two players by day
    ),
    Case(
        "translation x encoder_decoder",
        TRANSLATION,
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        averages={"mean": {"kind": "mean", "start": 16, "every": 4}},
        daily=("plain", "resumed", "mapped"),
    ),
    Case(
        "translation x recurrent",
        COPYING
        | {
            "model": {
                "family": "recurrent_encoder_decoder",
                "width": 16,
                "embedding_width": 8,
                "vocab_size": 24,
                "dropout": 0.1,
            }
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        sampled="every microbatch draws its own dropout: equal in expectation alone",
    ),
    Case(
        "translation x convs2s",
        COPYING
        | {
            "model": {
                "family": "convs2s",
                "embedding_width": 8,
                "width": 16,
                "encoder_layers": 1,
                "decoder_layers": 2,
                "max_length": 8,
                "vocab_size": 24,
                "dropout": 0.0,
            }
        },
        steps=24,
        learning_rate=0.03,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "translation x bytenet",
        COPYING
        | {
            "model": {
                "family": "bytenet",
                "width": 16,
                "encoder_sets": 1,
                "decoder_sets": 1,
                "max_dilation": 2,
                "vocab_size": 24,
                "dropout": 0.0,
            }
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        # Each norm blows rounding up: 3.6e-6 of the gradient's norm in the third step of vectorized lanes.
        rounding=1e-5,
    ),
    Case(
        "language_modeling x decoder",
        LANGUAGE_MODELING,
        keeps_tree=True,
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "language_modeling x recurrent_decoder",
        LANGUAGE_MODELING
        | {
            "task": LANGUAGE_MODELING["task"] | {"batching": "windows"},
            "model": {
                "family": "recurrent_decoder",
                "memory": "state_history",
                "width": 16,
                "embedding_width": 8,
                "vocab_size": 128,
            },
        },
        steps=24,
        learning_rate=0.02,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "language_modeling x decoder with experts",
        LANGUAGE_MODELING
        | {"model": {**LANGUAGE_MODELING["model"], "feed_forward": 16, "experts": {"count": 4, "every_n_layers": 2}}},
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        sampled="every microbatch draws its own noise, and a coefficient of variation is no sum over microbatches",
        daily=(),
    ),
    Case(
        "language_modeling x decoder with LoRA and a new head",
        UNTIED
        | {
            "model": UNTIED["model"] | {"lora": {"rank": 2, "alpha": 4.0, "targets": PROJECTIONS}},
            "optimizer": {"trainable": ("*/lora/*", "unembedding/*")},
        },
        keeps_tree=True,
        steps=24,
        learning_rate=0.01,
        begins_from=UNTIED,
        rules=("*/lora/* = fresh", "unembedding/* = fresh"),
        metric=("train", "cross_entropy", lambda first, last: last < 0.95 * first),
        # Rounding alone makes 1.2e-6 of the loss of step 16 on every mesh.
        rounding=3e-6,
        daily=(),
    ),
    Case(
        "masked_lm x encoder",
        MASKED_LANGUAGE_MODELING,
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "masked_lm x encoder of pairs",
        MASKED_LANGUAGE_MODELING
        | {
            "task": {
                **MASKED_LANGUAGE_MODELING["task"],
                "input_format": "fixed_pairs",
                "masking": "static",
                "next_sentence": True,
                "eval_middle_token": True,
            },
            "model": {**MASKED_LANGUAGE_MODELING["model"], "head": "pretraining"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        daily=(),
    ),
    Case(
        "algorithms x turing",
        ALGORITHMS
        | {
            "model": {
                "family": "experiments.neural_turing_machine.ntm",
                "width": 8,
                "write_heads": 2,
                "num_slots": 6,
                "slot_width": 4,
            }
        },
        steps=60,
        learning_rate=0.03,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "algorithms x controller_only",
        ALGORITHMS
        | {"model": {"family": "experiments.neural_turing_machine.lstm_controller", "width": 16, "layers": 2}},
        steps=60,
        learning_rate=0.03,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "language_modeling x bidirectional_language_model",
        BIDIRECTIONAL,
        steps=24,
        learning_rate=0.03,
        metric=("train", "auxiliary/backward", lambda first, last: last < 0.9 * first),
        # Rounding alone makes 1.1e-6 of the loss of step 6 on two devices.
        rounding=3e-6,
    ),
    Case(
        "classification x recurrent_classifier",
        CLASSIFICATION,
        steps=40,
        learning_rate=0.03,
        metric=("train", "loss", lambda first, last: last < 0.5 * first),
    ),
    Case(
        "classification x recurrent_classifier with ELMo",
        CLASSIFICATION
        | {
            "optimizer": {"frozen": ("elmo/pretrained/*",)},
            "model": CLASSIFICATION["model"] | {"elmo": {"layers": 2, "width": 4}},
        },
        keeps_tree=True,
        steps=40,
        learning_rate=0.03,
        begins_from=BIDIRECTIONAL,
        rules=(
            "elmo/pretrained/embedding/* = embedding/*",
            "elmo/pretrained/forward/* = *",
            "elmo/pretrained/backward/* = backward/*",
            "* = fresh",
        ),
        metric=("train", "loss", lambda first, last: last < 0.5 * first),
        holds=the_mixture_of_features_has_moved,
        daily=(),
    ),
    Case(
        "fine_tuning x decoder from a language model",
        FINE_TUNING,
        keeps_tree=True,
        steps=24,
        learning_rate=0.01,
        begins_from=LANGUAGE_MODELING | {"model": FINE_TUNING["model"]},
        rules=("classes/* = fresh",),
        metric=("train", "language_model_loss", lambda first, last: last < 0.9 * first),
        # Rounding alone makes 6.3e-6 of the loss of step 16 on a mesh.
        rounding=1e-5,
    ),
    Case(
        "fine_tuning x encoder",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {
                "dataset": "grammar/entailment/train=32,validation=8,test=8",
                "sequence_format": "bert",
                "auxiliary": 0.0,
            },
            "model": FINE_TUNED_ENCODER | {"head": "classes"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "token_classification x encoder",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {"name": "token_classification", "dataset": "grammar/entities/train=32,validation=8,test=8"},
            "model": FINE_TUNED_ENCODER | {"head": "token_classes"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "question_answering x encoder",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {
                "name": "question_answering",
                # Two windows or three a question.
                "dataset": "grammar/unanswerable_questions/train=16,validation=8,test=8",
                "max_question_length": 20,
                "window_stride": 16,
            },
            "model": FINE_TUNED_ENCODER | {"head": "span"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "fine_tuning x xlnet",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {
                "dataset": "grammar/entailment/train=32,validation=8,test=8",
                "sequence_format": "xlnet",
                "auxiliary": 0.0,
            },
            "model": FINE_TUNED_XLNET | {"head": "classes"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "token_classification x xlnet",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {
                "name": "token_classification",
                "dataset": "grammar/entities/train=32,validation=8,test=8",
                "sequence_format": "xlnet",
            },
            "model": FINE_TUNED_XLNET | {"head": "token_classes"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "question_answering x xlnet",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"]
            | {
                "name": "question_answering",
                "dataset": "grammar/unanswerable_questions/train=16,validation=8,test=8",
                "sequence_format": "xlnet",
                "max_question_length": 20,
                "window_stride": 16,
            },
            "model": FINE_TUNED_XLNET | {"head": "span"},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        # Rounding alone makes 1.7e-7 of the gradient of the head's bias, which is zero.
        rounding=3e-6,
    ),
    Case(
        "fine_tuning x recurrent_decoder",
        FINE_TUNING
        | {
            "task": FINE_TUNING["task"] | {"dataset": "grammar/similarity/train=32,validation=8,test=8"},
            "model": {"family": "recurrent_decoder", "width": 8, "embedding_width": 8, "vocab_size": 288},
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "language_model_loss", lambda first, last: last < 0.9 * first),
        # On some processors vectorized lanes drift by 1.06e-5 of the head's first moment, which ten times this allows.
        rounding=2e-6,
    ),
    Case(
        "pointer from another run",
        toy("pointer"),
        keeps_tree=True,
        steps=20,
        learning_rate=0.001,
        begins_from={**toy("pointer"), "steps": 100, "optimizer": DESCENT},
        # Where it stands from the first step on; the run that it begins from started at 0.4.
        metric=("train", "accuracy", lambda first, last: first > 0.9 and last > 0.95),
        daily=(),
    ),
    Case(
        "memory",
        toy("memory"),
        keeps_tree=True,
        steps=60,
        learning_rate=0.03,
        metric=("train", "auxiliary/sharpness", lambda first, last: last < 0.5 * first),
        meshes=("sequence", "tensor"),
        daily=("plain", "resumed", "mapped"),
    ),
    Case(
        "patches",
        toy("patches"),
        keeps_tree=True,
        steps=60,
        learning_rate=0.03,
        metric=("train", "accuracy", lambda first, last: last > 0.95 and first < 0.9),
        meshes=("fsdp", "data"),
        daily=(),  # image_classification x vit reads patches by day
    ),
    Case(
        "image_classification x vit",
        IMAGES
        | {
            "model": {
                "family": "vit",
                "patch_size": 4,
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "positions": "learned_2d",
                "pooling": "distilled",
                "dropout": 0.0,
            }
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "image_classification x convolutional_classifier",
        IMAGES
        | {
            "model": {
                "family": "convolutional_classifier",
                "encoder": {"channels": (8, 8), "strides": (2, 2)},
                "attention_stages": (0,),
            }
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "summarization x pointer_generator",
        {
            "name": "contract",
            # One fact and two sentences have 32 words, and a summary ten: two devices can share both.
            "task": {
                "name": "experiments.summarization.task",
                "max_facts": 1,
                "num_known_names": 20,
                "eval_sizes": (1,),
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.summarization.model",
                "width": 8,
                "embedding_width": 8,
                "coverage_loss_weight": 1.0,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "linear_regression x regression_decoder",
        {
            "name": "contract",
            # Three dimensions have fourteen steps: two devices can share them.
            "task": {
                "name": "experiments.in_context_learning.linear_regression_task",
                "num_dimensions": 3,
                "min_dimensions": 1,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "regression_decoder",
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "max_length": 14,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < first),
    ),
    Case(
        "in_context_learning x decoder",
        {
            "name": "contract",
            # Two pairs of twelve characters: two devices can share them.
            "task": {
                "name": "experiments.in_context_learning.task",
                "problem": "string_edits",
                "alphabet_size": 8,
                "max_word_length": 4,
                "shots": (0, 1),
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "decoder",
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "max_length": 24,
                "vocab_size": 32,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "news_articles x decoder",
        {
            "name": "contract",
            "task": {
                "name": "experiments.news_articles.task",
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "decoder",
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "max_length": 56,
                "vocab_size": 320,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "few_shot x snail",
        {
            "name": "contract",
            # Three ways and one shot have four steps: two devices can share them.
            "task": {
                "name": "experiments.few_shot.task",
                "dataset": "strokes/train=6,validation=3,test=3,num_drawers=3",
                "image_size": 8,
                "ways": 3,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "snail",
                "embedding_width": 8,
                "channels": (4, 8),
                "key_sizes": (4, 4, 4),
                "value_sizes": (4, 4, 4),
                "filters": (4, 4),
            },
        },
        steps=60,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < first),
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
    ),
    Case(
        "meta_rl x snail",
        {
            "name": "contract",
            "task": {
                "name": "experiments.meta_rl.task",
                "num_actions": 2,
                "num_episodes": 4,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "snail",
                "embedding_width": 4,
                "blocks": ("convolutions", "attention"),
                "key_sizes": (4,),
                "value_sizes": (4,),
                "filters": (4,),
            },
        },
        steps=40,
        learning_rate=0.03,
        metric=("train", "loss", lambda first, last: last < 0.95 * first),
    ),
    Case(
        "point_clouds x set_transformer",
        {
            "name": "contract",
            "task": {
                "name": "experiments.point_clouds.task",
                "min_points": 12,
                "max_points": 24,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.point_clouds.model",
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
            },
        },
        steps=120,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "kernel_regression x kernel_regression",
        {
            "name": "contract",
            "task": {
                "name": "experiments.kernel_regression.task",
                # An odd number, since distances cannot go around a ring, which the table of meshes asks for.
                "num_points": 9,
                "num_features": 2,
                "batch_size": 16,
                "num_queries": 4,
            },
            "model": {"family": "experiments.kernel_regression.model", "learned_bandwidth": "per_feature"},
        },
        steps=20,
        learning_rate=0.1,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "graph_distances x graph_transformer",
        {
            "name": "contract",
            "task": {
                "name": "experiments.graphs.task",
                "num_nodes": 8,
                "max_distance": 2,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.graphs.model",
                # The default's vectors cannot go around a ring, which the table of meshes asks for.
                "edges": "bias",
                "layers": 1,
                "width": 8,
                "heads": 2,
                "feed_forward": 8,
            },
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        rounding=3e-6,
    ),
    Case(
        "geometry x pointer",
        {
            "name": "contract",
            # Triangles of at most four points have ten steps: two devices can share both.
            "task": {
                "name": "experiments.pointer_networks.task",
                "problem": "delaunay",
                "min_points": 3,
                "max_points": 4,
                "batch_size": 16,
                "eval_sizes": (3,),
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.pointer_networks.model",
                "encoder": {"width": 8, "direction": "bidirectional"},
                "decoder_input": "encoded",
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.8 * first),
    ),
    Case(
        "visual_question_answering x smem_vqa",
        QUESTIONS
        | {
            "model": {
                "family": "experiments.visual_question_answering.smem_vqa",
                "width": 16,
                "image_encoder": PLACES,
                "vocab_size": 32,
            }
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "visual_question_answering x stacked_attention_vqa",
        QUESTIONS
        | {
            "model": {
                "family": "experiments.visual_question_answering.stacked_attention_vqa",
                "embedding_width": 8,
                "question_encoder": {"width": 8},
                "hidden": 16,
                "image_encoder": PLACES,
                "vocab_size": 32,
            }
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "captions x captioner",
        CAPTIONS,
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "captions x captioner that draws",
        CAPTIONS
        | {
            "model": CAPTIONS["model"]
            | {"attention": "hard", "doubly_stochastic_weight": 0.0, "soft_attention_probability": 0.5}
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        sampled="every microbatch draws its own places: equal in expectation alone",
        # Rounding alone makes 1.3e-6 of the gradient's norm in the third step of vectorized lanes.
        rounding=3e-6,
        daily=(),
    ),
    Case(
        "handshake_rl x recurrent_q_network",
        {
            "name": "contract",
            "task": {
                "name": "experiments.handshake_rl.task",
                "max_episode_steps": 4,
                "episodes_per_step": 8,
                "replay_batch_size": 16,
                "replay_capacity": 24,
                "exploration_steps": 20,
                "num_eval_examples": 8,
                "num_probe_examples": 2,
            },
            "model": {
                "family": "experiments.handshake_rl.model",
                "image_encoder": {"channels": (4,), "strides": (3,)},
                "width": 8,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.5 * first),
        averages={"target": {"kind": "exponential", "decay": 0.8}},
        holds=the_replay_has_wrapped_and_the_target_lags,
    ),
    Case(
        "scene_text x show_attend_read",
        {
            "name": "contract",
            # Strings of at most three glyphs have four steps: two devices can share them.
            "task": {
                "name": "experiments.scene_text.task",
                "min_length": 1,
                "max_length": 3,
                "image_size": 24,
                "alphabet": "AEJKT",
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.scene_text.model",
                "image_encoder": {"channels": (8,), "strides": (4,)},
                "width": 8,
                "layers": 1,
            },
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "paired_digits x sagan",
        {
            "name": "contract",
            "task": {
                "name": "experiments.sagan.task",
                "digits": "17",
                "image_height": 8,
                "noise_size": 4,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {"family": "experiments.sagan.model", "channels": (4, 8), "attention_grids": (4,), "reduction": 1},
        },
        keeps_tree=True,
        steps=40,
        learning_rate=0.01,
        metric=("train", "discriminator/loss", lambda first, last: last < 0.95 * first),
        averages={"smooth": {"kind": "exponential", "decay": 0.9, "patterns": ("generator/*",)}},
        rates={"generator": 0.25},
        # Each player answers the other's rounding.
        rounding=3e-5,
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
    ),
    Case(
        "spoken_digits x listen_attend_spell",
        SPOKEN_DIGITS,
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "spoken_digits x listen_attend_spell that reads its own",
        SPOKEN_DIGITS
        | {
            "model": SPOKEN_DIGITS["model"]
            | {
                "scheduled_sampling": 0.3,
                "audio_frontend": {"spec_augment": {"num_time_masks": 1, "max_time_mask_width": 5}},
            }
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        sampled="every microbatch draws its own characters and masks: equal in expectation alone",
        daily=(),
    ),
    Case(
        "spoken_digits x speech_transformer",
        SPOKEN_DIGITS
        | {
            "model": {
                "family": "experiments.speech.speech_transformer",
                "encoder_layers": 1,
                "decoder_layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 32,
                "dropout": 0.0,
                "channels": 8,
                "max_length": 32,
                "vocab_size": 16,
                "audio_frontend": {"num_mel_bins": 8, "hop_length": 160},
            }
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "permutation_lm x xlnet",
        {
            "name": "contract",
            "task": {
                "name": "permutation_lm",
                "dataset": "python_docs",
                "tokenizer": "bytes",
                "context_length": 16,
                "batch_size": 16,
                "partial_prediction_k": 4,
                "segments_per_eval_text": 2,
                "num_probe_examples": 3,
                "probe_length": 12,
            },
            "model": {
                "family": "xlnet",
                "vocab_size": 264,
                "layers": 2,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "memory_length": 8,
                # The default's terms of distances cannot go around a ring, which the table of meshes asks for.
                "positions": "rotary",
            },
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        holds=the_memory_is_of_what_was_read,
    ),
    Case(
        "segment_lm x transformer_xl",
        {
            "name": "contract",
            "task": {
                "name": "segment_lm",
                "dataset": "python_docs",
                "tokenizer": "bytes",
                "context_length": 16,
                "batch_size": 16,
                "segments_per_eval_text": 2,
                "num_probe_examples": 3,
                "probe_length": 12,
            },
            "model": {
                "family": "transformer_xl",
                "vocab_size": 264,
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "memory_length": 8,
                # The default's terms of distances cannot go around a ring, which the table of meshes asks for.
                "positions": "rotary",
            },
        },
        steps=40,
        learning_rate=0.02,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        holds=the_memory_is_of_what_was_read,
    ),
    Case(
        "instruction_following x listen_attend_walk",
        {
            "name": "contract",
            # Ten words and eight steps: two devices can share them.
            "task": {
                "name": "experiments.instruction_following.task",
                "num_mazes": 4,
                "num_held_out_mazes": 2,
                "maze_size": 3,
                "max_clauses": 1,
                "max_actions": 7,
                "batch_size": 16,
                "num_eval_examples": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.instruction_following.model",
                "width": 8,
                "embedding_width": 8,
                "vocab_size": 64,
            },
        },
        steps=40,
        learning_rate=0.03,
        metric=("train", "loss", lambda first, last: last < 0.7 * first),
    ),
    Case(
        "attention_probes x decoder",
        {
            "name": "contract",
            # Ten words at most: two devices can share them.
            "task": MARKED_TEXTS,
            "model": {
                "family": "decoder",
                "vocab_size": 8,
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "max_length": 10,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "attention_probes x bytenet_decoder",
        {
            "name": "contract",
            "task": MARKED_TEXTS,
            "model": {
                "family": "bytenet_decoder",
                "vocab_size": 8,
                "width": 16,
                "sets": 1,
                "max_dilation": 2,
            },
        },
        steps=40,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        # As of bytenet: each norm blows rounding up.
        rounding=1e-5,
    ),
    Case(
        "text_retrieval x dual_encoder",
        {
            "name": "contract",
            "task": {
                "name": "experiments.text_retrieval.task",
                "dataset": "number_words/train=64,validation=16,test=16",
                "vocab_size": 160,
                "max_tokens": 32,
                "batch_size": 16,
                "pool_size": 16,
                "num_probe_examples": 3,
            },
            "model": {
                "family": "experiments.text_retrieval.model",
                "vocab_size": 160,
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 16,
                "max_length": 32,
            },
        },
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
        sampled="every microbatch would have negatives of its own alone: it is refused",
    ),
    Case(
        "normed_translator",
        TRANSLATION | {"model": {"family": f"{__package__}.normed_translator", "width": 16}},
        keeps_tree=True,
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        holds=statistics_have_moved,
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
        daily=(),  # paired_digits x sagan keeps statistics by day
    ),
)
