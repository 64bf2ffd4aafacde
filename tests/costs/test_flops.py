"""Operations by formula against every product of matrices in the program that really runs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.costs.flops import encoder_decoder_forward, encoder_decoder_step
from transformer.layers.residual import NormPlacement
from transformer.models.contract import Interface, Precision
from transformer.models.encoder_decoder import EncoderDecoderConfig, build

VOCABULARY = 23


def products(jaxpr: Any) -> int:
    """2 x output size x contracted size of every dot_general; the body of a loop counts as often as it runs."""
    total = 0
    for equation in jaxpr.eqns:
        inner = sum(products(sub) for value in equation.params.values() for sub in jaxprs(value))
        total += inner * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        assert equation.primitive.name not in ("while", "conv_general_dilated"), "cannot be counted"
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    return total


def jaxprs(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in jaxprs(item)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []


def counted(config: EncoderDecoderConfig, rows: int, source: int, target: int) -> int:
    inputs = {
        "source": jax.ShapeDtypeStruct((rows, source), jnp.int32),
        "target": jax.ShapeDtypeStruct((rows, target), jnp.int32),
    }
    model = build(config, Interface(inputs, {"joint": VOCABULARY}, pad=0, begin=1, end=2), Precision())
    variables = jax.eval_shape(model.init, jax.random.key(0))
    forward = lambda variables, inputs: model.apply(variables, inputs, train=False)[0]  # noqa: E731
    return products(jax.make_jaxpr(forward)(variables, inputs).jaxpr)


CONFIGS = (
    EncoderDecoderConfig(2, 3, width=16, heads=2, feed_forward=24, longest=32, unroll=3),
    EncoderDecoderConfig(3, 1, width=12, heads=3, feed_forward=20, longest=32, norm_placement=NormPlacement.PRE),
    EncoderDecoderConfig(1, 1, width=8, heads=1, feed_forward=8, longest=32, attention_bias=True),
)


@pytest.mark.parametrize("config", CONFIGS, ids=["2+3", "3+1", "1+1"])
@pytest.mark.parametrize(("rows", "source", "target"), [(1, 5, 5), (3, 7, 4)])
def test_the_formula_is_the_programs_count(config: EncoderDecoderConfig, rows: int, source: int, target: int) -> None:
    formula = encoder_decoder_forward(config, rows=rows, source=source, target=target, vocabulary=VOCABULARY)
    assert formula == counted(config, rows, source, target)


def test_the_counter_sees_a_product_and_a_loop() -> None:
    def program(x: Any) -> Any:
        return jax.lax.scan(lambda y, _: (y @ y, None), x @ x, None, length=5)[0]

    count = products(jax.make_jaxpr(jax.jit(program))(jnp.ones((3, 3))).jaxpr)
    assert count == 6 * 2 * 3**3


def test_a_step_costs_three_forward_passes_padding_included() -> None:
    config = CONFIGS[0]
    batch = {"source": np.zeros((4, 6), np.int32), "target": np.zeros((4, 5), np.int32)}
    forward = encoder_decoder_forward(config, rows=4, source=6, target=5, vocabulary=VOCABULARY)
    assert encoder_decoder_step(config, batch, VOCABULARY) == 3 * forward


def test_transformer_base_is_about_six_operations_a_parameter_and_token() -> None:
    """Vaswani et al. 2017, table 3: 65 million parameters; short sentences leave the square terms small."""
    base, length, vocabulary = EncoderDecoderConfig(), 32, 37_000
    a_pair = encoder_decoder_forward(base, rows=1, source=length, target=length, vocabulary=vocabulary)
    # Encoder weights meet every source position, decoder weights and the shared table every target position.
    encoder, decoder = 6 * (4 * 512**2 + 2 * 512 * 2048), 6 * (8 * 512**2 + 2 * 512 * 2048)
    assert a_pair == pytest.approx(2 * length * (encoder + decoder + 512 * vocabulary), rel=0.02)
