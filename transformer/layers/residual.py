"""Residual connections: the placement of norms around sub-layers, dropout and stochastic depth."""

import enum
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Key

from transformer.attention.importance import OutputGates, gate_branch
from transformer.attention.inverted_dropout import dropout
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.norm import LayerNorm, RmsNorm


class NormPlacement(enum.Enum):
    """The placement of the norm around a sub-layer F.

    Attributes:
        POST: x = norm(x + F(x)) (Vaswani et al. 2017, section 3.1).
        PRE: x = x + F(norm(x)), and a norm after the last block (Xiong et al. 2020, section 3.1).
        SANDWICH: x = x + norm(F(norm(x))), and a norm after the last block (Ding et al. 2021, section 2.4).
        OUTPUT: x = x + norm(F(x)), and a norm after the last block (Liu et al. 2022, section 3.1; OLMo 2).
        DEEPNORM: x = norm(alpha x + F(x)), alpha from the depth (Wang et al. 2022, figure 2).
        PARALLEL: x = x + attention(norm(x)) + feed_forward(norm(x)), one norm for all sub-layers of a block, and a norm
            after the last block (Wang and Komatsuzaki 2021; Chowdhery et al. 2022, section 2).
        PARALLEL_NORMS: The same with a norm for each sub-layer (Black et al. 2022, section 2.1.2).
        PRE_NORMED_INPUT: As PRE, but the first block begins with x = norm(x) and reads that: its first norm stands
            behind the embeddings, on the residual stream itself (Warner et al. 2024, section 2.1.1).
    """

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"
    OUTPUT = "output"
    DEEPNORM = "deepnorm"
    PARALLEL = "parallel"
    PARALLEL_NORMS = "parallel_norms"
    PRE_NORMED_INPUT = "pre_normed_input"

    @property
    def final_norm(self) -> bool:
        """Whether the residual stream needs a norm after the last block."""
        return self not in (NormPlacement.POST, NormPlacement.DEEPNORM)


class DropRates(NamedTuple):
    """Dropout rates in training: of features (`dropout`), and of whole sub-layers per example (`stochastic_depth`)."""

    dropout: float
    stochastic_depth: Float[Array, ""] | float


class BlockInput(NamedTuple):
    """What parallel sub-layers share.

    Attributes:
        stream: The residual stream before the block.
        read: What the first sub-layer has read of it.
    """

    stream: Float[Array, "B *N E"]
    read: Float[Array, "B *N E"]


class SublayerKeys(NamedTuple):
    """The random keys of one sub-layer; None in evaluation.

    Attributes:
        inside: For what is random in the sub-layer itself, such as dropout of attention weights.
        output: For dropout of its output.
    """

    inside: Key[Array, ""] | None
    output: Key[Array, ""] | None


class SublayerGates(NamedTuple):
    """The gates of one sub-layer; None for none.

    Attributes:
        inside: Of its heads, and of its output.
        output: Of what is added to the residual stream.
    """

    inside: OutputGates | None = None
    output: OutputGates | None = None


def split_sublayer_keys(key: Key[Array, ""] | None, count: int) -> tuple[SublayerKeys, ...]:
    """Split the key of a block into those of its sub-layers."""
    if key is None:
        return (SublayerKeys(None, None),) * count
    return tuple(SublayerKeys(*jax.random.split(sublayer_key)) for sublayer_key in jax.random.split(key, count))


class LayerScale(Module):
    """A trained factor for each feature of a sub-layer's output (Touvron et al. 2021, Going deeper, equation 4).

    Args:
        width: Features.
        initial: The value at which every factor begins.
        builder: Makes the factors.
    """

    def __init__(self, width: int, initial: float, *, builder: ParameterBuilder):
        self.scale = builder.parameter(jax.nn.initializers.constant(initial), (width,), ("features",))

    def __call__(self, y: Float[Array, "B *N E"]) -> Float[Array, "B *N E"]:
        """Scale each feature, in the type of y."""
        return y * jax.lax.broadcast_to_rank(self.scale[...].astype(y.dtype), y.ndim)


class Residual(Module):
    """The residual connection and norms around one sub-layer F: x = write(x, F(read(x))).

    The stream that F changes, what F reads and what is added to the stream are activations of the name's scope
    (transformer.models.activations).

    Args:
        name: The sub-layer's name among the activations, such as "self".
        placement: The placement of the norm.
        make_norm: Makes a norm; None for a parallel sub-layer after the first, which reads the first one's norm.
        alpha: DeepNorm's factor of x.
        multiplier: Factor on what is added to x (Yang et al. 2023, section 3; Granite, MiniCPM).
        layer_scale: Trained factors on what is added to x; None for none.
    """

    norm: LayerNorm | RmsNorm
    output_norm: LayerNorm | RmsNorm

    def __init__(
        self,
        name: str,
        placement: NormPlacement,
        make_norm: Callable[[], LayerNorm | RmsNorm] | None,
        alpha: float = 1.0,
        multiplier: float = 1.0,
        layer_scale: LayerScale | None = None,
    ):
        self.name, self.layer_scale = name, layer_scale
        self.placement, self.alpha, self.multiplier = placement, alpha, multiplier
        if make_norm is not None:
            self.norm = make_norm()
            if placement is NormPlacement.SANDWICH:
                self.output_norm = make_norm()

    def read(self, x: Float[Array, "B *N E"], block_input: BlockInput | None = None) -> Float[Array, "B *N E"]:
        """Return what the sub-layer reads of the residual stream.

        Args:
            x: The residual stream.
            block_input: The block's input and what its first sub-layer has read of it; None for the first one.
        """
        with jax.named_scope(self.name):
            match self.placement:
                case NormPlacement.POST | NormPlacement.DEEPNORM | NormPlacement.OUTPUT:
                    read = x
                case NormPlacement.PRE | NormPlacement.SANDWICH | NormPlacement.PRE_NORMED_INPUT:
                    read = self.norm(x)
                case NormPlacement.PARALLEL:
                    read = self.norm(x) if block_input is None else block_input.read
                case NormPlacement.PARALLEL_NORMS:
                    read = self.norm(x if block_input is None else block_input.stream)
            return checkpoint_name(read, "input")

    def stream(
        self, x: Float[Array, "B *N E"], read: Float[Array, "B *N E"], is_first_block: Bool[Array, ""] | bool
    ) -> Float[Array, "B *N E"]:
        """Return the residual stream to which a block's first sub-layer adds: x, or the normed input of the model.

        Args:
            x: The block's input.
            read: What the first sub-layer has read of it.
            is_first_block: Whether the block is the first of its stack.
        """
        if self.placement is not NormPlacement.PRE_NORMED_INPUT:
            return x
        return jnp.where(is_first_block, read, x)

    def place_gates(self, gates: OutputGates) -> SublayerGates:
        """Place the gates of F's heads in F; that of the branch too, unless a norm follows, which undoes any factor."""
        if self.placement not in (NormPlacement.OUTPUT, NormPlacement.SANDWICH):
            return SublayerGates(gates, None)
        return SublayerGates(gates._replace(branch=None), gates._replace(heads=None))

    def write(
        self,
        x: Float[Array, "B *N E"],
        y: Float[Array, "B *N E"],
        drop_rates: DropRates,
        key: Key[Array, ""] | None,
        gates: OutputGates | None = None,
    ) -> Float[Array, "B *N E"]:
        """Return the residual stream after the sub-layer.

        Args:
            x: The residual stream before it.
            y: The sub-layer's output.
            drop_rates: Dropout rates of the output.
            key: Random key for them; None means evaluation.
            gates: The gate of what is added to x, where it is not in the sub-layer already; None for none.
        """
        with jax.named_scope(self.name):
            match self.placement:
                case NormPlacement.OUTPUT:
                    y = self.norm(y)
                case NormPlacement.SANDWICH:
                    with jax.named_scope("output_norm"):
                        y = self.output_norm(y)
                case _:
                    pass
            y = gate_branch(y, gates)
            if self.multiplier != 1:
                y = y * jnp.asarray(self.multiplier, y.dtype)
            if self.layer_scale is not None:
                y = self.layer_scale(y)
            y = checkpoint_name(dropout_and_stochastic_depth(y, drop_rates, key), "output")
            if self.placement in (NormPlacement.POST, NormPlacement.DEEPNORM):
                x = self.norm(self.alpha * x + y)
            else:
                x = x + y
            return checkpoint_name(x, "residual")


def dropout_and_stochastic_depth(
    y: Float[Array, "B *N E"], drop_rates: DropRates, key: Key[Array, ""] | None
) -> Float[Array, "B *N E"]:
    """Apply dropout, then stochastic depth, which drops an example's whole sub-layer.

    What remains is divided by 1 - rate, so that nothing changes in evaluation (Huang et al. 2016, section 3, multiply
    by the survival probability at test time instead).

    Args:
        y: The output of a sub-layer.
        drop_rates: The rates.
        key: Random key; None returns y unchanged.

    Returns:
        The output, with parts set to zero and the rest scaled.
    """
    if key is None:
        return y
    features, depth = jax.random.split(key)
    y = dropout(y, drop_rates.dropout, features)
    if isinstance(drop_rates.stochastic_depth, float) and drop_rates.stochastic_depth == 0:
        return y
    survives_B = jax.random.uniform(depth, y.shape[:1]) >= drop_rates.stochastic_depth
    survives = survives_B.reshape(-1, *(1 for _ in y.shape[1:]))
    return jnp.where(survives, y / (1 - jnp.asarray(drop_rates.stochastic_depth, y.dtype)), 0).astype(y.dtype)
