"""The types in which heads store and return logits, read from the traced programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.test_losses import products_of
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.linear import logits_product
from transformer.models import registry
from transformer.models.model import Model
from transformer.models.task_interface import InputSpec, TaskInterface

VOCABULARY, ROWS, LENGTH = 11, 2, 4
SIZES = {"width": 8, "heads": 2, "feed_forward": 8, "max_length": 8}
TOKENS = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
LENGTHS = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
OF_ONE_TEXT = {"tokens": TOKENS, "lengths": LENGTHS}
OF_TWO_TEXTS = {"source": TOKENS, "target": TOKENS}
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tied": ({"family": "decoder", **SIZES}, OF_ONE_TEXT),
    "untied": ({"family": "decoder", "tie_embeddings": False, **SIZES}, OF_ONE_TEXT),
    "encoder": ({"family": "encoder", **SIZES}, OF_ONE_TEXT),
    "encoder_decoder": ({"family": "encoder_decoder", **SIZES}, OF_TWO_TEXTS),
    "xlnet": ({"family": "xlnet", "head": "classes", **SIZES}, OF_ONE_TEXT),
    "convs2s": ({"family": "convs2s"}, OF_TWO_TEXTS),
    "bytenet": ({"family": "bytenet"}, OF_TWO_TEXTS),
    "recurrent_decoder": ({"family": "recurrent_decoder"}, OF_ONE_TEXT),
    "recurrent_encoder_decoder": ({"family": "recurrent_encoder_decoder"}, OF_TWO_TEXTS),
    "recurrent_classifier": ({"family": "recurrent_classifier"}, OF_ONE_TEXT),
}


def model_of(config: dict[str, Any], precision: Precision) -> Model:
    inputs = {"tokens": InputSpec((ROWS, LENGTH))}
    names = ("tokens", "joint", "source", "target", "classes")
    interface = TaskInterface(inputs, dict.fromkeys(names, VOCABULARY), pad_id=0, bos_id=1, eos_id=2)
    return registry.build(registry.model_config(config), interface, precision)


@pytest.mark.parametrize(("stored", "expected"), [("float32", jnp.float32), ("bfloat16", jnp.bfloat16)])
@pytest.mark.parametrize("head", HEADS)
def test_a_bfloat16_model_stores_logits_in_the_chosen_type_and_returns_float32(
    head: str, stored: str, expected: type
) -> None:
    config, inputs = HEADS[head]
    model = model_of(config, Precision(compute="bfloat16", logits=stored))
    variables = model.shapes()
    run = lambda variables, inputs: model.apply(variables, inputs, train=False)[0]  # noqa: E731
    program, logits = jax.make_jaxpr(run, return_shape=True)(variables, inputs)
    assert logits.dtype == np.float32
    assert logits.shape[-1] == VOCABULARY
    of_head = [each for each in products_of(program.jaxpr) if each.outvars[0].aval.shape[-1] == VOCABULARY]
    assert {each.outvars[0].aval.dtype for each in of_head} == {jnp.dtype(expected)}


def test_the_logits_of_next_sentences_are_float32_too() -> None:
    model = model_of({"family": "encoder", "head": "pretraining", **SIZES}, Precision(compute="bfloat16"))
    variables = model.shapes()
    inputs = {**OF_ONE_TEXT, "types": TOKENS}
    run = lambda variables, inputs: model.apply(variables, inputs, train=False)[1].extras["next_sentence"]  # noqa: E731
    assert jax.eval_shape(run, variables, inputs).dtype == np.float32


def test_logits_are_never_narrower_than_the_computation() -> None:
    assert Precision(compute="float64").logits_dtype == jnp.float64
    assert Precision().logits_dtype == jnp.float32
    with jax.enable_x64(True):
        wide = logits_product(jnp.ones((1, 2)), jnp.full((2, 1), 1 + 2.0**-40))
    assert float(wide[0, 0]) == 2 + 2.0**-39
    with pytest.raises(UserError, match=r"precision\.logits='bfloat16' must be float32 or .*compute='float32'"):
        Precision(logits="bfloat16")
