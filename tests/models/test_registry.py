"""Families by name, and what every model gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import UserError
from transformer.layers.residual import NormPlacement
from transformer.models import registry
from transformer.models.contract import Interface, Precision, count_parameters
from transformer.models.encoder_decoder import EncoderDecoderConfig


def test_a_config_names_its_family() -> None:
    config = registry.model_config({"family": "encoder_decoder", "width": 64, "norm_placement": "pre"})
    assert config == EncoderDecoderConfig(width=64, norm_placement=NormPlacement.PRE)
    assert registry.name_of(config) == "encoder_decoder"


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


def test_a_config_builds_its_family() -> None:
    shape = jax.ShapeDtypeStruct((2, 4), jnp.int32)
    interface = Interface({"source": shape, "target": shape}, {"joint": 9}, 0, 1, 2)
    config = EncoderDecoderConfig(encoder_layers=1, decoder_layers=1, width=8, heads=2, feed_forward=8)
    model = registry.build(config, interface, Precision())
    assert [site.name for site in model.sites] == ["encoder/self", "decoder/self", "decoder/cross"]
    with pytest.raises(TypeError, match="dict is no model family's config"):
        registry.build({}, interface, Precision())


def test_a_type_that_is_no_floating_point_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'int32'.*float32 or bfloat16"):
        Precision(compute="int32")


def test_parameters_are_counted_from_shapes_or_arrays() -> None:
    shapes = {"a": jax.ShapeDtypeStruct((3, 4), jnp.float32), "b": {"c": np.zeros(5)}}
    assert count_parameters(shapes) == 17
