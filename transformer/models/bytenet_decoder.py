"""ByteNet's decoder alone: a language model of dilated convolutions (Kalchbrenner et al. 2016, sections 3.6 and 4)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.attention.rng import dropout
from transformer.config import UserError
from transformer.layers.beams import repeat_rows
from transformer.layers.convolution import Padding
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.initialization import Initialisation, Initialise
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Precision, unstacked
from transformer.models.bytenet import ByteNetConfig, ResidualSet, first_past, run_sets, step_sets
from transformer.models.contract import Aux, Cache, Inputs, Model, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import CONTINUATION, Interface


@dataclasses.dataclass(frozen=True)
class ByteNetDecoderConfig:
    """As those of `bytenet`: blocks carry 2 `width` features and convolve `width`; the defaults are section 4's.

    A position is scored from 1 + `sets` (`kernel` - 1) (2 `largest_dilation` - 1) words.

    Errors: UserError as of `bytenet`.
    """

    width: int = 512
    sets: int = 6
    largest_dilation: int = 16
    kernel: int = 3
    embedding_rows: int | None = None
    initialisation: Initialisation = Initialisation.XAVIER
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.sets < 1:
            raise UserError(f"config.model.sets={self.sets} must be at least 1")
        self.blocks  # noqa: B018  checks what it is made of

    @property
    def blocks(self) -> ByteNetConfig:
        """What the residual blocks are."""
        return ByteNetConfig(
            width=self.width,
            decoder_sets=self.sets,
            largest_dilation=self.largest_dilation,
            kernel=self.kernel,
            dropout=self.dropout,
        )


class ByteNetDecoder(Stateless):
    """Embedding, causal sets of residual blocks, and the score of the token that follows each.

    inputs: `tokens` [B, T]; `lengths` [B], beyond which an example is padding (absent: none is). Outputs: logits
    [B, T, V].
    """

    def __init__(self, config: ByteNetDecoderConfig, interface: Interface, builder: Builder):
        self.config, self.dtype = config, builder.dtype
        builder = builder.with_rule(Initialise(config.initialisation))
        vocabulary, outer = rows_for(interface.vocabularies["tokens"], config.embedding_rows), 2 * config.width
        self.embedding = Embedding(vocabulary, outer, builder=builder)
        self.decoder = builder.stack(lambda builder: ResidualSet(config.blocks, Padding.CAUSAL, builder), config.sets)
        self.readout = Linear((("features", outer),), (("embed", outer),), bias=True, builder=builder)
        self.output = Linear((("embed", outer),), (("vocabulary", vocabulary),), bias=True, builder=builder)

    def hidden(
        self,
        state: dict,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T F"], Aux]:
        """What `logits` scores the tokens from.

        Errors: UserError for packed rows, whose texts a convolution would read across.
        """
        if "segments" in inputs:
            raise UserError(
                "config.task.batching=packed puts several texts into a row, and a convolution would read from one into "
                "the next: say config.task.batching=windows or padded"
            )
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, count = tokens_BxT.shape
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else jnp.full(batch, count, jnp.int32)
        x_BxTxF = run_sets(self.decoder, self.embedding(tokens_BxT, self.dtype), lengths_B)
        return self._read_out(x_BxTxF, key if train else None), Aux({}, {}, state)

    def logits(self, hidden: Float[Array, "*B F"]) -> Float[Array, "*B V"]:
        """The score of every token, in at least float32."""
        logits = self.output(hidden)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def forward(self, state: dict, inputs: Inputs, **options: Any) -> tuple[Float[Array, "B T V"], Aux]:
        """The logits of every position."""
        hidden_BxTxF, aux = self.hidden(state, inputs, **options)
        return self.logits(hidden_BxTxF), aux

    def init_cache(self, state: dict, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Read the prompts but for each one's last token, which the first step reads."""
        tokens_BxP = jnp.asarray(inputs["tokens"])
        examples, width = tokens_BxP.shape
        last_B = jnp.asarray(inputs.get("lengths", jnp.full(examples, width, jnp.int32))) - 1
        weights = unstacked(self.decoder, self.config.sets)

        def read(past: Any, given: tuple[Array, Array]) -> tuple[Any, None]:
            tokens_B, place = given
            _, grown = step_sets(self.decoder, weights, self.embedding(tokens_B, self.dtype), past)
            known_Bx1x1 = (place < last_B)[:, None, None]
            return jax.tree.map(lambda new, old: jnp.where(known_Bx1x1, new, old), grown, past), None

        past, _ = jax.lax.scan(
            read, first_past(self.decoder, weights, examples, self.dtype), (tokens_BxP.T, jnp.arange(width))
        )
        first_B = jnp.take_along_axis(tokens_BxP, last_B[:, None], axis=1)[:, 0]
        return Cache((), repeat_rows(past, beams), (), weights), repeat_rows(first_B, beams)

    def step(
        self,
        state: dict,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The logits behind each row's new token."""
        x_RxF, past = step_sets(self.decoder, cache.weights, self.embedding(tokens_R, self.dtype), cache.rows)
        return self.logits(self._read_out(x_RxF, None)), cache._replace(rows=past), Aux({}, {}, state)

    def _read_out(self, x: Array, key: Key[Array, ""] | None) -> Array:
        return dropout(jax.nn.relu(self.readout(x)), self.config.dropout, key)


def build(config: ByteNetDecoderConfig, interface: Interface, precision: Precision) -> Model:
    """The model for a task with inputs `tokens`; it attends to nothing."""
    return Model(Functional(lambda builder: ByteNetDecoder(config, interface, builder), precision), ())


def operations(config: ByteNetDecoderConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass, 2 for each multiplication and addition."""
    rows, length = batch["tokens"].shape
    outer, of_set = 2 * config.width, len(config.blocks.dilations) * (4 + config.kernel) * config.width**2
    scores = outer * (outer + rows_for(vocabularies["tokens"], config.embedding_rows))
    return Operations(float(2 * rows * length * (config.sets * of_set + scores)))


FAMILY = Family(ByteNetDecoderConfig, build, frozenset({CONTINUATION}), operations)
