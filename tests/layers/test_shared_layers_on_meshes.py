"""The layers of recurrent and convolutional families compute on a mesh what they do on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.masks import Mask
from transformer.layers.attention_cell import AttentionCell, AttentionCellConfig, KeyValueProjection, scan_decoder_steps
from transformer.layers.batch_norm import BatchNorm
from transformer.layers.convolution import Convolution1D, ConvolutionActivation, ConvolutionWindow, Padding
from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder
from transformer.layers.recurrent import CellKind, Direction, RecurrentConfig, RecurrentStack
from transformer.training.partitioning import ShardingConfig, make_placement, trace_with_placement

B, T, INPUTS, WIDTH = 8, 6, 3, 8
LENGTHS = np.int32([6, 4, 1, 0, 6, 5, 2, 3])


class Everything(Module):
    """A convolution, batch norm over what is real, an encoder in both directions, a decoder that reads it."""

    def __init__(self, builder: ParameterBuilder):
        window = ConvolutionWindow(3, padding=Padding.CAUSAL)
        self.convolution = Convolution1D(
            INPUTS, ("embed", WIDTH), window, activation=ConvolutionActivation.GLU, builder=builder
        )
        self.norm = BatchNorm(WIDTH, builder=builder)
        both = RecurrentConfig(CellKind.LSTM, WIDTH, direction=Direction.BIDIRECTIONAL)
        self.encoder = RecurrentStack(both, WIDTH, builder=builder)
        self.decoder = RecurrentStack(RecurrentConfig(CellKind.GRU_RESET_AFTER, WIDTH), 3 * WIDTH, builder=builder)
        config = AttentionCellConfig(key_value_projection=KeyValueProjection.SPLIT, heads=1, head_dim=2 * WIDTH)
        self.attention = AttentionCell(config, WIDTH, 2 * WIDTH, builder=builder)

    def __call__(self, x: Any) -> Any:
        lengths = jnp.asarray(LENGTHS)
        x = self.convolution(x, lengths)
        x, statistics = self.norm(x, self.norm.initial_state(), train=True, mask=jnp.arange(T) < lengths[:, None])
        encoded, _ = self.encoder(x, lengths)
        memory = self.attention.prepare(encoded, lengths)

        def step(carry: Any, x: Any, key: None) -> Any:
            context, alignment = self.attention.step(carry[0].hidden, memory)
            y, carry = self.decoder.step(jnp.concatenate([x, context], axis=-1), carry)
            return carry, y, alignment

        mask = Mask(query_lengths=lengths, key_lengths=lengths)
        _, y, _ = scan_decoder_steps(step, self.decoder.initial(B, x.dtype), x, mask=mask)
        return y, statistics


FUNCTIONAL = FunctionalModule(Everything)


def gradients(params: Any, x: Any) -> Any:
    def of(params: Any) -> Any:
        y, statistics = FUNCTIONAL.bind(params)(x)
        return jnp.sum(jnp.sin(y)), (y, statistics)

    return jax.grad(of, has_aux=True)(params)


@pytest.fixture(scope="module")
def alone() -> Any:
    normal = np.random.default_rng(0).normal
    params = jax.tree.map(lambda leaf: normal(size=leaf.shape, scale=0.4).astype(leaf.dtype), FUNCTIONAL.shapes())
    x = normal(size=(B, T, INPUTS)).astype(np.float32)
    return params, x, jax.device_get(jax.jit(gradients)(params, x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"),
        pytest.param(ShardingConfig(data=2, fsdp=2, sequence=2, rules="sp"), marks=pytest.mark.slow),
    ],
    ids=["fsdp+tp", "sp"],
)
def test_a_mesh_computes_what_one_device_does(config: ShardingConfig, alone: Any) -> None:
    params, x, expected = alone
    placement = make_placement(config)

    def lies(names: tuple[str, ...], leaf: Any) -> NamedSharding:
        # Sizes that a mesh does not divide, such as one head, may be named by axes that then lie whole alone.
        assert "groups" in names or placement.partition_spec(names) == placement.even_partition_spec(names, leaf.shape)
        return NamedSharding(placement.mesh, placement.even_partition_spec(names, leaf.shape))

    shardings = jax.tree.map(lies, FUNCTIONAL.axes(), params, is_leaf=lambda leaf: isinstance(leaf, tuple))
    assert any(sharding.spec != PartitionSpec() for sharding in jax.tree.leaves(shardings))
    rows = NamedSharding(placement.mesh, placement.partition_spec(("batch", "length", None)))
    run = jax.jit(trace_with_placement(placement, gradients), in_shardings=(shardings, rows), out_shardings=None)
    found = jax.device_get(run(jax.device_put(params, shardings), jax.device_put(x, rows)))
    jax.tree.map(
        lambda ours, of_one: np.testing.assert_allclose(ours, of_one, rtol=0, atol=2e-5 * max(1, np.abs(of_one).max())),
        found,
        expected,
    )
