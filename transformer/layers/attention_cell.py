"""The attention of recurrent decoders: a memory prepared once and read by one query per row at each step."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.api import prepare_keys, score, weighted_sum
from transformer.attention.attention_spec import AttentionParameters
from transformer.attention.capture import Capture, CapturedAttention, add_layer_axis, capture_weights
from transformer.attention.masks import Mask, dense_mask, predicted_center
from transformer.attention.normalizers import NormalizedWeights, Normalizer, Reweighting, gaussian_reweight, normalize
from transformer.attention.scores import ADDITIVE_SCORE, Score, ScoreKind, score_class, score_name
from transformer.config import Config, NonNegativeInt, NumHeads, PositiveInt, UserError
from transformer.layers.attention_parameters import TrainedScore
from transformer.layers.beam_rows import beam_queries_to_rows, flatten_beam_axis, unflatten_beam_axis
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole, ScoreInitialization
from transformer.layers.linear import Linear
from transformer.layers.own_score import resolve_score
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import with_logical_constraint

PyTree = Any
Step = Callable[[PyTree, PyTree, Key[Array, ""] | None], "tuple[PyTree, PyTree, Alignment | None]"]


class KeyValueProjection(enum.Enum):
    """How keys and values are made from the memory.

    Attributes:
        SHARED: The memory itself is both (Bahdanau et al. 2015, equation 5; Luong et al. 2015, section 3.1); with
            several heads, the features of query and memory are split among them.
        SPLIT: Linear maps of the memory, one for keys and one for values, and of the query (Vaswani et al. 2017,
            section 3.2.2, without the output projection).
    """

    SHARED = "shared"
    SPLIT = "split"


class AttentionSpan(enum.Enum):
    """Which positions of the memory a query sees; D is `half_width` (Luong et al. 2015, section 3.2).

    Attributes:
        GLOBAL: All.
        MONOTONIC: Local-m: those within D of the query's own position.
        PREDICTIVE: Local-p: those within D of a position predicted from the query, equation 9 with positions counted
            from 0: p = (S - 1) sigmoid(v' tanh(W q)) lies in [0, S - 1], where the paper's S would let it lie beyond
            the last key.
    """

    GLOBAL = "global"
    MONOTONIC = "monotonic"
    PREDICTIVE = "predictive"


@dataclasses.dataclass(frozen=True)
class AttentionCellConfig(Config):
    """The attention of a recurrent decoder; the defaults are those of Bahdanau et al. 2015, appendix A.1.2.

    Attributes:
        score: The score function, or the dotted path of a module that exports a class `SCORE`.
        normalizer: How logits become weights.
        reweighting: `gaussian` multiplies the weights by a Gaussian around the center of the attention span, or of the
            mask (local-p, Luong et al. 2015, equation 10).
        key_value_projection: How keys and values are made from the memory.
        heads: Number of heads.
        head_dim: Features of a projected head, and of the hidden layer of additive, concat and mlp; 0 means as many as
            each head has of the query.
        max_length: The longest memory, for the score `location` only.
        attention_span: Which positions of the memory a query sees.
        half_width: D of the local attention spans.
        initialization: Initialization of the score's parameters.

    Raises:
        UserError: If `heads` or `half_width` is below 1, or if the score is location without `max_length`.
    """

    score: Score | str = ADDITIVE_SCORE
    normalizer: Normalizer = Normalizer.SOFTMAX
    reweighting: Reweighting = Reweighting.NONE
    key_value_projection: KeyValueProjection = KeyValueProjection.SHARED
    heads: NumHeads = 1
    head_dim: NonNegativeInt = 0
    max_length: int = 0
    attention_span: AttentionSpan = AttentionSpan.GLOBAL
    half_width: PositiveInt = 10
    initialization: ScoreInitialization = ScoreInitialization.OWN

    def _check(self) -> None:
        if score_class(self.score_kind).uses_key_index and self.max_length < 1:
            raise UserError(
                f"score={score_name(self.score_kind)} has a row for each key: max_length={self.max_length} must be at "
                "least 1"
            )

    @property
    def score_kind(self) -> ScoreKind:
        """The score function of `score`."""
        return resolve_score(self.score)

    def depths(self, width: int, memory_width: int) -> tuple[int, int]:
        """The features of a query head, and of a key and value head.

        Args:
            width: Features of a query.
            memory_width: Features of the memory.

        Returns:
            The two numbers.

        Raises:
            ValueError: If `heads` does not divide the features.
        """
        split = self.key_value_projection is KeyValueProjection.SPLIT
        for name, size in (("query", width), ("memory", memory_width)):
            if size % self.heads and not (split and self.head_dim):
                raise ValueError(f"heads={self.heads} do not divide the {size} features of the {name}")
        depth = self.head_dim if split and self.head_dim else width // self.heads
        return depth, depth if split else memory_width // self.heads

    def context_width(self, width: int, memory_width: int) -> int:
        """The features of a context: those of the values of all heads."""
        return self.heads * self.depths(width, memory_width)[1]


class AttentionMemory(NamedTuple):
    """A memory prepared for `AttentionCell`, with one entry per example; suitable for `Cache.examples`, never tiled.

    Attributes:
        keys: The result of `prepare_keys`.
        values: The values of each head.
        lengths: Real positions of each example.
    """

    keys: PyTree
    values: Float[Array, "B K H D"]
    lengths: Int[Array, " B"]


class Alignment(NamedTuple):
    """The attention of queries over a memory: [B, H, Q, K], or [R, H, K] with one query per row.

    Attributes:
        weights: The weights that multiplied the values.
        logits: The logits that the weights came from.
        log_prob: Log-probability of the sampled key, differentiable; None unless the normalizer samples.
        entropy: Entropy of the distribution sampled from, in nats, differentiable; None unless the normalizer samples.
    """

    weights: Float[Array, "*B H K"]
    logits: Float[Array, "*B H K"]
    log_prob: Float[Array, "*B H"] | None = None
    entropy: Float[Array, "*B H"] | None = None


class CenterPredictor(Module):
    """The predicted center of each head's local attention: `predicted_center` with trained parameters.

    Args:
        heads: Number of heads.
        depth: Features of a query head.
        builder: Makes the parameters.
    """

    def __init__(self, heads: int, depth: int, *, builder: ParameterBuilder):
        rule = builder.rule(ParameterRole.DENSE, depth, depth)
        self.weight = builder.parameter(rule, (heads, depth, depth), ("groups", "head_dim", "head_dim"))
        self.score = builder.parameter(
            builder.rule(ParameterRole.DENSE, depth, 1), (heads, depth), ("groups", "head_dim")
        )

    def __call__(self, q_BxQxHxD: Float[Array, "B Q H D"], key_lengths_B: Int[Array, " B"]) -> Float[Array, "B H Q"]:
        """Predict the center of each query, from 0 to the last position of its memory."""
        weight_HxDxA, score_HxA = (jnp.asarray(weight[...], q_BxQxHxD.dtype) for weight in (self.weight, self.score))
        return predicted_center(q_BxQxHxD, weight_HxDxA, score_HxA, key_lengths_B)


class AttentionCell(Module):
    """Attention over a memory: context = sum_k a_k v_k, a = normalize(score(query, keys)).

    Call `prepare` once, then `step` for one query per row, or the cell itself for all queries at once.

    Args:
        config: The configuration.
        width: Features of a query.
        memory_width: Features of the memory.
        builder: Makes the parameters.

    Raises:
        ValueError: If the heads do not divide the features of query or memory, or if the score needs queries and keys
            of the same size and they differ.
    """

    def __init__(
        self,
        config: AttentionCellConfig,
        width: int,
        memory_width: int,
        *,
        builder: ParameterBuilder,
    ):
        self.config, heads = config, config.heads
        split = config.key_value_projection is KeyValueProjection.SPLIT
        depth, key_depth = config.depths(width, memory_width)

        # One head is common, and no mesh divides it: as "groups" heads that are too few lie whole.
        def projected(size: int) -> Linear | None:
            if not split:
                return None
            outputs = (("groups", heads), ("head_dim", depth))
            return Linear((("embed", size),), outputs, bias=False, builder=builder)

        self.query, self.key, self.value = projected(width), projected(memory_width), projected(memory_width)
        self.score = TrainedScore(
            config.score_kind,
            heads,
            depth,
            config.max_length,
            key_depth=key_depth,
            hidden=config.head_dim or None,
            initialization=config.initialization,
            builder=builder,
            head_axis="groups",
        )
        self.center = (
            CenterPredictor(heads, depth, builder=builder)
            if config.attention_span is AttentionSpan.PREDICTIVE
            else None
        )
        self.context_width = heads * key_depth

    def prepare(
        self, memory_BxKxM: Float[Array, "B K M"], lengths_B: Int[Array, " B"] | None = None
    ) -> AttentionMemory:
        """Compute everything that depends on the memory alone.

        Args:
            memory_BxKxM: The memory; what lies at or beyond a length, NaN included, is never read.
            lengths_B: Real positions of each example; None means all.

        Returns:
            The prepared memory.
        """
        batch, count, _ = memory_BxKxM.shape
        if lengths_B is None:
            lengths_B = jnp.full(batch, count, jnp.int32)
        memory_BxKxM = jnp.where(real_positions(lengths_B, count)[..., None], memory_BxKxM, 0)
        keys_BxKxHxC = self._split_heads(memory_BxKxM, self.key)
        prepared = prepare_keys(keys_BxKxHxC, self.config.score_kind, params=self._parameters(memory_BxKxM.dtype))
        return AttentionMemory(prepared, self._split_heads(memory_BxKxM, self.value), lengths_B)

    def __call__(
        self,
        query_BxQxE: Float[Array, "B Q E"],
        memory: AttentionMemory,
        *,
        mask: Mask | None = None,
        bias: Float[Array, "#B #H #Q #K"] | None = None,
        position_BxQ: Int[Array, "#B Q"] | None = None,
        soft_BxQ: Bool[Array, "B Q"] | None = None,
        key: Key[Array, ""] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B Q C"], Alignment]:
        """Attend from queries that are all known, as in teacher forcing.

        Args:
            query_BxQxE: The queries.
            memory: The memory from `prepare`.
            mask: What is hidden besides padding and what is outside the attention span.
            bias: Added to the logits.
            position_BxQ: Positions of the queries; None means their indices.
            soft_BxQ: True for queries that use the probabilities in place of a sample; their log-probability is then 0.
            key: Random key for sampling normalizers.
            train: Whether sampling normalizers sample.

        Returns:
            The contexts, heads concatenated, and the alignment [B, H, Q, K].

        Raises:
            ValueError: If `reweighting` is gaussian and there is no window and center, or if `soft_BxQ` is given to a
                normalizer that does not sample.
        """
        mask = dataclasses.replace(mask or Mask(), key_lengths=memory.lengths)
        q_BxQxHxD = self._split_heads(query_BxQxE, self.query)
        mask = self._limit_to_span(mask, q_BxQxHxD, position_BxQ)
        params = self._parameters(query_BxQxE.dtype)
        logits_BxHxQxK = score(q_BxQxHxD, memory.keys, self.config.score_kind, params=params, bias=bias)
        allowed = dense_mask(mask, queries=query_BxQxE.shape[1], keys=memory.values.shape[1])
        weights = normalize(logits_BxHxQxK, allowed, self.config.normalizer, key=key, train=train)
        if self.config.reweighting is Reweighting.GAUSSIAN:
            if mask.center is None or mask.window is None:
                raise ValueError(
                    "reweighting=gaussian needs a mask with window and center (attention.local_predictive)"
                )
            weights = gaussian_reweight(weights, mask.center, sum(mask.window) / 2)
        if soft_BxQ is not None:
            weights = _apply_soft_attention(weights, soft_BxQ)
        weights = weights._replace(values=checkpoint_name(weights.values, "alignments"))
        context_BxQxHxD = weighted_sum(weights.values, memory.values)
        context_BxQxC = context_BxQxHxD.reshape(*context_BxQxHxD.shape[:2], -1)
        entropy = None if weights.log_prob is None else _entropy(weights.probabilities)
        return context_BxQxC, Alignment(weights.values, logits_BxHxQxK, weights.log_prob, entropy)

    def step(
        self,
        query_RxE: Float[Array, "R E"],
        memory: AttentionMemory,
        *,
        position_R: Int[Array, " R"] | None = None,
        soft_R: Bool[Array, " R"] | None = None,
        **facts: Any,
    ) -> tuple[Float[Array, "R C"], Alignment]:
        """Attend from one query per row.

        Rows are examples x beams: the beams of an example are queries of one attention over its memory. The queries of
        a mask are then beams, so fields that depend on a query's position do not apply; use `center` or `allowed`.

        Args:
            query_RxE: One query per row.
            memory: The memory from `prepare`, one entry per example.
            position_R: Positions of the queries, for the monotonic attention span.
            soft_R: True for rows that use the probabilities in place of a sample.
            **facts: Other arguments of a call: `mask`, `bias`, `key`, `train`.

        Returns:
            The contexts, heads concatenated, and the alignment [R, H, K].

        Raises:
            ValueError: If the number of examples does not divide the number of rows.
        """
        examples = memory.values.shape[0]
        row_facts = {"position_BxQ": position_R, "soft_BxQ": soft_R}
        facts |= {name: unflatten_beam_axis(fact, examples) for name, fact in row_facts.items() if fact is not None}
        context_BxQxC, alignment = self(unflatten_beam_axis(query_RxE, examples), memory, **facts)
        return flatten_beam_axis(context_BxQxC), jax.tree.map(beam_queries_to_rows, alignment)

    def _limit_to_span(self, mask: Mask, q_BxQxHxD: Array, position_BxQ: Array | None) -> Mask:
        """The mask with the window of the attention span around each query's center."""
        batch, queries, heads, _ = q_BxQxHxD.shape
        window = (self.config.half_width, self.config.half_width)
        match self.config.attention_span:
            case AttentionSpan.GLOBAL:
                return mask
            case AttentionSpan.MONOTONIC:
                position = jnp.arange(queries)[None] if position_BxQ is None else position_BxQ
                # bfloat16 does not know every position beyond 256.
                wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
                center_BxHxQ = jnp.broadcast_to(position[:, None].astype(wide), (batch, heads, queries))
            case AttentionSpan.PREDICTIVE:
                assert self.center is not None
                assert mask.key_lengths is not None
                center_BxHxQ = self.center(q_BxQxHxD, mask.key_lengths)
        return dataclasses.replace(mask, window=window, center=center_BxHxQ)

    def _parameters(self, dtype: jnp.dtype) -> AttentionParameters:
        return AttentionParameters(score=self.score(dtype))

    def _split_heads(self, x_BxNxE: Array, projection: Linear | None) -> Array:
        """[B, N, H, D]: projected, or the features of x split among the heads."""
        if projection is not None:
            return projection(x_BxNxE)
        return x_BxNxE.reshape(*x_BxNxE.shape[:2], self.config.heads, -1)


def _apply_soft_attention(weights: NormalizedWeights, soft_BxQ: Bool[Array, "B Q"]) -> NormalizedWeights:
    """Use probabilities in place of samples where a query is soft (Xu et al. 2015, section 4.1)."""
    if weights.log_prob is None:
        raise ValueError("soft_BxQ is given to an attention that draws nothing: leave it out")
    soft_Bx1xQ = soft_BxQ[:, None]
    return weights._replace(
        values=jnp.where(soft_Bx1xQ[..., None], weights.probabilities, weights.values),
        log_prob=jnp.where(soft_Bx1xQ, 0, weights.log_prob),
    )


def _entropy(probabilities_BxHxQxK: Array) -> Array:
    """The entropy -sum p log p in nats, where p = 0 adds nothing."""
    positive = probabilities_BxHxQxK > 0
    log_BxHxQxK = jnp.log(jnp.where(positive, probabilities_BxHxQxK, 1))
    return -jnp.sum(probabilities_BxHxQxK * log_BxHxQxK, axis=-1)


def scan_decoder_steps(
    step: Step,
    carry: PyTree,
    inputs: PyTree,
    *,
    mask: Mask,
    key: Key[Array, ""] | None = None,
    capture: Capture | None = None,
) -> tuple[PyTree, PyTree, CapturedAttention | None]:
    """Run a decoder's step function over known inputs: teacher forcing.

    Args:
        step: `step(carry, input, key) -> (carry, output, Alignment)`. The alignment may be None if the step does not
            attend; then nothing can be captured.
        carry: The initial carry, a tree of [B, ...].
        inputs: A tree of [B, T, ...].
        mask: The lengths of queries (decoder positions) and of keys, None where nothing is padded. A padded position
            leaves the carry unchanged and its output is zero.
        key: Random key, split over the steps.
        capture: The request for the site (`capture_for_site`). Only with it are the weights of the steps stored.

    Returns:
        The final carry, the outputs (a tree of [B, T, ...]), and what was captured, with a layer axis of 1.
    """
    time_major = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inputs)
    count = len(jax.tree.leaves(time_major)[0])
    real_TxB = None if mask.query_lengths is None else real_positions(mask.query_lengths, count).T
    if real_TxB is not None:
        time_major = jax.tree.map(lambda leaf: _select_rows(real_TxB, leaf, jnp.zeros_like(leaf)), time_major)
    time_major = jax.tree.map(
        lambda leaf: with_logical_constraint(leaf, None, "batch", *(None,) * (leaf.ndim - 2)), time_major
    )
    keys_T = None if key is None else jax.random.split(key, count)

    def body(
        carry: PyTree, step_inputs: tuple[PyTree, Array | None, Array | None]
    ) -> tuple[PyTree, tuple[PyTree, Any]]:
        x, real_B, step_key = step_inputs
        next_carry, y, alignment = step(carry, x, step_key)
        if real_B is not None:
            next_carry = jax.tree.map(lambda new, old: _select_rows(real_B, new, old), next_carry, carry)
            y = jax.tree.map(lambda leaf: _select_rows(real_B, leaf, jnp.zeros_like(leaf)), y)
        if capture is None or alignment is None:
            return next_carry, (y, None)
        return next_carry, (y, (alignment.weights, alignment.logits if capture.statistics else None))

    carry, (y_TxB, stacked) = jax.lax.scan(body, carry, (time_major, real_TxB, keys_T))
    outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), y_TxB)
    if capture is None:
        return carry, outputs, None
    weights_BxHxTxK, logits_BxHxTxK = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), stacked)
    if real_TxB is not None:
        weights_BxHxTxK = jnp.where(real_TxB.T[:, None, :, None], weights_BxHxTxK, 0)
    captured = capture_weights(weights_BxHxTxK, capture, logits=logits_BxHxTxK, mask=mask)
    assert captured is not None
    return carry, outputs, add_layer_axis(captured)


def _select_rows(real: Array, new: Array, old: Array) -> Array:
    """`new` where `real`, which has the leading axes of both, else `old`."""
    return jnp.where(real.reshape(*real.shape, *(1,) * (new.ndim - real.ndim)), new, old)
