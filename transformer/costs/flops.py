"""Floating-point operations by formula: a multiplication and an addition count as two.

Only products of matrices are counted; norms, activations, softmax and sums are left out. Attention is counted as the
dense path computes it: the whole square of queries and keys, whatever causality, windows, segments or padding hide.
What rematerialisation computes again is no part of a step's operations; `recomputed_flops` counts it by itself, for the
time that it takes.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.parameters import Score
from transformer.layers.block_config import BlockConfig, Positions, Remat
from transformer.layers.residual import NormPlacement
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, Head
from transformer.models.encoder_decoder import EncoderDecoderConfig

_HIDDEN_LAYER_SCORES = frozenset({Score.ADDITIVE, Score.CONCAT, Score.MLP})


def training_flops(config: BlockConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> float:
    """One training step over a batch of arrays or their shapes, padding included: backward costs twice forward.

    Errors: TypeError for a config of no family that has a formula.
    """
    return 3 * forward_flops(config, batch, vocabularies)


def training_flops_a_token(config: BlockConfig, context: int, vocabulary: int) -> float:
    """What one more row of `context` positions adds to a training step, divided by `context`.

    6 N + 12 L H D T for N weights that meet every token, L layers, H heads of depth D and the context T (Chowdhery et
    al. 2022, appendix B). An encoder-decoder's row is a source and a target of that length, and its token a pair of
    both. What a batch computes once, Transformer-XL's projection of distances, is left out.
    """

    def step(rows: int) -> float:
        tokens = jax.ShapeDtypeStruct((rows, context), jnp.int32)
        batch = {"tokens": tokens, "source": tokens, "target": tokens}
        return training_flops(config, batch, {"tokens": vocabulary, "joint": vocabulary})

    return (step(2) - step(1)) / context


def recomputed_flops(config: BlockConfig, batch: Mapping[str, Any]) -> float:
    """The products that the backward pass of one step computes a second time, by `config.remat`.

    full: every layer's forward pass; attention: the same but for the weighted sums; dots: attention's scores and
    weighted sums, which have a batch axis. Where nothing but a sum follows the feed-forward network (pre, parallel),
    its last product is not needed again, nor in a parallel layer attention's. What fused kernels of attention compute
    again by themselves is left out.

    Errors: TypeError for a config of no family that has a formula.
    """
    match config:
        case DecoderConfig() | EncoderConfig():
            rows, length = batch["tokens"].shape
            layers = [(config.layers, rows, length, 0)]
        case EncoderDecoderConfig():
            rows, source = batch["source"].shape
            target = batch["target"].shape[1]
            layers = [(config.encoder_layers, rows, source, 0), (config.decoder_layers, rows, target, source)]
        case _:
            raise TypeError(f"{type(config).__name__} has no formula for its operations")
    return float(sum(count * _again(config, *sizes) for count, *sizes in layers))


def _again(config: BlockConfig, rows: int, length: int, source: int) -> int:
    """Of one layer, which also attends to `source` positions unless there are none."""
    core = rows * (_attention(config, length, length) + _relative(config, length))
    whole = _layer(config, rows, length)
    sums = 2 * rows * length * length * config.heads * config.depth
    if source:
        core += rows * _attention(config, length, source)
        whole += rows * _cross(config, length, source)
        sums += 2 * rows * length * source * config.heads * config.depth
    if config.norm_placement in (NormPlacement.PRE, NormPlacement.PARALLEL):
        whole -= rows * length * 2 * config.width * config.feed_forward
    if config.norm_placement is NormPlacement.PARALLEL:
        whole -= rows * length * 2 * config.width * config.heads * config.depth
    return {Remat.NONE: 0, Remat.DOTS: core, Remat.ATTENTION: whole - sums, Remat.FULL: whole}[config.remat]


def forward_flops(config: BlockConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> float:
    """The matrix products of one forward pass, with every position scored against the whole vocabulary.

    Errors: TypeError for a config of no family that has a formula.
    """
    match config:
        case DecoderConfig():
            rows, length = batch["tokens"].shape
            layers = config.layers * _layer(config, rows, length)
            return float(layers + rows * length * _scores(config, vocabularies["tokens"]))
        case EncoderConfig():
            rows, length = batch["tokens"].shape
            layers = config.layers * _layer(config, rows, length)
            square = 2 * config.width**2
            head = square + _scores(config, vocabularies["tokens"]) if config.head is Head.MASKED else 0
            return float(layers + rows * (length * head + (square if config.pooler else 0)))
        case EncoderDecoderConfig():
            rows, source = batch["source"].shape
            target = batch["target"].shape[1]
            encoder = config.encoder_layers * _layer(config, rows, source)
            decoder = _layer(config, rows, target) + rows * _cross(config, target, source)
            output = rows * target * _scores(config, vocabularies["joint"])
            return float(encoder + config.decoder_layers * decoder + output)
        case _:
            raise TypeError(f"{type(config).__name__} has no formula for its operations")


def _scores(config: BlockConfig, vocabulary: int) -> int:
    """The vocabulary's scores at one position, by the embedding or by a matrix of their own."""
    return 2 * config.width * vocabulary


def _layer(config: BlockConfig, rows: int, length: int) -> int:
    """Self-attention and feed-forward network of one layer.

    At every position 4 E H D for queries and output, 4 E G D for keys and values of G heads, and 4 E F for the
    feed-forward network, 6 E F where it is gated.
    """
    projections = 4 * config.width * config.depth * (config.heads + config.groups)
    feed_forward = (6 if config.activation.gated else 4) * config.width * config.feed_forward
    core = _attention(config, length, length) + _relative(config, length)
    shared = 0
    if config.positions is Positions.TRANSFORMER_XL:
        # The waves of the 2 T - 1 distances are projected once for all rows.
        shared = 2 * (2 * length - 1) * config.width * config.heads * config.depth
    return rows * (length * (projections + feed_forward) + core) + shared


def _cross(config: BlockConfig, queries: int, keys: int) -> int:
    """Attention of one row's target over its source: queries and output there, keys and values here."""
    of_query, of_key = 4 * config.width * config.depth * config.heads, 4 * config.width * config.depth * config.groups
    return queries * of_query + keys * of_key + _attention(config, queries, keys)


def _attention(config: BlockConfig, queries: int, keys: int) -> int:
    """Scores and weighted sums of one row: 4 Q K H D, and what a score with parameters adds.

    A general score maps every key by a matrix of D^2; one with a hidden layer maps every query too.
    """
    core = 4 * queries * keys * config.heads * config.depth
    matrices = 2 * config.heads * config.depth**2
    if config.score is Score.GENERAL:
        return core + keys * matrices
    return core + (queries + keys) * matrices if config.score in _HIDDEN_LAYER_SCORES else core


def _relative(config: BlockConfig, length: int) -> int:
    """The products with relative positions in one row's self-attention: Shaw's both tables, Transformer-XL's keys."""
    match config.positions:
        case Positions.SHAW:
            return 2 * length * (2 * config.furthest + 1) * config.heads * config.depth * 2
        case Positions.TRANSFORMER_XL:
            return 2 * length * (2 * length - 1) * config.heads * config.depth
        case _:
            return 0
