"""A bidirectional language model, whose layers are features for other tasks (ELMo; Peters et al. 2018, section 3.1)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.inverted_dropout import dropout
from transformer.config import Config, NumLayers, PositiveInt, Rate
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.recurrent import Direction, RecurrentConfig, RecurrentStack
from transformer.layers.sequence_lengths import real_positions
from transformer.models.model import Aux, AuxiliaryLoss, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_decoder import RecurrentDecoder, RecurrentDecoderConfig
from transformer.models.task_interface import LANGUAGE_MODELING, TaskInterface


@dataclasses.dataclass(frozen=True)
class BidirectionalLanguageModelConfig(Config, path="config.model"):
    """A bidirectional LSTM language model; the word vectors have `width` features.

    Attributes:
        width: Features of a state, and of a word vector.
        layers: LSTM layers of each direction.
        dropout: Dropout rate on the inputs of each layer and of the output layer.
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.

    Raises:
        UserError: If a size is below 1, or `dropout` is out of range.
    """

    width: PositiveInt = 256
    layers: NumLayers = 2
    dropout: Rate = 0.0
    vocab_size: int | None = None

    @property
    def forward_config(self) -> RecurrentDecoderConfig:
        """The config of the forward language model."""
        return RecurrentDecoderConfig(
            width=self.width,
            embedding_width=self.width,
            layers=self.layers,
            dropout=self.dropout,
            vocab_size=self.vocab_size,
        )

    @property
    def backward_config(self) -> RecurrentConfig:
        """The config of the backward layers."""
        return RecurrentConfig(width=self.width, layers=self.layers, direction=Direction.BACKWARD, dropout=self.dropout)


class BidirectionalLanguageModel(RecurrentDecoder):
    """Minimizes sum_k -log p(t_k | t_1 ... t_{k-1}) - log p(t_k | t_{k+1} ... t_T), each a mean over its tokens.

    Both directions share the word vectors and the output layer; each has its own LSTMs. The forward direction is the
    task's language model; the backward direction adds its loss as `auxiliary/backward`. Inputs and outputs are those of
    `recurrent_decoder`.
    """

    def __init__(self, config: BidirectionalLanguageModelConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(config.forward_config, interface, builder)
        self.backward = RecurrentStack(config.backward_config, config.width, builder=builder)

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the forward hidden states; the backward direction's loss is in `Aux.losses`.

        Raises:
            UserError: If rows are packed: a state would carry over from one text to the next.
        """
        keys = split_key(forward_pass.training_key, 4)
        hidden_BxTxE, aux = super().hidden(state, inputs, dataclasses.replace(forward_pass, key=keys[0]))
        return hidden_BxTxE, aux._replace(losses={"backward": self._backward_loss(inputs, keys[1:])})

    def _backward_loss(self, inputs: Inputs, keys: Any) -> AuxiliaryLoss:
        """Return the summed cross-entropy, in nats, of predicting every token from those after it."""
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, count = tokens_BxT.shape
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else jnp.full(batch, count, jnp.int32)
        x_BxTxE = dropout(self._embed(tokens_BxT), self.config.dropout, keys[0])
        h_BxTxE, _ = self.backward(x_BxTxE, lengths_B, key=keys[1])
        logits_BxSxV = self.logits(dropout(h_BxTxE[:, 1:], self.config.dropout, keys[2]))
        before_BxS = tokens_BxT[:, :-1]
        label_BxS = jnp.take_along_axis(logits_BxSxV, before_BxS[..., None], axis=-1)[..., 0]
        nats_BxS = jax.nn.logsumexp(logits_BxSxV, axis=-1) - label_BxS
        real_BxS = real_positions(lengths_B, count)[:, 1:]
        return AuxiliaryLoss(jnp.sum(jnp.where(real_BxS, nats_BxS, 0)), jnp.sum(real_BxS).astype(nats_BxS.dtype), 1.0)


FAMILY = ModelFamily(BidirectionalLanguageModelConfig, BidirectionalLanguageModel, frozenset({LANGUAGE_MODELING}))
