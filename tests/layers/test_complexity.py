"""What lectures compare of recurrence, convolution and self-attention, counted in the programs of our own layers.

FLOPs of one layer over n = 1,000 positions of d = 1,000 features, a multiplication and an addition counting as
two; the steps that wait for one another; and how many layers, or steps, the first input needs to reach the last output
(Vaswani et al. 2017, table 1).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention import AttentionSpec, Backend, attend
from transformer.benchmarks.layer_types import LAYER_TYPES
from transformer.costs.flops import count_matmul_flops
from transformer.layers.convolution import Convolution1D, ConvolutionWindow, Padding
from transformer.layers.functional_module import FunctionalModule

Layer = Callable[[int, int], tuple[Callable[..., Any], tuple[Any, ...]]]


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def of_kind(name: str) -> Layer:
    def made(n: int, d: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        functional, run = LAYER_TYPES[name].make_layer(d)
        return run, (functional.shapes(), shape(1, n, d))

    return made


def dilated(n: int, d: int, dilation: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    window = ConvolutionWindow(3, dilation=dilation, padding=Padding.CAUSAL)
    functional = FunctionalModule(lambda builder: Convolution1D(d, ("embed", d), window, builder=builder))
    return lambda params, x: functional.bind(params)(x), (functional.shapes(), shape(1, n, d))


def core(n: int, d: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    spec = AttentionSpec(backend=Backend.EINSUM)
    return lambda q, k, v: attend(q, k, v, spec=spec)[0], (shape(1, n, 1, d),) * 3


def flops(layer: Layer, n: int, d: int) -> int:
    run, given = layer(n, d)
    return count_matmul_flops(jax.make_jaxpr(run)(*given).jaxpr)


COUNTS = {"vanilla": 4e9, "gru": 12e9, "lstm": 16e9, "convolution": 6e9, "attention": 12e9}


@pytest.mark.parametrize("kind", LAYER_TYPES)
def test_a_layer_of_a_thousand_by_a_thousand(kind: str) -> None:
    assert flops(of_kind(kind), 1000, 1000) == COUNTS[kind] == LAYER_TYPES[kind].count_flops(1000, 1000)


def test_attention_without_projections() -> None:
    assert flops(core, 1000, 1000) == 4e9


def slope(layer: Layer) -> float:
    counts = [flops(layer, n, 64) for n in (4096, 16384)]
    return math.log(counts[1] / counts[0]) / math.log(4)


def test_attention_grows_with_the_square_of_the_length_and_recurrence_with_the_length() -> None:
    assert slope(core) == pytest.approx(2)
    assert 1.9 < slope(of_kind("attention")) < 2.1
    assert slope(of_kind("lstm")) == pytest.approx(1)
    assert slope(of_kind("convolution")) == pytest.approx(1)


def jaxprs(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in jaxprs(item)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []


def waits(jaxpr: Any) -> int:
    """The longest loop: how many steps cannot begin before the one before them has ended."""
    lengths = [1]
    for equation in jaxpr.eqns:
        inner = [waits(sub) for value in equation.params.values() for sub in jaxprs(value)]
        loop = equation.params["length"] if equation.primitive.name == "scan" else 1
        lengths.append(loop * max(inner, default=1))
    return max(lengths)


@pytest.mark.parametrize("kind", LAYER_TYPES)
def test_only_recurrence_waits_for_every_position(kind: str) -> None:
    run, given = of_kind(kind)(50, 8)
    assert waits(jax.make_jaxpr(run)(*given).jaxpr) == LAYER_TYPES[kind].count_sequential_steps(50)
    assert LAYER_TYPES[kind].count_sequential_steps(50) == (1 if kind in ("attention", "convolution") else 50)


def depth(layers: Callable[[int], Layer], n: int) -> int:
    """The least number of layers by which the last output depends on the first input."""
    rng, d = np.random.default_rng(0), 4
    x, reads = jnp.asarray(rng.normal(size=(1, n, d)), jnp.float32), []
    for number in range(n):
        run, (shapes, _) = layers(number)(n, d)
        params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), shapes)
        reads.append((run, params))

        def last(x: Any) -> Any:
            for run, params in reads:
                x = run(params, x)
            return jnp.sum(x[0, -1])

        if (np.asarray(jax.jit(jax.grad(last))(x))[0, 0] != 0).any():
            return number + 1
    raise AssertionError("no number of layers reaches it")


def test_how_many_layers_join_the_two_ends() -> None:
    n = 17
    assert depth(lambda _: of_kind("gru"), n) == 1  # but n steps, one after another
    assert (
        depth(lambda _: of_kind("convolution"), n)
        == LAYER_TYPES["convolution"].max_path_length(n)
        == math.ceil((n - 1) / 2)
    )
    assert depth(lambda _: of_kind("attention"), n) == LAYER_TYPES["attention"].max_path_length(n) == 1
    layers = depth(lambda number: lambda n, d: dilated(n, d, 3**number), n)
    assert layers == math.ceil(math.log(n, 3))
