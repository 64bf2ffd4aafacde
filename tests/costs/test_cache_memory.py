"""The memory of a cache of decoding: that of the arrays that a decoding model really makes, and the textbook's."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.models.random_models import fresh_variables
from transformer.config import UserError
from transformer.costs.cache_memory import cache_memory
from transformer.costs.model_sizes import published_cache
from transformer.layers.functional_module import Precision
from transformer.models.registry import FAMILIES, build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface

SIZES = {"width": 8, "heads": 4, "feed_forward": 8, "max_length": 16}
INTERFACE = TaskInterface({"tokens": InputSpec((2, 4))}, {"tokens": 11, "joint": 11}, pad_id=0, bos_id=1, eos_id=2)


@pytest.mark.parametrize(
    ("family", "config", "per_token"),
    [
        # Keys and values of two layers, of 4 heads of 2 features in float32.
        ("decoder", {"layers": 2}, 2 * 2 * 4 * 2 * 4),
        ("decoder", {"layers": 2, "kv_heads": 1}, 2 * 2 * 1 * 2 * 4),
        # A layer that sees three positions back keeps four, the other all.
        ("decoder", {"layers": 2, "attention_windows": (3, 0)}, 2 * 2 * 4 * 2 * 4),
        ("encoder_decoder", {"encoder_layers": 1, "decoder_layers": 3, "kv_heads": 2}, 2 * 3 * 2 * 2 * 4),
        ("recurrent_decoder", {}, 0),
    ],
)
def test_it_is_that_of_the_arrays_of_a_model_that_decodes(family: str, config: dict[str, Any], per_token: int) -> None:
    sizes = {"width": 8} if family == "recurrent_decoder" else SIZES
    model = build(model_config({"family": family, **sizes, **config}), INTERFACE, Precision())
    memory = cache_memory(model, FAMILIES[family], 3, 9, {})
    assert memory is not None
    rows, length, dtype = memory[:3]
    assert (rows, length, dtype, memory.bytes_per_token) == (3, 9, "float32", per_token)
    tokens = jnp.ones((3, 1), jnp.int32)
    if family == "encoder_decoder":
        inputs, steps = {"source": jnp.ones((3, 9), jnp.int32)}, 9
    else:
        inputs, steps = {"tokens": tokens, "lengths": jnp.ones(3, jnp.int32)}, 8
    make = jax.jit(lambda variables: model.init_cache(variables, inputs, num_beams=1, length=steps)[0])
    cache = make(fresh_variables(model))
    arrays = jax.tree.leaves((cache.layers, cache.rows, cache.examples))
    assert memory.num_bytes == sum(each.nbytes for each in arrays if jnp.issubdtype(each.dtype, jnp.floating))
    if "attention_windows" in config:
        assert memory.num_bytes == 3 * (9 + 4) * per_token // 2
    elif family == "decoder":
        assert memory.num_bytes == 3 * 9 * per_token
    elif family == "encoder_decoder":
        assert memory.num_bytes == 2 * 3 * 9 * per_token  # as much for the keys and values of the source


def test_published_sizes_are_the_textbooks() -> None:
    memory = published_cache("gpt2-xl", 16, 1024)
    assert memory is not None
    # Two bytes for each of the keys and values of 48 layers of 1,600 features.
    assert memory.bytes_per_token == 2 * 48 * 1600 * 2
    assert memory.num_bytes == 16 * 1024 * memory.bytes_per_token
    with pytest.raises(UserError, match=r"--cache_length=1025 is more than the 1024 positions of this model"):
        published_cache("gpt2-xl", 1, 1025)


def test_a_model_that_does_not_decode_has_none() -> None:
    config = model_config({"family": "encoder", "layers": 1, **SIZES})
    model = build(config, INTERFACE, Precision())
    assert cache_memory(model, FAMILIES["encoder"], 1, 4, {}) is None
