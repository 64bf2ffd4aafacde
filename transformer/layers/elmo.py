"""ELMo: features from the layers of a bidirectional language model (Peters et al. 2018)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import Config, NumLayersOrZero, PositiveInt
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.recurrent import Direction, RecurrentConfig, RecurrentStack
from transformer.layers.sequence_lengths import real_positions


@dataclasses.dataclass(frozen=True)
class ElmoConfig(Config, path="config.model.elmo"):
    """The bidirectional language model whose layers ELMo reads.

    Attributes:
        layers: LSTM layers of each direction; 0 means no ELMo features.
        width: Features of a token in each direction.

    Raises:
        UserError: If `layers` is negative or `width` below 1.
    """

    layers: NumLayersOrZero = 0
    width: PositiveInt = 256

    def direction_config(self, direction: Direction) -> RecurrentConfig:
        """The configuration of one direction's layers."""
        return RecurrentConfig(width=self.width, layers=self.layers, direction=direction)

    @property
    def output_width(self) -> int:
        """The features of a token from both directions; 0 without layers."""
        return 2 * self.width if self.layers else 0


class Elmo(Module):
    """ELMo features gamma sum_j s_j h_kj of token k, s = softmax(w), j = 0 ... L (section 3.2, equation 1).

    h_kj is layer j's output in both directions, concatenated; h_k0 is the word vector twice. w (`weights`, initially
    zero) and gamma (`scale`, initially one) are trained; the parameters of `pretrained` are those of
    transformer.models.bidirectional_language_model, which the paper freezes.

    Args:
        config: The language model's size.
        vocabulary: Number of tokens.
        builder: Makes the parameters.
    """

    def __init__(self, config: ElmoConfig, vocabulary: int, *, builder: ParameterBuilder):
        self.pretrained = _BidirectionalLSTM(config, vocabulary, builder=builder)
        self.weights = builder.parameter(jax.nn.initializers.zeros, (config.layers + 1,), ("features",))
        self.scale = builder.parameter(jax.nn.initializers.ones, (), ())

    def __call__(
        self, tokens_BxT: Int[Array, "B T"], lengths_B: Int[Array, " B"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "B T F"]:
        """Compute the features of every token in `dtype`, zero at padding."""
        h_LxBxTxF = self.pretrained(tokens_BxT, lengths_B, dtype)
        s_L = jax.nn.softmax(self.weights[...]).astype(dtype)
        return self.scale[...].astype(dtype) * jnp.einsum("l,lbtf->btf", s_L, h_LxBxTxF)


class _BidirectionalLSTM(Module):
    """The word vectors and the LSTMs of both directions."""

    def __init__(self, config: ElmoConfig, vocabulary: int, *, builder: ParameterBuilder):
        self.embedding = Embedding(vocabulary, config.width, builder=builder)
        self.forward = RecurrentStack(config.direction_config(Direction.FORWARD), config.width, builder=builder)
        self.backward = RecurrentStack(config.direction_config(Direction.BACKWARD), config.width, builder=builder)

    def __call__(
        self, tokens_BxT: Int[Array, "B T"], lengths_B: Int[Array, " B"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "L B T F"]:
        """h_k0 ... h_kL of every token, zero at padding."""
        real_BxTx1 = real_positions(lengths_B, tokens_BxT.shape[1])[..., None]
        forward = backward = jnp.where(real_BxTx1, self.embedding(tokens_BxT, dtype), 0)
        layer_outputs = [jnp.concatenate([forward, backward], axis=-1)]
        for forward_layer, backward_layer in zip(self.forward.layers, self.backward.layers, strict=True):
            (forward, _), (backward, _) = forward_layer(forward, lengths_B), backward_layer(backward, lengths_B)
            layer_outputs.append(jnp.concatenate([forward, backward], axis=-1))
        return jnp.stack(layer_outputs)
