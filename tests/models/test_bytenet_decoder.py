"""ByteNet's decoder as a language model, against NumPy float64: whole, behind prompts, padding, FLOPs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_convolutional import random_variables
from tests.oracles import convolutional as oracle
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models.bytenet_decoder import ByteNetDecoderConfig
from transformer.models.registry import build
from transformer.models.task_interface import LANGUAGE_MODELING, InputSpec, TaskInterface

TOKENS = np.array([[3, 4, 5, 6, 2, 7, 8, 1], [7, 8, 2, 5, 5, 0, 0, 0]], np.int32)
LENGTHS = np.array([8, 5], np.int32)
BATCH = {"tokens": TOKENS, "lengths": LENGTHS}
CONFIG = ByteNetDecoderConfig(width=3, sets=2, max_dilation=2, dropout=0.25)
INTERFACE = TaskInterface({"tokens": InputSpec((2, 8))}, {"tokens": 11}, output=LANGUAGE_MODELING.output)


def test_logits_and_steps_behind_prompts_are_the_equations() -> None:
    prompts = {"tokens": TOKENS[:, :4], "lengths": np.array([4, 2], np.int32)}
    with jax.enable_x64(True):
        model = build(CONFIG, INTERFACE, Precision("float64", "float64"))
        variables, key = random_variables(model), jax.random.key(0)

        @jax.jit
        def every(variables: Any) -> Any:
            cache, tokens_R = model.init_cache(variables, prompts, num_beams=2, length=4)
            stepped = []
            for place in range(3):
                logits, cache, _ = model.step(variables, cache, tokens_R)
                stepped.append(logits)
                # The rows' own texts go on behind their prompts.
                tokens_R = jnp.repeat(jnp.array([TOKENS[0, 4 + place], TOKENS[1, 2 + place]]), 2)
            dropped, _ = model.apply(variables, BATCH, train=True, key=key)
            whole, aux = model.apply(variables, BATCH, train=False, key=key)
            return whole, dropped, jnp.stack(stepped), aux.maps

        whole, dropped, stepped, maps = every(variables)
    assert not maps
    assert not model.sites
    assert np.abs(np.asarray(dropped - whole)).max() > 0.01
    for row, (length, prompt) in enumerate(zip(LENGTHS, prompts["lengths"], strict=True)):
        # An answer at a place is that of the text up to it: nothing is read ahead.
        known = oracle.bytenet_decoder(variables.params, TOKENS[row, :length])
        np.testing.assert_allclose(whole[row, :length], known, rtol=1e-9, atol=1e-9)
        cut = oracle.bytenet_decoder(variables.params, TOKENS[row, :3])
        np.testing.assert_allclose(whole[row, :3], cut, rtol=1e-9, atol=1e-9)
        for beam in range(2):
            behind = stepped[:, 2 * row + beam]
            np.testing.assert_allclose(behind, known[prompt - 1 : prompt + 2], rtol=1e-9, atol=1e-9)


def test_its_flops_are_those_of_its_formula() -> None:
    batch = {name: jax.ShapeDtypeStruct(values.shape, jnp.int32) for name, values in BATCH.items()}
    assert forward_flops(build(CONFIG, INTERFACE, Precision()), batch) == 11_328


@pytest.mark.parametrize(
    ("given", "told"),
    [({"sets": 0}, "config.model.sets=0"), ({"width": 0}, "config.model.width=0"), ({"max_dilation": 3}, "power")],
)
def test_sizes_that_cannot_be_are_refused(given: dict[str, int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        ByteNetDecoderConfig(**given)
