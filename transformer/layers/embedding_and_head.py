"""The embeddings and the vocabulary head of a Transformer over tokens."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.inverted_dropout import dropout
from transformer.attention.logit_modification import Softcap
from transformer.attention.positions import PositionCombination, sinusoidal_positions, tensor2tensor_positions
from transformer.layers.embedding import Embedding, LearnedPositions
from transformer.layers.fine_tuning_heads import last_state
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear, logits_product
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.sequence_lengths import check_num_positions
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig
from transformer.logical_axes import with_logical_constraint


class OutputBias(Module):
    """A bias on each token's logit."""

    def __init__(self, size: int, *, builder: ParameterBuilder):
        self.bias = builder.parameter(jax.nn.initializers.zeros, (size,), ("vocabulary",))

    def __call__(self, logits: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """Add the bias to the logits."""
        return logits + jax.lax.broadcast_to_rank(self.bias[...].astype(logits.dtype), logits.ndim)


class PositionsAndNorm(NamedTuple):
    """What follows the vectors of tokens: a table of positions and a norm, each None if there is none."""

    positions: LearnedPositions | None
    norm: LayerNorm | RmsNorm | None


class EmbeddingAndHead(Module):
    """Embeddings and vocabulary head; model families inherit from it and build their blocks in between.

    Args:
        config: The configuration of the Transformer.
        vocabulary: Number of tokens.
        types: Number of token types, such as sentence A and B; 0 for none.
        offset: The number of the first position; a table of learned ones has `max_length` + `offset` rows (RoBERTa).
        embedding_width: Features of the embeddings, which a linear layer maps to those of the model (Lan et al. 2020,
            section 3.1); None means as many, without such a layer.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocabulary: int,
        *,
        types: int = 0,
        offset: int = 0,
        embedding_width: int | None = None,
        builder: ParameterBuilder,
    ):
        self.config, self.dtype, self.offset = config, builder.dtype, offset
        self.max_length: int | None = config.max_length
        self.embedding_width = width = config.width if embedding_width is None else embedding_width
        self.embedding = Embedding(vocabulary, width, builder=builder)
        self.positions, self.embedding_norm = self.make_positions_and_norm(builder)
        concatenated = config.position_join is PositionCombination.CONCATENATED
        both = (("features", 2 * width),)
        self.join = Linear(both, (("embed", width),), bias=False, builder=builder) if concatenated else None
        self.types = Embedding(types, width, role=ParameterRole.POSITIONS, builder=builder) if types else None
        self.embedding_projection = (
            None
            if embedding_width is None
            else Linear(
                (("features", width),),
                (("embed", config.width),),
                bias=config.biases.in_feed_forward,
                builder=builder,
            )
        )
        model, tokens = (("embed", width),), (("vocabulary", vocabulary),)
        scores = functools.partial(Linear, model, tokens, bias=False, role=ParameterRole.LOGITS, builder=builder)
        self.unembedding = None if config.tie_embeddings else scores()
        self.output_bias = OutputBias(vocabulary, builder=builder) if config.output_bias else None

    def make_positions_and_norm(self, builder: ParameterBuilder) -> PositionsAndNorm:
        """Build the table of learned positions and the norm behind the embeddings that the config asks for."""
        config, rows = self.config, self.config.max_length + self.offset
        learned = config.positions is PositionEncoding.LEARNED
        return PositionsAndNorm(
            LearnedPositions(rows, self.embedding_width, builder=builder) if learned else None,
            config.make_norm_over(self.embedding_width, builder, bias=config.resolved_norm_bias)
            if config.embedding_norm
            else None,
        )

    def embed(
        self,
        tokens_BxT: Int[Array, "B T"],
        positions_BxT: Int[Array, "#B T"],
        key: Key[Array, ""] | None,
        types_BxT: Int[Array, "B T"] | None = None,
        *,
        tables: PositionsAndNorm | None = None,
    ) -> Float[Array, "B T E"]:
        """Embed tokens, with dropout on the sum of token, position and type vectors (Vaswani et al. 2017, section 5.4).

        Args:
            tokens_BxT: The tokens.
            positions_BxT: Their positions.
            key: Random key for dropout; None applies none.
            types_BxT: Their types; None means type 0.
            tables: A table of positions and a norm in place of the model's own.

        Returns:
            The embeddings, in the compute type.
        """
        x_BxTxF = self.embedding(tokens_BxT, self.dtype)
        factor = self.config.embedding_scale.factor_for(self.config.resolved_base_width)
        if (scale := factor * self.config.embedding_multiplier) != 1:
            x_BxTxF = x_BxTxF * jnp.asarray(scale, self.dtype)
        x_BxTxF = checkpoint_name(x_BxTxF, "token_embeddings")
        return self.add_positions(x_BxTxF, positions_BxT, key, types_BxT, tables=tables)

    def add_positions(
        self,
        x_BxTxF: Float[Array, "B T F"],
        positions_BxT: Int[Array, "#B T"],
        key: Key[Array, ""] | None,
        types_BxT: Int[Array, "B T"] | None = None,
        *,
        tables: PositionsAndNorm | None = None,
    ) -> Float[Array, "B T E"]:
        """As `embed`, but for vectors that do not come from tokens, such as audio features.

        Raises:
            UserError: If the model has fewer positions.
        """
        table, norm = (self.positions, self.embedding_norm) if tables is None else tables
        width, numbers_BxT = self.embedding_width, positions_BxT + self.offset
        check_num_positions(x_BxTxF.shape[1], self.max_length, "a sequence")
        match self.config.positions:
            case PositionEncoding.LEARNED:
                assert table is not None
                x_BxTxF = self._add_positions(x_BxTxF, table(numbers_BxT))
            case PositionEncoding.SINUSOIDAL:
                x_BxTxF = self._add_positions(x_BxTxF, sinusoidal_positions(numbers_BxT, width))
            case PositionEncoding.SINUSOIDAL_HALVES:
                x_BxTxF = self._add_positions(x_BxTxF, sinusoidal_positions(numbers_BxT, width, halves=True))
            case PositionEncoding.SINUSOIDAL_TENSOR2TENSOR:
                x_BxTxF = self._add_positions(x_BxTxF, tensor2tensor_positions(numbers_BxT, width))
            case _:
                pass
        if self.types is not None:
            types_BxT = jnp.zeros(x_BxTxF.shape[:2], jnp.int32) if types_BxT is None else types_BxT
            x_BxTxF = x_BxTxF + self.types(types_BxT, self.dtype)
        if norm is not None:
            with jax.named_scope("embedding_norm"):
                x_BxTxF = norm(x_BxTxF)
        x_BxTxF = dropout(with_logical_constraint(x_BxTxF, "batch", "length", None), self.config.dropout, key)
        return x_BxTxF if self.embedding_projection is None else self.embedding_projection(x_BxTxF)

    def _add_positions(self, x_BxTxF: Float[Array, "B T F"], p_BxTxF: Float[Array, "#B T F"]) -> Float[Array, "B T F"]:
        """Combine tokens with their positions as `PositionCombination` says."""
        p_BxTxF = checkpoint_name(p_BxTxF, "position_embeddings")
        if self.join is None:
            return x_BxTxF + p_BxTxF.astype(self.dtype)
        p_BxTxF = jnp.broadcast_to(p_BxTxF, x_BxTxF.shape).astype(self.dtype)
        return self.join(jnp.concatenate([x_BxTxF, p_BxTxF], axis=-1))

    def output_matrix(self, dtype: jax.typing.DTypeLike) -> Float[Array, "E V"]:
        """The matrix that computes logits, in `dtype`.

        A matrix-vector product with the transposed tied table is eight times slower on a CPU, so for many steps it is
        transposed once.
        """
        if self.unembedding is None:
            return self.embedding.output_matrix(dtype)
        return jnp.asarray(self.unembedding.kernel[...], dtype)

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logit of every token, in float32 or wider."""
        return self.logits_from_matrix(self.output_matrix(x.dtype), x)

    def logits_from_matrix(self, scoring_ExV: Float[Array, "E V"], x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the same logits with the matrix from `output_matrix`."""
        scale = self.config.logit_scale.factor_for(self.config.resolved_base_width) / self.config.width_ratio
        if scale != 1:
            x = x * jnp.asarray(scale, x.dtype)
        logits = logits_product(x, scoring_ExV.astype(x.dtype), self.embedding.logits_dtype)
        logits = logits if self.output_bias is None else self.output_bias(logits)
        if self.config.logit_multiplier != 1:
            logits = logits * self.config.logit_multiplier
        if self.config.logit_softcap is not None:
            logits = Softcap(self.config.logit_softcap)(logits)
        logits = with_logical_constraint(logits, "batch", "length", "vocabulary") if logits.ndim == 3 else logits
        return checkpoint_name(logits, "logits")


class ClassHead(Module):
    """Classify a text by logits = h_m W, h_m the state at the last of m tokens (Radford et al. 2018, equation 3).

    Args:
        width: Features of a state.
        classes: Number of classes.
        rate: Dropout rate on h_m.
        builder: Makes the parameters.
    """

    def __init__(self, width: int, classes: int, *, rate: float, builder: ParameterBuilder):
        self.rate = rate
        axes = (("embed", width),), (("classes", classes),)
        self.output = Linear(*axes, bias=False, role=ParameterRole.LOGITS, builder=builder)

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        lengths_B: Int[Array, " B"],
        key: Key[Array, ""] | None,
    ) -> Float[Array, "B C"]:
        """Compute the logits, in float32 or wider; those of an empty text are meaningless."""
        return self.output.logits(dropout(last_state(x_BxTxE, lengths_B), self.rate, key))
