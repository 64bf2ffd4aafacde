"""The bidirectional language model: both directions against NumPy, padding, its forward half, its FLOPs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.models.random_models import random_variables
from tests.oracles import recurrent as oracle
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models import recurrent_decoder
from transformer.models.bidirectional_language_model import FAMILY, BidirectionalLanguageModelConfig
from transformer.models.model import Model, Variables
from transformer.models.task_interface import LANGUAGE_MODELING, InputSpec, TaskInterface

VOCABULARY = 7
TOKENS = np.int32([[1, 2, 3, 4, 5], [6, 0, 2, 0, 0], [3, 0, 0, 0, 0]])
LENGTHS = np.int32([5, 3, 1])
INPUTS = {"tokens": TOKENS, "lengths": LENGTHS}
INTERFACE = TaskInterface({"tokens": InputSpec((3, 5))}, {"tokens": VOCABULARY}, output=LANGUAGE_MODELING.output)
CONFIG = BidirectionalLanguageModelConfig(width=3, layers=2)


def model_of(config: BidirectionalLanguageModelConfig) -> Model:
    return FAMILY.build(config, INTERFACE, Precision("float64", "float64"))


def test_the_backward_loss_is_that_of_every_token_from_those_behind_it() -> None:
    with jax.enable_x64(True):
        model = model_of(CONFIG)
        variables = random_variables(model)
        losses = jax.jit(lambda variables: model.apply(variables, INPUTS, method="hidden", train=False)[1].losses)
        backward = jax.device_get(losses(variables)["backward"])
    weights, nats = variables.params, 0.0
    for row, length in enumerate(LENGTHS):
        vectors = weights["embedding"]["table"][TOKENS[row, :length]]
        for place in range(length - 1):
            behind = vectors[place + 1 :]
            outputs, _ = oracle.stack(
                oracle.Stack("lstm", "backward", 2), weights["backward"], behind[None], np.array([len(behind)])
            )
            logits = outputs[0, 0] @ weights["output"]["kernel"] + weights["output"]["bias"]
            nats -= logits[TOKENS[row, place]] - np.log(np.exp(logits).sum())
    assert backward.total == pytest.approx(nats, rel=1e-12)
    assert backward.denominator == 4 + 2 + 0
    assert backward.weight == 1


def test_the_forward_half_is_the_recurrent_decoder() -> None:
    with jax.enable_x64(True):
        model = model_of(CONFIG)
        variables = random_variables(model)
        alone = recurrent_decoder.FAMILY.build(CONFIG.forward_config, INTERFACE, Precision("float64", "float64"))
        params = {name: value for name, value in variables.params.items() if name != "backward"}
        expected, _ = programs.apply(alone, Variables(params, {}), INPUTS, train=False)
        found, _ = programs.apply(model, variables, INPUTS, train=False)
        np.testing.assert_array_equal(found, expected)


def test_padding_has_no_effect_on_the_loss_or_its_gradient() -> None:
    """A number that is no token's has a vector of NaN, of which nothing may come."""
    with jax.enable_x64(True):
        model = model_of(CONFIG)
        variables = random_variables(model)

        @jax.jit
        def loss(params: Any, tokens: Any) -> Any:
            inputs = {"tokens": tokens, "lengths": LENGTHS}
            _, aux = model.apply(Variables(params, {}), inputs, method="hidden", train=True)
            return jnp.asarray(aux.losses["backward"].total)

        padding = np.arange(5) >= LENGTHS[:, None]
        zeros, beyond = (
            jax.device_get(jax.value_and_grad(loss)(variables.params, np.where(padding, np.int32(number), TOKENS)))
            for number in (0, VOCABULARY + 5)
        )
        jax.tree.map(np.testing.assert_array_equal, beyond, zeros)
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(np.isfinite(leaf), True), beyond)


def test_flops_are_those_of_two_language_models() -> None:
    batch = {"tokens": np.zeros((2, 10), np.int32)}
    each = 2 * (2 * 4 * 3 * (3 + 3)) + 2 * 3 * VOCABULARY
    # Backward no token is scored from the first.
    model = FAMILY.build(CONFIG, INTERFACE, Precision())
    assert forward_flops(model, batch) == 2 * (10 * 2 * each - 2 * 3 * VOCABULARY)


@pytest.mark.parametrize("name", ["width", "layers"])
def test_sizes_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=0 must be at least 1"):
        BidirectionalLanguageModelConfig(**{name: 0})
