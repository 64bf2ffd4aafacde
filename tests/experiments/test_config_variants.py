"""What follows the colon of a config file has its effect: every variant says what it changes, and changes no more."""

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from launch.config_files import load_config
from tests.experiments.variants import CHECKOUT, FILES, variants_of
from transformer.config import flatten_config
from transformer.training.config import resolve_config

LSTM_OF_THE_SAME_TEXT = {"model.family": "recurrent_decoder", "model.width": 256, "model.layers": 1}
FINE_TUNED = {
    "task.name": "fine_tuning",
    "task.tokenizer": "existing",
    "task.test_split": "development",
    "model.family": "decoder",
    "model.layers": 4,
    "initialize_from.run": "runs/gpt1",
    "initialize_from.rules": ("classes/* = fresh", "resize embedding/table"),
    "steps": 1000,
}
FROM_SCRATCH = {"task.name": "fine_tuning", "model.layers": 2, "model.dropout": 0.0, "initialize_from.run": ""}
BERT_SEQUENCES = {"model.head": "classes", "task.sequence_format": "bert", "task.auxiliary": 0.0}
OF_BERT = BERT_SEQUENCES | {
    "model.family": "encoder",
    "initialize_from.run": "runs/bert",
    "initialize_from.rules": ("classes/* = fresh",),
}
OF_XLNET = BERT_SEQUENCES | {
    "model.family": "xlnet",
    "model.relative_segments": True,
    "task.sequence_format": "xlnet",
    "initialize_from.run": "runs/xlnet",
    "initialize_from.rules": ("classes/* = fresh", "pooler/* = fresh", "layers/attention/relative/kind* = fresh"),
}
CODE = {"steps": 300, "eval_every": 50, "task.dataset": "runs/code.txt", "task.prompts": ("def ",)}
AFTER_THE_DOCUMENTATION = CODE | {
    "task.tokenizer": "existing",
    "initialize_from.run": "runs/documentation",
    "initialize_from.copy_tokenizer": True,
}
RESIDUAL = {"model.family": "convolutional_classifier", "model.encoder.blocks_per_stage": 1}
PROBES = ("agreement", "two_offset_copy", "retrieval", "sorting", "brackets")

# The resolved keys that differ from those of the file without an argument, besides the name.
CHANGED: Mapping[str, Mapping[str, Any]] = {
    **{f"attention_probes/single_probe:{name}": {"task.dataset": name} for name in PROBES},
    "attention_probes/single_probe:motifs": {
        "task.dataset": "motifs",
        "model.attention_windows": (1, 0),
        "model.scan_unroll": 1,
    },
    "captioning/show_attend_tell:hard": {
        "model.attention": "hard",
        "model.doubly_stochastic_weight": 0.0,
        "model.soft_attention_probability": 0.5,
        "task.reinforce_weight": 0.2,
    },
    "captioning/show_attend_tell:none": {"model.attention": "none", "model.doubly_stochastic_weight": 0.0},
    "few_shot/omniglot:5x5": {"task.shots": (5,)},
    "few_shot/omniglot:20x1": {"task.ways": 20},
    "few_shot/omniglot:20x5": {"task.ways": 20, "task.shots": (5,)},
    "few_shot/omniglot:alphabets": {"task.dataset": "omniglot", "task.eval_rotation_augmentation": "none"},
    "few_shot/omniglot:paper": {
        "task.dataset": "omniglot_characters/validation=20,test=423",
        "task.shots": (1, 2, 3, 4, 5),
        "task.image_size": 28,
        "model.channels": (64,) * 4,
        "model.key_sizes": (64, 256, 512),
        "model.value_sizes": (32, 128, 256),
        "model.filters": (128, 128),
        "topology": "",
    },
    "handshake_rl/mdarqn:mean": {"model.region_pooling": "mean"},
    "handshake_rl/mdarqn:concatenate": {"model.region_pooling": "concatenate"},
    "in_context_learning/word_translation:small": {
        "model.layers": 2,
        "model.width": 64,
        "model.heads": 2,
        "model.feed_forward": 128,
        "model.scan_unroll": 2,
        "optimizer.learning_rate": 3e-3,
    },
    **{
        f"news_articles/write_from_title:{size}": {
            "model.layers": layers,
            "model.width": width,
            "model.heads": 2,
            "model.feed_forward": 4 * width,
            "model.scan_unroll": layers,
        }
        for size, layers, width in (("tiny", 1, 16), ("small", 2, 32))
    },
    "instruction_following/listen_attend_walk_ablation:long": {
        "steps": 2500,
        "task.max_clauses": 6,
        "task.max_actions": 24,
        "task.num_eval_examples": 1000,
    },
    "kernel_regression/bandwidth:features": {
        "model.learned_bandwidth": "per_feature",
        "task.num_features": 3,
        "task.num_points": 100,
    },
    "language_modeling/lstmn:lstm": {"model.memory": "state", "model.width": 144},
    "language_modeling/shakespeare_large:cpu": {
        "steps": 2000,
        "eval_every": 500,
        "task.batch_size": 8,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "model.scan_unroll": 6,
        "topology": "cpu:1",
    },
    "lora/fine_tuning:scratch": CODE,
    "lora/fine_tuning:layers": AFTER_THE_DOCUMENTATION | {"optimizer.layer_decay": 0.7},
    "lora/fine_tuning:lora": AFTER_THE_DOCUMENTATION
    | {
        "initialize_from.rules": ("*/lora/* = fresh",),
        "optimizer.trainable": ("*/lora/*",),
        "model.lora.rank": 8,
        "model.lora.targets": ("query", "key", "value", "output", "feed_forward"),
    },
    # Three hundred thousand million tokens, 2,048 a row.
    **{
        f"pods/weak_scaling:v5p:{shape}": {
            "topology": f"v5p:{shape}",
            "task.batch_size": 8 * chips,
            "steps": 300_000_000_000 // (2048 * 8 * chips),
        }
        for shape, chips in (("2x2x2", 8), ("2x2x4", 16), ("2x4x4", 32), ("4x4x4", 64), ("4x4x8", 128), ("8x8x4", 256))
    },
    "point_clouds/digit_point_clouds:bare_attention": {"model.projections": "none"},
    **{
        f"pointer_networks/convex_hull:{output}": {
            "steps": 5000,
            "task.eval_sizes": (5, 10),
            "model.output": output,
            "model.decoder_input": "index",
        }
        for output in ("fixed_vocabulary", "fixed_vocabulary_with_attention")
    },
    "sagan/sagan:convolutions": {"model.attention_grids": ()},
    "scene_text/show_attend_read:columns": {"model.attention_input": "columns"},
    "scene_text/show_attend_read:plain": {"model.attention_input": "plain"},
    "speech/spoken_digits:synthetic": {"task.dataset": "synthetic"},
    "speech/spoken_digits:held_out": {"task.held_out_speaker": "theo"},
    "speech/spoken_digits:single": {
        "steps": 3000,
        "task.min_digits": 1,
        "task.max_digits": 1,
        "task.max_seconds": 1.2,
        "task.output_units": "digits",
        "task.batch_size": 48,
    },
    "summarization/pointer_generator:coverage": {
        "initialize_from.run": "runs/articles",
        "initialize_from.rules": ("covered/* = fresh",),
        "model.coverage_loss_weight": 1.0,
    },
    "summarization/pointer_generator:plain": {"task.oov_target": "unknown"},
    "text_retrieval/number_words:bag_of_words": {"model.layers": 0, "model.positions": "none"},
    "translation/recurrent_copy:last": {"model.context_vector": "last"},
    "translation/recurrent_multi30k:last": {"model.context_vector": "last"},
    "translation/recurrent_phrases:multi_head": {
        "model.score": "scaled_dot",
        "model.key_value_projection": "split",
        "model.heads": 4,
    },
    "translation/recurrent_phrases:gnmt": {
        "steps": 3000,
        "model.cell": "lstm",
        "model.encoder_layers": 3,
        "model.decoder_layers": 3,
        "model.direction": "bidirectional_below",
        "model.skip_connections": "gnmt",
        "model.attention_query": "bottom_layer",
        "model.output_layer": "state",
    },
    "translation/recurrent_phrases:deep_att": {
        "steps": 3000,
        "optimizer.learning_rate": 1e-3,
        "model.cell": "lstm_peephole",
        "model.encoder_layers": 3,
        "model.decoder_layers": 3,
        "model.direction": "alternating_columns",
        "model.skip_connections": "fast_forward_half",
        "model.initial_decoder_state": "zero",
        "model.annotations": "fast_forward",
        "model.attention_query": "bottom_layer_only",
        "model.output_layer": "state",
    },
    "translation/sequence_level_training:mrt": {"task.objective": "mrt", "task.nll_weight": 0.0},
    # The last twenty checkpoints, one every 600 steps; the rate is (width x warm-up)^-0.5.
    "translation/wmt14:big": {
        "steps": 300_000,
        "model.width": 1024,
        "model.feed_forward": 4096,
        "model.heads": 16,
        "model.dropout": 0.3,
        "optimizer.learning_rate": pytest.approx(1 / (32 * 4000**0.5), rel=1e-9),
        "parameter_averages.last.every": 600,
        "parameter_averages.last.start": 288_000,
    },
    "visual_question_answering/scene_questions:one_hop": {"model.num_hops": 1},
    "visual_question_answering/scene_questions:mean": {
        "model.image_readout": "mean",
        "model.num_hops": 1,
        "model.word_dropout": 0.0,
    },
    "visual_question_answering/scene_questions:question_only": {
        "model.image_readout": "nothing",
        "model.grid_positions": "learned",
        "model.word_dropout": 0.0,
    },
}

# Of a variant that trains another model or task, the keys that make it what it is called, among many others.
ANOTHER: Mapping[str, Mapping[str, Any]] = {
    "dialogue/help_desk:recurrent": {"model.family": "recurrent_encoder_decoder", "model.width": 96},
    **{
        f"glue/elmo:{name}": {
            "task.name": "classification",
            "task.dataset": f"glue/{name}",
            "task.tokenizer": "existing",
            "model.family": "recurrent_classifier",
            "model.elmo.layers": 2,
            "model.elmo.width": 128,
            "optimizer.frozen": ("elmo/pretrained/*",),
            "initialize_from.run": "runs/elmo",
        }
        for name in ("SST-2", "CoLA")
    },
    **{f"glue/bert:{name}": FINE_TUNED | OF_BERT | {"task.dataset": f"glue/{name}"} for name in ("SST-2", "CoLA")},
    **{
        f"glue/bert:{name}": FROM_SCRATCH | BERT_SEQUENCES | {"task.dataset": f"grammar/{name}"}
        for name in ("acceptability", "entailment", "similarity", "choice")
    },
    "glue/bert:entities": {
        "task.name": "token_classification",
        "task.dataset": "grammar/entities",
        "model.family": "encoder",
        "model.head": "token_classes",
        "model.layers": 2,
        "initialize_from.run": "",
    },
    "glue/bert:questions": {
        "task.name": "question_answering",
        "task.dataset": "grammar/unanswerable_questions",
        "model.family": "encoder",
        "model.head": "span",
        "model.layers": 2,
        "initialize_from.run": "",
    },
    "glue/gpt1:lstm": LSTM_OF_THE_SAME_TEXT,
    **{f"glue/gpt1:{name}": FINE_TUNED | {"task.dataset": f"glue/{name}"} for name in ("SST-2", "CoLA")},
    **{
        f"glue/gpt1:{name}": FROM_SCRATCH | {"task.dataset": f"grammar/{name}"}
        for name in ("acceptability", "entailment", "similarity", "choice")
    },
    **{f"glue/xlnet:{name}": FINE_TUNED | OF_XLNET | {"task.dataset": f"glue/{name}"} for name in ("SST-2", "CoLA")},
    "image_classification/cifar10:convolution": RESIDUAL | {"model.attention_stages": (), "steps": 4650},
    "image_classification/cifar10:attention": RESIDUAL | {"model.attention_stages": (1,), "steps": 4250},
    "meta_rl/bandits:transformer": {"model.family": "regression_decoder", "model.layers": 2, "model.max_length": 10},
    "sagan/sagan:classifier": {
        "task.name": "image_classification",
        "task.dataset": "digits/size=16",
        "model.family": "convolutional_classifier",
        "model.encoder.channels": (16, 32, 64),
    },
    "speech/spoken_digits:transformer": {
        "model.family": "experiments.speech.speech_transformer",
        "model.encoder_layers": 3,
        "model.decoder_layers": 2,
        "model.audio_frontend.spec_augment.num_time_masks": 2,
        "steps": 3000,
    },
    "visual_question_answering/scene_questions:stacked_attention": {
        "model.family": "experiments.visual_question_answering.stacked_attention_vqa"
    },
}


@functools.cache
def resolved(name: str, argument: str = "") -> dict[str, Any]:
    """The whole config of "project/file", with what may follow its colon."""
    project, file = name.split("/")
    path = CHECKOUT / "experiments" / project / "configs" / f"{file}.py"
    whole = resolve_config(load_config(f"{path}{argument and ':'}{argument}").to_dict()).to_config()
    return {key: tuple(value) if isinstance(value, list) else value for key, value in flatten_config(whole).items()}


def test_every_variant_of_a_config_file_says_what_it_changes() -> None:
    named = {
        f"{file.parents[1].name}/{file.stem}{argument}"
        for file in FILES
        for argument in variants_of(file)
        if argument and file.parent.name == "configs"
    }
    first = {name for name in named if not differing(*name.split(":", 1))}
    assert named - first == {*CHANGED, *ANOTHER}
    assert len(first) == len({name.split(":")[0] for name in named}), "a file has one argument that changes nothing"


def differing(name: str, argument: str) -> dict[str, Any]:
    """The keys in which a variant differs from the file without an argument, with its values."""
    base, variant = resolved(name), resolved(name, argument)
    keys = {key for key in (base | variant) if base.get(key) != variant.get(key)}
    return {key: variant.get(key) for key in sorted(keys - {"name"})}


@pytest.mark.parametrize("variant", CHANGED)
def test_a_variant_changes_what_it_says_and_no_more(variant: str) -> None:
    assert differing(*variant.split(":", 1)) == CHANGED[variant]


@pytest.mark.parametrize("variant", ANOTHER)
def test_a_variant_of_another_model_or_task_is_what_it_is_called(variant: str) -> None:
    name, argument = variant.split(":", 1)
    whole = resolved(name, argument)
    assert {key: whole.get(key) for key in ANOTHER[variant]} == ANOTHER[variant]
    assert (whole["model.family"], whole["task.name"]) != tuple(
        resolved(name)[key] for key in ("model.family", "task.name")
    )
    assert whole["name"] != resolved(name)["name"]
