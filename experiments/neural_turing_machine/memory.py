"""The memory of an NTM: content and location addressing, reading and writing, all differentiable."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.api import prepare_keys, score, weighted_sum
from transformer.attention.attention_spec import AttentionParameters
from transformer.attention.normalizers import softmax
from transformer.attention.scores import Cosine, Score

# Far beneath what a weight can matter by, and far above what float32 cannot tell from zero, also times a gradient.
NOTHING = 1e-30


class AddressingParameters(NamedTuple):
    """The addressing parameters that a controller emits for each head.

    Attributes:
        key: The key k_t for content addressing.
        strength: The key strength beta_t, at least 0.
        gate: The interpolation gate g_t in [0, 1].
        shift: The distribution s_t over shifts.
        sharpening: The exponent gamma_t, at least 1.
    """

    key: Float[Array, "R H M"]
    strength: Float[Array, "R H"]
    gate: Float[Array, "R H"]
    shift: Float[Array, "R H S"]
    sharpening: Float[Array, "R H"]


class WriteParameters(NamedTuple):
    """The changes that a controller emits for each write head.

    Attributes:
        erase: The erase vector e in [0, 1].
        add: The add vector a.
    """

    erase: Float[Array, "R H M"]
    add: Float[Array, "R H M"]


def num_address_outputs(slot_width: int, shift_range: int) -> int:
    """Return the number of outputs from which `parse_addressing_parameters` makes the address of one head.

    Args:
        slot_width: The features of a slot.
        shift_range: The largest shift to either side.

    Returns:
        The number: a key, three scalars and the logits of the shift.
    """
    return slot_width + 3 + num_shift_offsets(shift_range)


def num_shift_offsets(shift_range: int) -> int:
    """Return the number of offsets of a shift: `shift_range` to either side, and 0."""
    return 2 * shift_range + 1


def parse_addressing_parameters(raw_RxHxF: Float[Array, "R H F"], slot_width: int) -> AddressingParameters:
    """Convert unbounded outputs for each head to addressing parameters.

    Args:
        raw_RxHxF: The outputs: key, strength, gate, sharpening, shift.
        slot_width: The features of a slot.

    Returns:
        The parameters.
    """
    key, strength, gate, sharpening, shift = jnp.split(
        raw_RxHxF, [slot_width, slot_width + 1, slot_width + 2, slot_width + 3], axis=-1
    )
    return AddressingParameters(
        jnp.tanh(key),
        jax.nn.softplus(strength[..., 0]),
        jax.nn.sigmoid(gate[..., 0]),
        jax.nn.softmax(shift, axis=-1),
        1 + jax.nn.softplus(sharpening[..., 0]),
    )


def parse_write_parameters(raw_RxHxF: Float[Array, "R H F"]) -> WriteParameters:
    """Convert two unbounded numbers a feature to erase and add vectors: e = logistic, a = tanh (section 3.2)."""
    erase, add = jnp.split(raw_RxHxF, 2, axis=-1)
    return WriteParameters(jax.nn.sigmoid(erase), jnp.tanh(add))


def compute_weightings(
    to: AddressingParameters, memory_RxNxM: Float[Array, "R N M"], before_RxHxN: Float[Array, "R H N"]
) -> Float[Array, "R H N"]:
    """Compute the weighting w_t of every head (section 3.3, figure 2).

    Args:
        to: The addressing parameters.
        memory_RxNxM: The memory.
        before_RxHxN: The weightings of the step before.

    Returns:
        The weightings [row, head, slot].
    """
    by_content_RxHxN = content_addressing(to.key, to.strength, memory_RxNxM)
    gate_RxHx1 = to.gate[..., None].astype(by_content_RxHxN.dtype)
    gated_RxHxN = gate_RxHx1 * by_content_RxHxN + (1 - gate_RxHx1) * before_RxHxN
    return sharpen_weightings(shift_weightings(gated_RxHxN, to.shift), to.sharpening)


def content_addressing(
    key_RxHxM: Float[Array, "R H M"], strength_RxH: Float[Array, "R H"], memory_RxNxM: Float[Array, "R N M"]
) -> Float[Array, "R H N"]:
    """Compute w(i) = softmax_i(beta cos(k, M(i))) (equations 5 and 6).

    Args:
        key_RxHxM: The key k of each head.
        strength_RxH: The key strength beta.
        memory_RxNxM: The memory M.

    Returns:
        The weighting [row, head, slot].
    """
    # Heads are queries of one head: a score of several would repeat the memory for each.
    keys = prepare_keys(memory_RxNxM[:, :, None], Score.COSINE)
    params = AttentionParameters(score=Cosine(strength_RxH[:, None]))
    logits_Rx1xHxN = score(key_RxHxM[:, :, None].astype(memory_RxNxM.dtype), keys, Score.COSINE, params=params)
    return softmax(logits_Rx1xHxN)[:, 0]


def shift_weightings(weights_RxHxN: Float[Array, "R H N"], shift_RxHxS: Float[Array, "R H S"]) -> Float[Array, "R H N"]:
    """Shift every weighting: w_s(i) = sum_j w(j) s(i - j), circularly (equation 8).

    Args:
        weights_RxHxN: The weighting w.
        shift_RxHxS: The distribution s over S offsets from -(S - 1) / 2 to (S - 1) / 2; the last shifts furthest
            forward.

    Returns:
        The weighting w_s.
    """
    reach = shift_RxHxS.shape[-1] // 2
    shifted_terms = [
        jnp.roll(weights_RxHxN, place - reach, axis=-1) * shift_RxHxS[..., place, None].astype(weights_RxHxN.dtype)
        for place in range(shift_RxHxS.shape[-1])
    ]
    return sum(shifted_terms[1:], shifted_terms[0])


def sharpen_weightings(weights_RxHxN: Float[Array, "R H N"], power_RxH: Float[Array, "R H"]) -> Float[Array, "R H N"]:
    """Sharpen every weighting: w(i)^gamma / sum_j w(j)^gamma (equation 9), as softmax(gamma log w).

    Powers of small weights could all underflow and leave nothing to divide by. A weight of zero, as in a one-hot
    weighting, becomes 1e-30, so that its logarithm and its gradient are finite.

    Args:
        weights_RxHxN: The weighting w.
        power_RxH: The exponent gamma, at least 1.

    Returns:
        The sharpened weighting.
    """
    log_RxHxN = jnp.log(weights_RxHxN + NOTHING)
    return jax.nn.softmax(power_RxH[..., None].astype(weights_RxHxN.dtype) * log_RxHxN, axis=-1)


def read_slots(memory_RxNxM: Float[Array, "R N M"], weights_RxHxN: Float[Array, "R H N"]) -> Float[Array, "R H M"]:
    """Read r = sum_i w(i) M(i) for every head (equation 2).

    Args:
        memory_RxNxM: The memory M, N slots of width M.
        weights_RxHxN: The weighting w of each read head.

    Returns:
        The read vectors r.
    """
    return weighted_sum(weights_RxHxN[:, None], memory_RxNxM[:, :, None])[:, :, 0]


def write_slots(
    memory_RxNxM: Float[Array, "R N M"], weights_RxHxN: Float[Array, "R H N"], change: WriteParameters
) -> Float[Array, "R N M"]:
    """Compute M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h (equations 3 and 4): first erase, then add.

    Args:
        memory_RxNxM: The memory M.
        weights_RxHxN: The weighting w of each write head.
        change: The erase vectors e and add vectors a.

    Returns:
        The memory M'.
    """
    erase_RxHxM, add_RxHxM = (part.astype(memory_RxNxM.dtype) for part in change)
    for head in range(weights_RxHxN.shape[1]):
        memory_RxNxM = memory_RxNxM * (1 - weights_RxHxN[:, head, :, None] * erase_RxHxM[:, head, None])
    return memory_RxNxM + jnp.einsum("rhn,rhm->rnm", weights_RxHxN, add_RxHxM)
