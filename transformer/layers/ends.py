"""The two ends of a Transformer over tokens: tokens to vectors, and vectors to the score of every token."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.drop import dropout
from transformer.attention.waves import sinusoidal
from transformer.axes import place
from transformer.layers.embedding import Embedding, LearnedPositions
from transformer.layers.initialisation import Initialise, Role
from transformer.layers.linear import Linear
from transformer.layers.module import Keys, Module, Parameter
from transformer.layers.transformer_config import Positions, TransformerConfig


class Bias(Module):
    """One number for each token, added to its logit."""

    def __init__(self, size: int, *, parameter: Parameter, keys: Keys):
        self.bias = parameter(keys, jax.nn.initializers.zeros, (size,), ("vocabulary",))

    def __call__(self, logits: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """The logits with the bias."""
        return logits + self.bias[...].astype(logits.dtype)


class TokenEnds(Module):
    """Embeddings and vocabulary head, which a family inherits and builds its blocks between.

    `positions` tables have `max_length` + `offset` rows: the first `offset` are never read by a token (RoBERTa).
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocabulary: int,
        *,
        types: int = 0,
        offset: int = 0,
        dtype: jnp.dtype,
        initialise: Initialise,
        parameter: Parameter,
        keys: Keys,
    ):
        self.config, self.dtype, self.offset = config, dtype, offset
        width = config.width

        def table(role: Role, rows: int, kind: Callable[..., Any]) -> Any:
            return kind(rows, width, initializer=initialise(role, rows, width), parameter=parameter, keys=keys)

        self.embedding = table(Role.EMBEDDING, vocabulary, Embedding)
        learned = config.positions is Positions.LEARNED
        self.positions = table(Role.POSITIONS, config.max_length + offset, LearnedPositions) if learned else None
        self.types = table(Role.POSITIONS, types, Embedding) if types else None
        self.embedding_norm = config.make_norm(parameter, keys) if config.embedding_norm else None
        unembedding = functools.partial(initialise, Role.DENSE)
        model, tokens = (("embed", width),), (("vocabulary", vocabulary),)
        self.unembedding = (
            None
            if config.tied
            else Linear(model, tokens, bias=False, initialise=unembedding, parameter=parameter, keys=keys)
        )
        self.output_bias = Bias(vocabulary, parameter=parameter, keys=keys) if config.output_bias else None

    def embed(
        self,
        tokens_BxT: Int[Array, "B T"],
        positions_BxT: Int[Array, "#B T"],
        key: Key[Array, ""] | None,
        types_BxT: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T E"]:
        """Dropout over the sum of the embeddings of token, position and type (Vaswani et al. 2017, section 5.4)."""
        width = self.config.width
        x_BxTxE = self.embedding(tokens_BxT, self.dtype)
        if (scale := self.config.embedding_scale.factor(width)) != 1:
            x_BxTxE = x_BxTxE * jnp.asarray(scale, self.dtype)
        match self.config.positions:
            case Positions.LEARNED:
                assert self.positions is not None
                x_BxTxE = x_BxTxE + self.positions(positions_BxT + self.offset).astype(self.dtype)
            case Positions.SINUSOIDAL:
                x_BxTxE = x_BxTxE + sinusoidal(positions_BxT, width).astype(self.dtype)
            case Positions.SINUSOIDAL_HALVES:
                x_BxTxE = x_BxTxE + sinusoidal(positions_BxT, width, halves=True).astype(self.dtype)
            case _:
                pass
        if self.types is not None:
            types_BxT = jnp.zeros_like(tokens_BxT) if types_BxT is None else types_BxT
            x_BxTxE = x_BxTxE + self.types(types_BxT, self.dtype)
        if self.embedding_norm is not None:
            x_BxTxE = self.embedding_norm(x_BxTxE)
        return dropout(place(x_BxTxE, "batch", "length", None), self.config.dropout, key)

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every token, in at least float32."""
        if (scale := self.config.logit_scale.factor(self.config.width)) != 1:
            x = x * jnp.asarray(scale, x.dtype)
        if self.unembedding is None:
            logits = self.embedding.logits(x)
        else:
            at_least_float32 = jnp.promote_types(x.dtype, jnp.float32)
            kernel = self.unembedding.kernel[...].astype(x.dtype)
            logits = jnp.einsum("...e,ev->...v", x, kernel, preferred_element_type=at_least_float32)
        logits = logits if self.output_bias is None else self.output_bias(logits)
        return place(logits, "batch", "length", "vocabulary") if logits.ndim == 3 else logits
