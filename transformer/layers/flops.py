"""Operations of the Transformer's layers by formula: a multiplication and an addition count as two.

Only products of matrices are counted; norms, activations, softmax and sums are left out. Attention is counted as the
dense path computes it: the whole square of queries and keys, whatever causality, windows, segments or padding hide.
"""

from transformer.attention.scores import SCORES
from transformer.layers.lora import Projection
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import PositionJoin, Remat, TransformerConfig


def score_operations(config: TransformerConfig, vocabulary: int) -> int:
    """The vocabulary's scores at one position, by the embedding or by a matrix of their own."""
    return 2 * config.width * vocabulary


def embedding_operations(config: TransformerConfig) -> int:
    """What joins a token with its position: nothing where they are added."""
    return 4 * config.width**2 if config.position_join is PositionJoin.CONCATENATED else 0


def stack_operations(
    config: TransformerConfig, layers: int, rows: int, length: int, source: int = 0
) -> tuple[int, int]:
    """Of a stack of so many layers: a forward pass, and what its backward pass computes a second time.

    The layers also attend to `source` positions unless there are none.
    """
    forward = recomputed = 0
    period = len(config.period)
    with_experts = config.experts.layers(period)
    for number in range(period):
        experts, last = number in with_experts, number == period - 1
        of_cross = rows * cross_operations(config, length, source) if source else 0
        forward += layer_operations(config, rows, length, experts) + of_cross
        recomputed += recomputed_operations(config, rows, length, source, experts=experts, last=last)
    return layers // period * forward, layers // period * recomputed


def layer_operations(config: TransformerConfig, rows: int, length: int, experts: bool = False) -> int:
    """Self-attention and feed-forward network of one layer.

    At every position 4 E H D for queries and output, 4 E G D for keys and values of G heads, and 4 E F for the
    feed-forward network, 6 E F where it is gated; of a layer with X experts, k times that and 4 E X for the two maps
    that choose the k. Rows that stay empty in an expert's room, and turns that an overfull one computes again, are
    left out. With LoRA every map of a to b features has 2 r (a + b) more.
    """
    projections = 4 * config.width * config.depth * (config.heads + config.groups) + _low_ranks(config, *Projection)
    feed_forward = _networks(config, experts) + (_router(config) if experts else 0)
    relative, once = config.positions.scheme.operations(config.sizes(), length, length)
    core = _attention(config, length, length) + relative
    return rows * (length * (projections + feed_forward) + core) + once


def _networks(config: TransformerConfig, experts: bool) -> int:
    """The feed-forward networks that one position uses."""
    one = (6 if config.activation.gated else 4) * config.width * config.feed_forward
    return config.experts.chosen * one if experts else one


def _router(config: TransformerConfig) -> int:
    return 4 * config.width * config.experts.count


def cross_operations(config: TransformerConfig, queries: int, keys: int) -> int:
    """Attention of one row's target over its source: queries and output there, keys and values here."""
    of_query, of_key = 4 * config.width * config.depth * config.heads, 4 * config.width * config.depth * config.groups
    of_query += _low_ranks(config, Projection.QUERY, Projection.OUTPUT)
    of_key += _low_ranks(config, Projection.KEY, Projection.VALUE)
    return queries * of_query + keys * of_key + _attention(config, queries, keys)


def memory_operations(config: TransformerConfig, rows: int, length: int, memory: int) -> int:
    """What one layer's self-attention costs more where the keys of `memory` positions stand before those of a row."""
    scheme, sizes = config.positions.scheme, config.sizes()
    (relative, once), (alone, once_alone) = (scheme.operations(sizes, length, length + more) for more in (memory, 0))
    attended, by_itself = (cross_operations(config, length, length + more) for more in (memory, 0))
    return rows * (attended - by_itself + relative - alone) + once - once_alone


def network_operations(config: TransformerConfig) -> int:
    """A feed-forward network at one position."""
    return _networks(config, experts=False) + _low_ranks(config, Projection.FEED_FORWARD)


def _low_ranks(config: TransformerConfig, *projections: Projection) -> int:
    """LoRA's two products at one position, beside those of these projections that have it."""
    queries, keys = config.heads * config.depth, config.groups * config.depth
    sums = {
        Projection.QUERY: config.width + queries,
        Projection.KEY: config.width + keys,
        Projection.VALUE: config.width + keys,
        Projection.OUTPUT: queries + config.width,
        Projection.FEED_FORWARD: (3 if config.activation.gated else 2) * (config.width + config.feed_forward),
    }
    return 2 * config.lora.rank * sum(sums[each] for each in projections if each in config.lora.where)


def _attention(config: TransformerConfig, queries: int, keys: int) -> int:
    """Scores and weighted sums of one row: 4 Q K H D, and a matrix of D^2 for each side that the score multiplies."""
    core = 4 * queries * keys * config.heads * config.depth
    counts = {"queries": queries, "keys": keys}
    multiplied = sum(counts[side] for side in SCORES[config.score].matrices)
    return core + 2 * config.heads * config.depth**2 * multiplied


def recomputed_operations(
    config: TransformerConfig, rows: int, length: int, source: int = 0, *, experts: bool = False, last: bool = True
) -> int:
    """What the backward pass of one layer computes a second time, by `config.remat`.

    full: the layer's forward pass; attention: the same but for the weighted sums; dots: attention's scores and
    weighted sums, and the products of experts, which have a batch axis. Where nothing but a sum follows the
    feed-forward network (pre, parallel) and the layer is the `last` of its period, its last product is not needed
    again, nor in a parallel layer attention's; of experts it is, by the gradient of their gates. What fused kernels of
    attention compute again by themselves is left out. The layer also attends to `source` positions unless there are
    none.
    """
    relative, _ = config.positions.scheme.operations(config.sizes(), length, length)
    core = rows * (_attention(config, length, length) + relative)
    whole = layer_operations(config, rows, length, experts)
    sums = 2 * rows * length * length * config.heads * config.depth
    if source:
        core += rows * _attention(config, length, source)
        whole += rows * cross_operations(config, length, source)
        sums += 2 * rows * length * source * config.heads * config.depth
    if experts:
        core += rows * length * _networks(config, experts)
    if last and config.norm_placement in (NormPlacement.PRE, NormPlacement.PARALLEL) and not experts:
        whole -= rows * length * 2 * config.width * config.feed_forward
    if last and config.norm_placement is NormPlacement.PARALLEL:
        whole -= rows * length * 2 * config.width * config.heads * config.depth
    return {Remat.NONE: 0, Remat.DOTS: core, Remat.ATTENTION: whole - sums, Remat.FULL: whole}[config.remat]
