"""The long short-term memory-network: an LSTM that attends to all of its own past states (Cheng et al. 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.api import PreparedKeys, prepare_keys, score, weighted_sum
from transformer.attention.attention_spec import AttentionParameters
from transformer.attention.masks import Mask, dense_mask
from transformer.attention.normalizers import normalize
from transformer.attention.scores import ADDITIVE_SCORE
from transformer.layers.attention_cell import Alignment, AttentionCellConfig
from transformer.layers.attention_parameters import TrainedScore
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import RecurrentInitialization
from transformer.layers.recurrent import CellKind, CellState, RecurrentCell


class StateHistory(NamedTuple):
    """The past states of each row.

    Attributes:
        keys: The result of `prepare_keys` for h_i.
        values: h_i and c_i, concatenated.
        num_states: How many slots are filled.
        last_context: The last h~.
    """

    keys: PreparedKeys
    values: Float[Array, "R K 1 2F"]
    num_states: Int[Array, " R"]
    last_context: Float[Array, "R F"]


class LstmnLayer(Module):
    """An LSTM over attention to all past states: h_t, c_t = LSTM(x_t, (h~_t, c~_t)) (section 3.1).

    a_i = v' tanh(W_h h_i + W [x_t ; h~_{t-1}]) for i < t (equation 4), s = softmax(a) (equation 5),
    h~_t = sum_i s_i h_i and c~_t = sum_i s_i c_i (equation 6); before the first input both are zero. The LSTM's own
    equations are 7 to 9.

    Args:
        inputs: Features of an input.
        width: Features of a state.
        hidden: Units of the score's hidden layer.
        forget_bias: Initial bias of the forget gate.
        builder: Makes the parameters.
    """

    def __init__(self, inputs: int, width: int, hidden: int, *, forget_bias: float, builder: ParameterBuilder):
        self.width = width
        self.cell = RecurrentCell(
            CellKind.LSTM,
            inputs,
            width,
            recurrent_initialization=RecurrentInitialization.ORTHOGONAL,
            forget_bias=forget_bias,
            builder=builder,
        )
        self.score = TrainedScore(
            ADDITIVE_SCORE, 1, inputs + width, 0, key_depth=width, hidden=hidden, builder=builder, head_axis="groups"
        )

    def initial(self, rows: int, slots: int, dtype: jax.typing.DTypeLike) -> StateHistory:
        """An empty history with `slots` slots."""
        empty = jnp.zeros((rows, slots, 1, self.width), dtype)
        shapes = jax.eval_shape(self._prepare_keys, empty)
        keys = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return StateHistory(
            keys,
            jnp.concatenate([empty, empty], axis=-1),
            jnp.zeros(rows, jnp.int32),
            jnp.zeros((rows, self.width), dtype),
        )

    def step(
        self, history: StateHistory, x_RxI: Float[Array, "R I"]
    ) -> tuple[StateHistory, Float[Array, "R F"], Alignment]:
        """Process one input of every row.

        Args:
            history: The past states.
            x_RxI: The inputs.

        Returns:
            The history with one more state, the output h_t, and the weights over the slots [R, 1, K].
        """
        params, slots = self._parameters(x_RxI.dtype), history.values.shape[1]
        q_Rx1x1xD = jnp.concatenate([x_RxI, history.last_context], axis=-1)[:, None, None]
        logits_Rx1x1xK = score(q_Rx1x1xD, history.keys, ADDITIVE_SCORE, params=params)
        filled = dense_mask(Mask(key_lengths=history.num_states), queries=1, keys=slots)
        weights_Rx1x1xK = normalize(logits_Rx1x1xK, filled, AttentionCellConfig.normalizer).values
        hidden_RxF, memory_RxF = jnp.split(weighted_sum(weights_Rx1x1xK, history.values)[:, 0, 0], 2, axis=-1)
        state = self.cell.step(x_RxI, CellState(hidden_RxF, memory_RxF))
        assert state.memory is not None
        new_Rx1x1xF = state.hidden[:, None, None]
        after = StateHistory(
            jax.tree.map(
                lambda old, new: _write_slot(old, new, history.num_states),
                history.keys,
                self._prepare_keys(new_Rx1x1xF),
            ),
            _write_slot(
                history.values,
                jnp.concatenate([state.hidden, state.memory], axis=-1)[:, None, None],
                history.num_states,
            ),
            history.num_states + 1,
            hidden_RxF,
        )
        return after, state.hidden, Alignment(weights_Rx1x1xK[:, :, 0], logits_Rx1x1xK[:, :, 0])

    def _prepare_keys(self, hidden_RxKx1xF: Array) -> PreparedKeys:
        return prepare_keys(hidden_RxKx1xF, ADDITIVE_SCORE, params=self._parameters(hidden_RxKx1xF.dtype))

    def _parameters(self, dtype: jnp.dtype) -> AttentionParameters:
        return AttentionParameters(score=self.score(dtype))


def _write_slot(slots_RxKx: Array, new_Rx1x: Array, slot_R: Int[Array, " R"]) -> Array:
    """Write one more slot of every row."""
    return slots_RxKx.at[jnp.arange(len(slot_R)), slot_R].set(new_Rx1x[:, 0].astype(slots_RxKx.dtype))
