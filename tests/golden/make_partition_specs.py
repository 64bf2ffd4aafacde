"""Writes partition_specs.json: where every parameter of the contracts' families lies under each set of rules.

    python -m tests.golden.make_partition_specs

Run it when a parameter is meant to lie elsewhere, and read the difference: a wrong rule costs a pod its memory.
"""

import json
from pathlib import Path
from typing import Any

import jax

from transformer.layers.functional_module import Precision
from transformer.logical_axes import RULES, Placement
from transformer.models.model import leaves_by_path
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface
from transformer.training.partitioning import ShardingConfig, is_axis_names, make_placement

FILE = Path(__file__).with_name("partition_specs.json")
SMALL = {"width": 16, "heads": 4, "feed_forward": 32, "max_length": 16}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"family": "decoder", **SMALL, "layers": 2, "tie_embeddings": False, "biases": "all"},
    "decoder, gated": {"family": "decoder", **SMALL, "layers": 2, "activation": "swiglu", "kv_heads": 2},
    "decoder, one key head": {"family": "decoder", **SMALL, "layers": 2, "kv_heads": 1},
    "decoder, Transformer-XL": {"family": "decoder", **SMALL, "layers": 2, "positions": "transformer_xl"},
    "xlnet": {"family": "xlnet", **SMALL, "layers": 2, "relative_segments": True},
    "encoder": {"family": "encoder", **SMALL, "layers": 2, "add_pooling_layer": True},
    "encoder, ALBERT": {"family": "encoder", **SMALL, "layers": 2, "embedding_width": 8, "layer_groups": 1},
    "encoder_decoder": {"family": "encoder_decoder", **SMALL, "encoder_layers": 2, "decoder_layers": 2},
    "encoder_decoder, T5": {
        "family": "encoder_decoder",
        **SMALL,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "positions": "t5",
    },
    "convs2s": {"family": "convs2s", "embedding_width": 8, "width": 16, "encoder_layers": 2, "decoder_layers": 2},
    "bytenet": {"family": "bytenet", "width": 8, "encoder_sets": 2, "decoder_sets": 2, "max_dilation": 2},
}
MESHES = {
    "dp": ShardingConfig(data=8),
    "fsdp": ShardingConfig(data=2, fsdp=4, rules="fsdp"),
    "fsdp+tp": ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"),
    "sp": ShardingConfig(data=2, fsdp=2, sequence=2, rules="sp"),
    "sp+tp": ShardingConfig(fsdp=2, tensor=2, sequence=2, rules="sp+tp"),
}
assert set(MESHES) == set(RULES)


def specs(model: str, placement: Placement) -> dict[str, str]:
    """The mesh axis of every dimension of every parameter; "-" where it is whole."""
    interface = TaskInterface({}, {"tokens": 32, "joint": 32}, pad_id=0, bos_id=1, eos_id=2)
    built = build(model_config(MODELS[model]), interface, Precision())
    names, shapes = leaves_by_path(built.axes().params, is_axis_names), leaves_by_path(built.functional.shapes())
    return {
        path: " ".join(axis or "-" for axis in placement.even_partition_spec(axes, shapes[path].shape))
        for path, axes in names.items()
    }


def all_specs() -> dict[str, Any]:
    """By rules and model."""
    placements = {name: make_placement(config, jax.devices()[:8]) for name, config in MESHES.items()}
    return {rules: {model: specs(model, here) for model in MODELS} for rules, here in placements.items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    FILE.write_text(json.dumps(all_specs(), indent=1) + "\n", encoding="utf-8")
