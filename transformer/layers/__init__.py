"""Layers: modules that hold the parameters of pure functions. Import every name below from this package."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.layers.attention_cell import (
        Alignment,
        AttentionCell,
        AttentionCellConfig,
        AttentionMemory,
        scan_decoder_steps,
    )
    from transformer.layers.batch_norm import BatchNorm
    from transformer.layers.beam_rows import (
        beam_queries_to_rows,
        flatten_beam_axis,
        repeat_per_beam,
        unflatten_beam_axis,
    )
    from transformer.layers.convolution import Convolution1D, Convolution2D, ConvolutionActivation, ConvolutionWindow
    from transformer.layers.elmo import Elmo, ElmoConfig
    from transformer.layers.embedding import Embedding, LearnedPositions, padded_vocab_size
    from transformer.layers.embedding_and_head import ClassHead, EmbeddingAndHead
    from transformer.layers.feed_forward import Activation, FeedForward
    from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder, Precision, scan_layers
    from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
    from transformer.layers.grid_positions import GridPositionEncoding
    from transformer.layers.image_grid_attention import (
        GridFeatures,
        GridSelfAttention,
        ImageReadout,
        glimpse_site,
        grid_softmax,
        stack_layer_maps,
    )
    from transformer.layers.initialization import (
        Initialization,
        InitializationRule,
        ParameterRole,
        RecurrentInitialization,
        deepnorm,
    )
    from transformer.layers.linear import Linear
    from transformer.layers.lora import LoraConfig
    from transformer.layers.mixture_of_experts import MixtureOfExperts, MixtureOfExpertsConfig
    from transformer.layers.multi_head_attention import MultiHeadAttention
    from transformer.layers.norm import LayerNorm, NormKind, RmsNorm
    from transformer.layers.recurrent import (
        CellKind,
        CellState,
        Direction,
        RecurrentCell,
        RecurrentConfig,
        RecurrentLayer,
        RecurrentStack,
    )
    from transformer.layers.residual import NormPlacement, Residual
    from transformer.layers.sequence_lengths import real_lengths, real_positions, target_lengths
    from transformer.layers.transformer_block import Block, BlockAux, scan_blocks, stack_by_layer
    from transformer.layers.transformer_config import (
        PositionEncoding,
        Projections,
        TransformerConfig,
        block_config_from,
        check_ring_attention,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Activation",
    "Alignment",
    "AttentionCell",
    "AttentionCellConfig",
    "AttentionMemory",
    "BatchNorm",
    "Block",
    "BlockAux",
    "CellKind",
    "CellState",
    "ClassHead",
    "Convolution1D",
    "Convolution2D",
    "ConvolutionActivation",
    "ConvolutionWindow",
    "Direction",
    "Elmo",
    "ElmoConfig",
    "Embedding",
    "EmbeddingAndHead",
    "FeedForward",
    "FunctionalModule",
    "GridEncoder",
    "GridEncoderConfig",
    "GridFeatures",
    "GridPositionEncoding",
    "GridSelfAttention",
    "ImageReadout",
    "Initialization",
    "InitializationRule",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LoraConfig",
    "MixtureOfExperts",
    "MixtureOfExpertsConfig",
    "Module",
    "MultiHeadAttention",
    "NormKind",
    "NormPlacement",
    "ParameterBuilder",
    "ParameterRole",
    "PositionEncoding",
    "Precision",
    "Projections",
    "RecurrentCell",
    "RecurrentConfig",
    "RecurrentInitialization",
    "RecurrentLayer",
    "RecurrentStack",
    "Residual",
    "RmsNorm",
    "TransformerConfig",
    "beam_queries_to_rows",
    "block_config_from",
    "check_ring_attention",
    "deepnorm",
    "flatten_beam_axis",
    "glimpse_site",
    "grid_softmax",
    "padded_vocab_size",
    "real_lengths",
    "real_positions",
    "repeat_per_beam",
    "scan_blocks",
    "scan_decoder_steps",
    "scan_layers",
    "stack_by_layer",
    "stack_layer_maps",
    "target_lengths",
    "unflatten_beam_axis",
]
