"""Families by name, and what every model gives."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import UserError, to_config
from transformer.layers.functional_module import Precision
from transformer.layers.residual import NormPlacement
from transformer.models import registry
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import count_parameters
from transformer.models.published_sizes import PUBLISHED_SIZES as SIZES
from transformer.models.task_interface import InputSpec, TaskInterface


def test_a_config_names_its_family() -> None:
    config = registry.model_config({"family": "encoder_decoder", "width": 64, "norm_placement": "pre"})
    assert config == EncoderDecoderConfig(width=64, norm_placement=NormPlacement.PRE)
    assert registry.family_name(config) == "encoder_decoder"


def test_another_size_keeps_what_was_said_otherwise_than_the_former() -> None:
    """Kept, it is refused in one line; dropped, another model than the one asked for would be trained."""
    values = {"family": "decoder", "size": "gpt2", "heads": 12, "layers": 6, "dropout": 0.2}
    assert registry.change_size(values, "gpt2-medium") == {"size": "gpt2-medium", "layers": 6, "dropout": 0.2}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"family": "encoder_decodr"}, r"config\.model\.family='encoder_decodr'.*did you mean 'encoder_decoder'"),
        ({}, r"config\.model\.family=''.*encoder_decoder"),
        ({"family": "encoder_decoder", "widht": 8}, r"config\.model\.widht: did you mean 'width'"),
        ({"family": "encoder_decoder", "norm_placement": "prre"}, r"norm_placement='prre'.*did you mean 'pre'"),
        ({"family": "encoder_decoder", "width": 100, "heads": 8}, r"width=100.*config\.model\.heads=8"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(values: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        registry.model_config(values)
    assert "\n" not in str(refused.value)


def test_a_size_fills_what_is_absent() -> None:
    config = registry.model_config({"size": "gpt2-xl", "dropout": 0.1, "width": None, "heads": 25})
    assert registry.family_name(config) == "decoder"
    assert (config.layers, config.width, config.heads, config.feed_forward) == (48, 1600, 25, 6400)
    assert (config.dropout, config.size) == (0.1, "gpt2-xl")
    banded = registry.model_config({"family": "decoder", "size": "gpt3-125m", "attention_windows": [0, 128]})
    assert banded.attention_windows == (0, 128)
    placed = registry.model_config({"size": "gpt1", "norm_placement": NormPlacement.POST})
    assert placed.norm_placement is NormPlacement.POST


@pytest.mark.parametrize("name", list(SIZES))
def test_a_resolved_size_can_be_read_again(name: str) -> None:
    config = registry.model_config({"size": name})
    written = json.loads(json.dumps({"family": registry.family_name(config), **to_config(config)}))
    assert written["size"] == name
    assert written["width"] == SIZES[name].config_values["width"]
    assert registry.model_config(written) == config


def test_no_size_fills_nothing() -> None:
    given = {"family": "decoder", "size": None, "width": 64, "heads": 2}
    assert registry.model_config(given) == DecoderConfig(width=64, heads=2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"size": "gpt2xl"}, r"config\.model\.size='gpt2xl' is unknown: did you mean 'gpt2-xl'"),
        ({"size": 2}, r"config\.model\.size='2' is unknown"),
        (
            {"family": "encoder", "size": "gpt2"},
            r"config\.model\.family='encoder' contradicts config\.model\.size='gpt2', which has family='decoder'",
        ),
        (
            {"family": "decoder", "size": "gpt2", "width": 1024},
            r"config\.model\.width=1024 contradicts config\.model\.size='gpt2', which has width=768",
        ),
        ({"size": "gpt2", "norm_placement": "post"}, r"norm_placement='post' contradicts .*norm_placement='pre'"),
        ({"size": "gpt3-175b", "attention_windows": ()}, r"windows=\[\] contradicts .*windows=\[0, 128\]"),
        ({"size": "bert-base", "kv_heads": 4}, r"kv_heads=4 contradicts .*kv_heads=12"),
        ({"size": "gpt2", "widht": 768}, r"config\.model\.widht: did you mean 'width'"),
        ({"size": "gpt2", "tie_embeddings": 1}, r"config\.model\.tie_embeddings=1 is a int; it must be a bool"),
    ],
)
def test_a_size_that_does_not_fit_is_refused_in_one_line(values: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        registry.model_config(values)
    assert "\n" not in str(refused.value)


def test_a_config_builds_its_family() -> None:
    interface = TaskInterface({"source": InputSpec((2, 4)), "target": InputSpec((2, 4))}, {"joint": 9}, 0, 1, 2)
    config = EncoderDecoderConfig(encoder_layers=1, decoder_layers=1, width=8, heads=2, feed_forward=8)
    model = registry.build(config, interface, Precision())
    assert [site.name for site in model.sites] == ["encoder/self", "decoder/self", "decoder/cross"]
    with pytest.raises(TypeError, match="dict is the config of no FAMILY"):
        registry.build({}, interface, Precision())


def test_a_type_that_is_no_floating_point_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'int32'.*float32 or bfloat16"):
        Precision(compute="int32")


def test_parameters_are_counted_from_shapes_or_arrays() -> None:
    shapes = {"a": jax.ShapeDtypeStruct((3, 4), jnp.float32), "b": {"c": np.zeros(5)}}
    assert count_parameters(shapes) == 17
