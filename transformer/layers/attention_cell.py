"""The attention of recurrent decoders: a memory that is prepared once, read by one query of every row at each step."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.api import prepare_keys, read, score
from transformer.attention.capture import Capture, CapturedAttention, add_layer_axis, capture_weights
from transformer.attention.masks import Mask, dense_mask, predicted_center
from transformer.attention.normalizers import NormalizedWeights, Normalizer, Reweighting, gaussian_reweight, normalize
from transformer.attention.scores import SCORES, Score
from transformer.attention.spec import AttentionParameters
from transformer.config import Config, Count, Heads, Positive, UserError
from transformer.layers.attention_parameters import TrainedScore
from transformer.layers.beam_rows import as_rows, by_example, queries_as_rows
from transformer.layers.functional_module import Builder, Module
from transformer.layers.initialization import Role, ScoreInitialization
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import place

PyTree = Any
Step = Callable[[PyTree, PyTree, Key[Array, ""] | None], "tuple[PyTree, PyTree, Alignment | None]"]


class KeyValueProjection(enum.Enum):
    """What keys and values are.

    shared: the memory itself is both (Bahdanau et al. 2015, equation 5; Luong et al. 2015, section 3.1); of several
      heads each has its share of the features of query and memory.
    split: linear maps of the memory, one for keys and one for values, and of the query (Vaswani et al. 2017, section
      3.2.2, without the map behind the heads).
    """

    SHARED = "shared"
    SPLIT = "split"


class AttentionSpan(enum.Enum):
    """Which positions of the memory a query sees; D is `half_width` (Luong et al. 2015, section 3.2).

    global: all. monotonic (local-m): those within D of the query's own position. predictive (local-p): those within D
      of a position that is predicted from the query, p = S sigmoid(v' tanh(W q)), equation 9.
    """

    GLOBAL = "global"
    MONOTONIC = "monotonic"
    PREDICTIVE = "predictive"


@dataclasses.dataclass(frozen=True)
class AttentionCellConfig(Config):
    """The attention of a recurrent decoder; the defaults are Bahdanau et al. 2015, appendix A.1.2.

    `depth`: features of a projected head, and of the hidden layer of additive, concat and mlp; 0: as many as each head
    has of the query. `max_length`: the keys that the score location has rows for, 0 where another score is meant.
    `reweighting` gaussian multiplies the weights with a Gaussian around the center of the extent, or of the mask.

    Raises:
        UserError: For heads or `half_width` below 1, or the score location without `max_length`.
    """

    score: Score = Score.ADDITIVE
    normalizer: Normalizer = Normalizer.SOFTMAX
    reweighting: Reweighting = Reweighting.NONE
    projection: KeyValueProjection = KeyValueProjection.SHARED
    heads: Heads = 1
    head_dim: Count = 0
    max_length: int = 0
    attention_span: AttentionSpan = AttentionSpan.GLOBAL
    half_width: Positive = 10
    initialization: ScoreInitialization = ScoreInitialization.OWN

    def _check(self) -> None:
        if SCORES[self.score].indexed and self.max_length < 1:
            raise UserError(
                f"score={self.score.value} has a row for each key: max_length={self.max_length} must be at least 1"
            )

    def depths(self, width: int, memory_width: int) -> tuple[int, int]:
        """The features of a head of the queries, and of one of keys and values.

        Raises:
            ValueError: For heads that divide the features unevenly.
        """
        split = self.projection is KeyValueProjection.SPLIT
        for name, size in (("query", width), ("memory", memory_width)):
            if size % self.heads and not (split and self.head_dim):
                raise ValueError(f"heads={self.heads} do not divide the {size} features of the {name}")
        depth = self.head_dim if split and self.head_dim else width // self.heads
        return depth, depth if split else memory_width // self.heads

    def context_width(self, width: int, memory_width: int) -> int:
        """The features of a context: those of the values of all heads."""
        return self.heads * self.depths(width, memory_width)[1]


class AttentionMemory(NamedTuple):
    """A memory as `AttentionCell` reads it, an entry for each example: fit for `Cache.examples`, never tiled.

    `keys` is what `prepare_keys` made of them.
    """

    keys: PyTree
    values: Float[Array, "B K H D"]
    lengths: Int[Array, " B"]


class Alignment(NamedTuple):
    """How queries weighted a memory: [B, H, Q, K], or a row's one query without that axis, [R, H, K].

    `weights` are those that multiplied the values, `logits` what they came from. Of a sampler, and None of other
    normalizers, `log_prob` of the key that it drew and `entropy` of what it drew from, in nats, both differentiable.
    """

    weights: Float[Array, "*B H K"]
    logits: Float[Array, "*B H K"]
    log_prob: Float[Array, "*B H"] | None = None
    entropy: Float[Array, "*B H"] | None = None


class Center(Module):
    """Where the local attention of each head looks: `predicted_center` of its queries."""

    def __init__(self, heads: int, depth: int, *, builder: Builder):
        rule = builder.rule(Role.DENSE, depth, depth)
        self.weight = builder.parameter(rule, (heads, depth, depth), ("groups", "head_dim", "head_dim"))
        self.score = builder.parameter(builder.rule(Role.DENSE, depth, 1), (heads, depth), ("groups", "head_dim"))

    def __call__(self, q_BxQxHxD: Float[Array, "B Q H D"], key_lengths_B: Int[Array, " B"]) -> Float[Array, "B H Q"]:
        """A position from 0 to the last of each memory."""
        weight_HxDxA, score_HxA = (jnp.asarray(each[...], q_BxQxHxD.dtype) for each in (self.weight, self.score))
        return predicted_center(q_BxQxHxD, weight_HxDxA, score_HxA, key_lengths_B)


class AttentionCell(Module):
    """context = sum_k a_k v_k, a = normalize(score(query, keys)), for queries of `width` over `memory_width` features.

    `prepare` once, then `step` for one query of every row, or call it with queries that are known together.

    Raises:
        ValueError: For heads that divide the features of query or memory unevenly, and for a score that needs queries
            and keys of one depth.
    """

    def __init__(
        self,
        config: AttentionCellConfig,
        width: int,
        memory_width: int,
        *,
        builder: Builder,
    ):
        self.config, heads = config, config.heads
        split = config.projection is KeyValueProjection.SPLIT
        depth, key_depth = config.depths(width, memory_width)

        # One head is common, and no mesh divides it: as "groups" heads that are too few lie whole.
        def projected(size: int) -> Linear | None:
            if not split:
                return None
            outputs = (("groups", heads), ("head_dim", depth))
            return Linear((("embed", size),), outputs, bias=False, builder=builder)

        self.query, self.key, self.value = projected(width), projected(memory_width), projected(memory_width)
        self.score = TrainedScore(
            config.score,
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
            Center(heads, depth, builder=builder) if config.attention_span is AttentionSpan.PREDICTIVE else None
        )
        self.context_width = heads * key_depth

    def prepare(
        self, memory_BxKxM: Float[Array, "B K M"], lengths_B: Int[Array, " B"] | None = None
    ) -> AttentionMemory:
        """All that depends on the memory alone; what stands at or beyond a length, NaN included, is never read.

        Without lengths all of it is real.
        """
        batch, count, _ = memory_BxKxM.shape
        if lengths_B is None:
            lengths_B = jnp.full(batch, count, jnp.int32)
        memory_BxKxM = jnp.where(real_positions(lengths_B, count)[..., None], memory_BxKxM, 0)
        keys_BxKxHxC = self._in_heads(memory_BxKxM, self.key)
        prepared = prepare_keys(keys_BxKxHxC, self.config.score, params=self._parameters(memory_BxKxM.dtype))
        return AttentionMemory(prepared, self._in_heads(memory_BxKxM, self.value), lengths_B)

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
        """The contexts of queries that are known together, heads side by side, and how they were read [B, H, Q, K].

        `mask` says what is hidden beside the memory's padding and what the extent leaves out; `position_BxQ` are the
        queries' positions, by default their numbers. `key` and `train` matter to normalizers that draw, `soft_BxQ` says
        which queries read by the probabilities in place of a draw, whose log-probability then counts as 0.
        """
        mask = dataclasses.replace(mask or Mask(), key_lengths=memory.lengths)
        q_BxQxHxD = self._in_heads(query_BxQxE, self.query)
        mask = self._within_extent(mask, q_BxQxHxD, position_BxQ)
        params = self._parameters(query_BxQxE.dtype)
        logits_BxHxQxK = score(q_BxQxHxD, memory.keys, self.config.score, params=params, bias=bias)
        allowed = dense_mask(mask, queries=query_BxQxE.shape[1], keys=memory.values.shape[1])
        weights = normalize(logits_BxHxQxK, allowed, self.config.normalizer, key=key, train=train)
        if self.config.reweighting is Reweighting.GAUSSIAN:
            if mask.center is None or mask.window is None:
                raise ValueError(
                    "reweighting=gaussian needs a mask with window and center (attention.local_predictive)"
                )
            weights = gaussian_reweight(weights, mask.center, sum(mask.window) / 2)
        if soft_BxQ is not None:
            weights = _softened(weights, soft_BxQ)
        context_BxQxHxD = read(weights.values, memory.values)
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
        """The context of one query of every row, and how it was read [R, H, K]; `facts` as of a call.

        Rows are examples x beams: the beams of an example are queries of one attention over its memory. A mask's
        queries are then the beams, so that facts of a query's position do not fit; say `center` or `allowed`, and
        `position_R` where the extent asks for positions.

        Raises:
            ValueError: If the memory's examples do not divide the rows.
        """
        examples = memory.values.shape[0]
        of_rows = {"position_BxQ": position_R, "soft_BxQ": soft_R}
        facts |= {name: by_example(each, examples) for name, each in of_rows.items() if each is not None}
        context_BxQxC, alignment = self(by_example(query_RxE, examples), memory, **facts)
        return as_rows(context_BxQxC), jax.tree.map(queries_as_rows, alignment)

    def _within_extent(self, mask: Mask, q_BxQxHxD: Array, position_BxQ: Array | None) -> Mask:
        """The mask with the window of the extent, around each query's center."""
        batch, queries, heads, _ = q_BxQxHxD.shape
        around = (self.config.half_width, self.config.half_width)
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
        return dataclasses.replace(mask, window=around, center=center_BxHxQ)

    def _parameters(self, dtype: jnp.dtype) -> AttentionParameters:
        return AttentionParameters(score=self.score(dtype))

    def _in_heads(self, x_BxNxE: Array, projection: Linear | None) -> Array:
        """[B, N, H, D]: projected, or the features of x divided among the heads."""
        if projection is not None:
            return projection(x_BxNxE)
        return x_BxNxE.reshape(*x_BxNxE.shape[:2], self.config.heads, -1)


def _softened(weights: NormalizedWeights, soft_BxQ: Bool[Array, "B Q"]) -> NormalizedWeights:
    """Probabilities in place of draws where a query is to read softly (Xu et al. 2015, section 4.1)."""
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


def scan_steps(
    step: Step,
    carry: PyTree,
    inputs: PyTree,
    *,
    mask: Mask,
    key: Key[Array, ""] | None = None,
    capture: Capture | None = None,
) -> tuple[PyTree, PyTree, CapturedAttention | None]:
    """Teacher forcing: a decoder's own `step(carry, input, key) -> (carry, output, Alignment)` over known inputs.

    A step that attends to nothing returns None for the alignment, and nothing may be captured of it.

    `inputs` and the returned outputs are trees of [B, T, ...], the carry is one of [B, ...]; `key` gives each step
    one of its own. `mask` has the lengths of queries (decoder positions) and of keys, absent where nothing is padded:
    a padded position leaves the carry as it was and its output is zero. What `capture` (`capture_for_site` the site)
    asks for comes with a layer axis of 1, as from a scan over layers; only then are the weights of the steps kept.
    """
    in_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inputs)
    count = len(jax.tree.leaves(in_time)[0])
    real_TxB = None if mask.query_lengths is None else real_positions(mask.query_lengths, count).T
    if real_TxB is not None:
        in_time = jax.tree.map(lambda leaf: _where(real_TxB, leaf, jnp.zeros_like(leaf)), in_time)
    in_time = jax.tree.map(lambda leaf: place(leaf, None, "batch", *(None,) * (leaf.ndim - 2)), in_time)
    keys_T = None if key is None else jax.random.split(key, count)

    def body(carry: PyTree, given: tuple[PyTree, Array | None, Array | None]) -> tuple[PyTree, tuple[PyTree, Any]]:
        x, real_B, of_step = given
        after, y, alignment = step(carry, x, of_step)
        if real_B is not None:
            after = jax.tree.map(lambda new, old: _where(real_B, new, old), after, carry)
            y = jax.tree.map(lambda leaf: _where(real_B, leaf, jnp.zeros_like(leaf)), y)
        if capture is None or alignment is None:
            return after, (y, None)
        return after, (y, (alignment.weights, alignment.logits if capture.statistics else None))

    carry, (y_TxB, kept) = jax.lax.scan(body, carry, (in_time, real_TxB, keys_T))
    outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), y_TxB)
    if capture is None:
        return carry, outputs, None
    weights_BxHxTxK, logits_BxHxTxK = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), kept)
    if real_TxB is not None:
        weights_BxHxTxK = jnp.where(real_TxB.T[:, None, :, None], weights_BxHxTxK, 0)
    captured = capture_weights(weights_BxHxTxK, capture, logits=logits_BxHxTxK, mask=mask)
    assert captured is not None
    return carry, outputs, add_layer_axis(captured)


def _where(real: Array, new: Array, old: Array) -> Array:
    """`new` where `real`, which has the leading axes of both, else `old`."""
    return jnp.where(real.reshape(*real.shape, *(1,) * (new.ndim - real.ndim)), new, old)
