"""Recurrent language models, with an LSTM's last state or attention to all past states (LSTMN)."""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, capture_weights
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import Config, NonNegativeInt, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.attention_cell import scan_decoder_steps
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.embedding_and_head import ClassHead
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule
from transformer.layers.linear import Linear
from transformer.layers.lstmn import LstmnLayer, StateHistory
from transformer.layers.recurrent import CellKind, CellState, RecurrentConfig, RecurrentLayer
from transformer.layers.sequence_lengths import read_prompts, real_positions
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily, hidden_for_next_tokens
from transformer.models.task_interface import (
    LANGUAGE_MODELING,
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
    TaskInterface,
)

SITE = "decoder/self"


class RecurrentMemory(enum.Enum):
    """What a layer stores of the past.

    Attributes:
        STATE: The last state.
        STATE_HISTORY: All states, which each step attends to instead of reading the last one (LSTMN, Cheng et al. 2016;
            transformer.layers.lstmn); LSTMs only.
    """

    STATE = "state"
    STATE_HISTORY = "state_history"


@dataclasses.dataclass(frozen=True)
class RecurrentDecoderConfig(Config, path="config.model"):
    """The configuration of a recurrent language model.

    Attributes:
        cell: The equations of a cell.
        memory: What a layer stores of the past.
        width: Features of a state.
        embedding_width: Features of a word vector.
        layers: Number of layers.
        attention_hidden_width: Units of the hidden layer of the score over the state history; 0 means `width`.
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.
        initialization: The initialization of the parameters.
        forget_bias: Initial bias of the LSTM's forget gate (Jozefowicz et al. 2015 advise 1).
        dropout: Dropout rate on the inputs of each layer and of the output layer.

    Raises:
        UserError: If a value is out of range, or if the memory is `state_history` and the cell is not an LSTM.
    """

    cell: CellKind = CellKind.LSTM
    memory: RecurrentMemory = RecurrentMemory.STATE
    width: PositiveInt = 256
    embedding_width: PositiveInt = 256
    layers: NumLayers = 1
    attention_hidden_width: NonNegativeInt = 0
    vocab_size: int | None = None
    initialization: Initialization = Initialization.XAVIER
    forget_bias: float = 1.0
    dropout: Rate = 0.0

    def _check(self) -> None:
        if self.memory is RecurrentMemory.STATE_HISTORY and self.cell is not CellKind.LSTM:
            raise UserError(
                f"config.model.memory=state_history keeps the memory cells of an LSTM without peepholes, and not of "
                f"config.model.cell={self.cell.value}: say cell=lstm or memory=state"
            )

    @property
    def score_width(self) -> int:
        """The units of the hidden layer of the score over the state history."""
        return self.attention_hidden_width or self.width

    def layer_config(self) -> RecurrentConfig:
        """Return the config of one layer with the memory `state`."""
        return RecurrentConfig(self.cell, self.width, forget_bias=self.forget_bias)


class RecurrentDecoder(StatelessModule):
    """Recurrent language model: embedding, recurrent layers, and an output layer.

    inputs: `tokens` [B, T]; optionally `lengths` [B], beyond which an example is padding. Outputs: logits [B, T, V];
    for a task with classes, logits [B, C] of them, which are in the extras of `hidden` as `classes`.
    """

    def __init__(self, config: RecurrentDecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        builder = builder.with_rule(InitializationRule(config.initialization))
        self.config, self.dtype = config, builder.dtype
        vocabulary = padded_vocab_size(interface.vocabularies["tokens"], config.vocab_size)
        self.embedding = Embedding(vocabulary, config.embedding_width, builder=builder)
        for number in range(config.layers):
            inputs = config.width if number else config.embedding_width
            match config.memory:
                case RecurrentMemory.STATE:
                    layer: Module = RecurrentLayer(config.layer_config(), inputs, builder=builder)
                case RecurrentMemory.STATE_HISTORY:
                    layer = LstmnLayer(
                        inputs, config.width, config.score_width, forget_bias=config.forget_bias, builder=builder
                    )
            setattr(self, f"layer_{number}", layer)
        self.output = Linear((("embed", config.width),), (("vocabulary", vocabulary),), bias=True, builder=builder)
        classes = interface.vocabularies.get("classes")
        head = None if classes is None else ClassHead(config.width, classes, rate=0.0, builder=builder)
        self.classes = head

    @property
    def layers(self) -> tuple[RecurrentLayer | LstmnLayer, ...]:
        """The layers, the lowest first."""
        return tuple(getattr(self, f"layer_{number}") for number in range(self.config.layers))

    @jax.named_scope("decoder")
    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states, from which `logits` computes the logits.

        Raises:
            UserError: If rows are packed: a state would carry over from one text to the next.
        """
        if "segments" in inputs:
            raise UserError(
                "config.task.batching=packed puts several texts into a row, and a recurrent state would run from one "
                "into the next: say config.task.batching=windows"
            )
        hidden_BxTxE, _, captured = self._run_layers(
            inputs, self._initial_carry(*inputs["tokens"].shape), forward_pass.training_key, forward_pass.capture
        )
        extras: dict[str, Array] = {}
        if self.classes is not None:
            # Dropout has acted on these states already.
            extras["classes"] = self.classes(hidden_BxTxE, jnp.asarray(inputs["lengths"]), None)
        return hidden_BxTxE, Aux({} if captured is None else {SITE: captured}, extras, state)

    def logits(self, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits of the tokens, in float32 or wider."""
        return checkpoint_name(self.output.logits(hidden), "logits")

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of every position, or of the classes if the task has any."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        return aux.extras["classes"] if self.classes is not None else self.logits(hidden_BxTxE), aux

    def init_cache(self, state: dict, inputs: Inputs, *, num_beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Read the prompts except for the last token of each, which the first step reads."""
        prompts = read_prompts(inputs)
        tokens_BxP, last_B = prompts
        examples, width = tokens_BxP.shape
        before = {"tokens": tokens_BxP, "lengths": last_B}
        _, carried, _ = self._run_layers(before, self._initial_carry(examples, width + length), None, None)
        rows = repeat_per_beam(carried, num_beams)
        return Cache(layers=(), rows=rows, examples=()), repeat_per_beam(prompts.last_tokens(), num_beams)

    def step(
        self, state: dict, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Return the logits after each row's new token, the next cache, and maps over the slots."""
        x_RxE, after, weights = self._embed(tokens_R), [], []
        for layer, carried in zip(self.layers, cache.rows, strict=True):
            if isinstance(layer, LstmnLayer):
                assert isinstance(carried, StateHistory)
                carried, x_RxE, alignment = layer.step(carried, x_RxE)
                weights.append(alignment.weights)
            else:
                assert isinstance(carried, CellState)
                carried = layer.step(x_RxE, carried)
                x_RxE = carried.hidden
            after.append(carried)
        capture = capture_for_site(SITE, forward_pass.capture)
        captured = _stack_layer_maps([capture_weights(layer_weights[:, :, None], capture) for layer_weights in weights])
        maps = {} if captured is None else {SITE: captured}
        return self.logits(x_RxE), cache._replace(rows=tuple(after)), Aux(maps, {}, state)

    def _initial_carry(self, rows: int, slots: int) -> tuple[CellState | StateHistory, ...]:
        """Return the initial carry of every layer; state histories have `slots` slots."""
        return tuple(
            layer.initial(rows, slots, self.dtype) if isinstance(layer, LstmnLayer) else layer.initial(rows, self.dtype)
            for layer in self.layers
        )

    def _run_layers(
        self,
        inputs: Inputs,
        carried: tuple[CellState | StateHistory, ...],
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B T F"], tuple[CellState | StateHistory, ...], CapturedAttention | None]:
        """Run all tokens through the layers; return the outputs, the carry of each layer, and the maps."""
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, count = tokens_BxT.shape
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else jnp.full(batch, count, jnp.int32)
        mask = Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B)
        real_BxTx1 = real_positions(lengths_B, count)[..., None]
        x_BxTxE = jnp.where(real_BxTx1, self._embed(tokens_BxT), 0)
        after, maps = [], []
        for number, (layer, before) in enumerate(zip(self.layers, carried, strict=True)):
            x_BxTxE = self._apply_dropout(x_BxTxE, number, key)
            if isinstance(layer, LstmnLayer):
                step = functools.partial(_lstmn_step, layer)
                layer_carry, x_BxTxE, captured = scan_decoder_steps(
                    step, before, x_BxTxE, mask=mask, capture=capture_for_site(SITE, capture)
                )
                maps.append(None if captured is None else jax.tree.map(lambda leaf: leaf[0], captured))
            else:
                assert isinstance(before, CellState)
                x_BxTxE, layer_carry = layer(x_BxTxE, lengths_B, before)
            after.append(layer_carry)
        return self._apply_dropout(x_BxTxE, self.config.layers, key), tuple(after), _stack_layer_maps(maps)

    def _embed(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B E"]:
        return self.embedding(tokens, self.dtype)

    def _apply_dropout(self, x: Array, index: int, key: Key[Array, ""] | None) -> Array:
        return dropout(x, self.config.dropout, None if key is None else jax.random.fold_in(key, index))


def _lstmn_step(layer: LstmnLayer, history: StateHistory, x_BxE: Array, key: None) -> tuple[StateHistory, Array, Any]:
    return layer.step(history, x_BxE)


def _stack_layer_maps(layer_maps: list[CapturedAttention | None]) -> CapturedAttention | None:
    """Stack what the layers captured, with a leading layer axis."""
    captured = [layer_map for layer_map in layer_maps if layer_map is not None]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured) if captured else None


def attention_sites(config: RecurrentDecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model; none with the memory `state`."""
    if config.memory is not RecurrentMemory.STATE_HISTORY:
        return ()
    layers = tuple(map(str, range(config.layers)))
    return (Site(SITE, Axis("tokens"), Axis("tokens"), layers, ("0",), causal=True),)


FAMILY = ModelFamily(
    RecurrentDecoderConfig,
    RecurrentDecoder,
    frozenset({LANGUAGE_MODELING, TEXT_CLASSIFICATION, TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING}),
    sites=attention_sites,
    forward_methods=hidden_for_next_tokens,
)
