"""The LSTM baseline without memory: a recurrent stack with an output at every step."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.neural_turing_machine.signature import BIT_SEQUENCE_PREDICTION
from transformer.config import Config, NumLayers, PositiveInt
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellKind, RecurrentConfig, RecurrentStack
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface


@dataclasses.dataclass(frozen=True)
class LSTMControllerConfig(Config, path="config.model"):
    """The configuration of a recurrent stack; the defaults are the paper's LSTM (table 3).

    Attributes:
        cell: The recurrent cell.
        width: Features of a layer.
        layers: Number of layers.

    Raises:
        UserError: If the width or the number of layers is below 1.
    """

    cell: CellKind = CellKind.LSTM
    width: PositiveInt = 256
    layers: NumLayers = 3

    @property
    def recurrent_config(self) -> RecurrentConfig:
        """The config of the recurrent layers."""
        return RecurrentConfig(self.cell, self.width, self.layers)


class LSTMController(StatelessModule):
    """Logits of every bit, W h_t + b, from the last layer's output h_t; all states start at zero."""

    def __init__(self, config: LSTMControllerConfig, interface: TaskInterface, builder: ParameterBuilder):
        inputs, outputs = interface.inputs["vectors"].shape[-1], interface.vocabularies["bits"]
        self.dtype = builder.dtype
        self.stack = RecurrentStack(config.recurrent_config, inputs, builder=builder)
        self.output = Linear((("embed", config.width),), (("features", outputs),), bias=True, builder=builder)

    def forward(self, state: Any, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T O"], Aux]:
        """Return the logits of every bit at every step; values at or beyond a sequence's length are never read."""
        vectors_BxTxI, lengths_B = jnp.asarray(inputs["vectors"], self.dtype), jnp.asarray(inputs["lengths"])
        hidden_BxTxF, _ = self.stack(vectors_BxTxI, lengths_B)
        return self.output(hidden_BxTxF), Aux({}, {}, state)


FAMILY = ModelFamily(LSTMControllerConfig, LSTMController, frozenset({BIT_SEQUENCE_PREDICTION}))
