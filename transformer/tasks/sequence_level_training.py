"""Train on the expected reward of whole translations that the model itself samples."""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# The longest n-grams that the reward counts (Wu et al. 2016, section 5).
MAX_NGRAM = 4


class SequenceObjective(enum.Enum):
    """The reward term of training, over N translations y_n sampled for each source, with reward r.

    Attributes:
        NLL: No reward term: only the likelihood of the references.
        REINFORCE: sum_y p(y) r(y), whose gradient is estimated by the mean of (r_n - mean_m r_m) grad log p(y_n) (Wu et
            al. 2016, equation 8 and section 5; Williams 1992).
        MRT: Minimum risk training, sum_n Q(y_n) r_n with Q(y_n) = p(y_n)^a / sum_m p(y_m)^a over the distinct
            translations among the samples and the reference, a = `mrt_alpha` (Shen et al. 2016, equations 9 and 10).
    """

    NLL = "nll"
    REINFORCE = "reinforce"
    MRT = "mrt"


def gleu(
    output_BxT: Int[Array, "*B T"],
    output_real_BxT: Bool[Array, "*B T"],
    reference_BxU: Int[Array, "*B U"],
    reference_real_BxU: Bool[Array, "*B U"],
) -> Float[Array, "*B"]:
    """Compute GLEU of each sentence, the smaller of n-gram precision and recall (Wu et al. 2016, section 5).

    It is the number of n-grams of 1 to 4 tokens that both sentences have, each counted as often as both have it,
    divided by the number of n-grams of the sentence that has more.

    Args:
        output_BxT: The tokens of the output.
        output_real_BxT: Which of them count; they stand at the beginning of the row.
        reference_BxU: The tokens of the reference.
        reference_real_BxU: Which of them count; they stand at the beginning of the row.

    Returns:
        GLEU, from 0 to 1; 1 for two empty sentences.
    """
    both, num_output_ngrams, num_reference_ngrams = jnp.zeros((3, *output_BxT.shape[:-1]))
    same_BxTxT = output_BxT[..., :, None] == output_BxT[..., None, :]
    shared_BxTxU = output_BxT[..., :, None] == reference_BxU[..., None, :]
    own, across = jnp.ones_like(same_BxTxT), jnp.ones_like(shared_BxTxU)
    for size in range(1, MAX_NGRAM + 1):
        own, across = own & _equal_ahead(same_BxTxT, size - 1), across & _equal_ahead(shared_BxTxU, size - 1)
        begins_BxT, reference_begins_BxU = _begins(output_real_BxT, size), _begins(reference_real_BxU, size)
        output_counts_BxT = jnp.sum(own & begins_BxT[..., None, :], axis=-1)
        reference_counts_BxT = jnp.sum(across & reference_begins_BxU[..., None, :], axis=-1)
        # Each occurrence of an n-gram has an equal share of its matches.
        share_BxT = jnp.minimum(output_counts_BxT, reference_counts_BxT) / jnp.maximum(output_counts_BxT, 1)
        both += jnp.sum(jnp.where(begins_BxT, share_BxT, 0), axis=-1)
        num_output_ngrams += jnp.sum(begins_BxT, axis=-1)
        num_reference_ngrams += jnp.sum(reference_begins_BxU, axis=-1)
    larger = jnp.maximum(num_output_ngrams, num_reference_ngrams)
    return jnp.where(larger > 0, both / jnp.maximum(larger, 1), 1)


def _equal_ahead(same: Bool[Array, "*B T U"], places: int) -> Bool[Array, "*B T U"]:
    """Return whether the tokens `places` positions after each pair of positions are equal; False beyond the end."""
    rows, columns = same.shape[-2:]
    if places >= min(rows, columns):
        return jnp.zeros_like(same)
    padding = ((0, 0),) * (same.ndim - 2) + ((0, places), (0, places))
    return jnp.pad(same[..., places:, places:], padding)


def _begins(real_BxT: Bool[Array, "*B T"], size: int) -> Bool[Array, "*B T"]:
    """Return where an n-gram of this size begins."""
    return jnp.arange(real_BxT.shape[-1]) + size <= jnp.sum(real_BxT, axis=-1, keepdims=True)


def is_first_occurrence(tokens_BxNxT: Int[Array, "B N T"]) -> Bool[Array, "B N"]:
    """Return which sequences of an example differ from all those before them."""
    same_BxNxN = jnp.all(tokens_BxNxT[:, :, None] == tokens_BxNxT[:, None], axis=-1)
    return ~jnp.any(jnp.tril(same_BxNxN, -1), axis=-1)


def expected_reward_surrogate(
    kind: SequenceObjective,
    log_likelihood_BxN: Float[Array, "B N"],
    reward_BxN: Float[Array, "B N"],
    member_BxN: Bool[Array, "B N"],
    mrt_alpha: float,
) -> Float[Array, " B"]:
    """Return, for each source, a number whose gradient estimates that of the expected reward.

    Args:
        kind: The objective.
        log_likelihood_BxN: log p of each translation, in nats.
        reward_BxN: The reward of each.
        member_BxN: Which of them count.
        mrt_alpha: The exponent of minimum risk training.
    """
    match kind:
        case SequenceObjective.REINFORCE:
            count_B = jnp.maximum(jnp.sum(member_BxN, axis=1), 1)
            usual_B = jnp.sum(reward_BxN * member_BxN, axis=1) / count_B
            advantage_BxN = jnp.where(member_BxN, reward_BxN - usual_B[:, None], 0)
            return jnp.sum(advantage_BxN * log_likelihood_BxN, axis=1) / count_B
        case SequenceObjective.MRT:
            risky_BxN = jax.nn.softmax(jnp.where(member_BxN, mrt_alpha * log_likelihood_BxN, -jnp.inf), axis=1)
            return jnp.sum(risky_BxN * reward_BxN, axis=1)
        case SequenceObjective.NLL:
            return jnp.zeros(log_likelihood_BxN.shape[:1])
