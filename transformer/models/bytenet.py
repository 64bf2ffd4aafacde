"""ByteNet (Kalchbrenner et al. 2016): a decoder of dilated convolutions stacked on an encoder of them, no attention."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.attention.rng import check_rate, dropout
from transformer.axes import place
from transformer.config import UserError
from transformer.layers.beams import as_rows, by_example
from transformer.layers.convolution import Convolution1D, Padding, Window
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.initialization import Initialisation, Initialise
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Module, Precision, layer_of, scan, unstacked
from transformer.layers.norm import LayerNorm
from transformer.layers.padding import real_lengths, real_positions, target_lengths
from transformer.models.contract import Aux, Cache, Inputs, Model, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import TRANSLATION, Interface


@dataclasses.dataclass(frozen=True)
class ByteNetConfig:
    """The defaults are the paper's for translation (section 5): 30 blocks a side of d = 800.

    `width` is d: blocks carry 2 d features and convolve d. Each side has so many sets of blocks, whose dilations are
    1, 2, 4 ... `largest_dilation`; `kernel`: the positions that a convolution reads. `length_factor` and
    `length_offset` are a and b of the length a |s| + b to which the encoder unfolds (section 3.2). `embedding_rows`:
    rows of the vocabulary, None for as many as the task has tokens. `dropout` acts on what words are scored from.

    Errors: UserError for sizes below 1, a largest dilation that is no power of two, a factor below 0; ValueError for a
    dropout outside [0, 1).
    """

    width: int = 800
    encoder_sets: int = 6
    decoder_sets: int = 6
    largest_dilation: int = 16
    kernel: int = 3
    length_factor: float = 1.2
    length_offset: int = 0
    embedding_rows: int | None = None
    initialisation: Initialisation = Initialisation.XAVIER
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("width", "encoder_sets", "decoder_sets", "largest_dilation", "kernel"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        if self.largest_dilation & (self.largest_dilation - 1):
            raise UserError(
                f"config.model.largest_dilation={self.largest_dilation} must be a power of two: dilations double from 1"
            )
        for name in ("length_factor", "length_offset"):
            if getattr(self, name) < 0:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 0")
        check_rate("dropout", self.dropout)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Those of a set's blocks: 1, 2, 4 and so on."""
        return tuple(2**power for power in range(self.largest_dilation.bit_length()))

    def unfolded(self, length: int) -> int:
        """The length to which the encoder unfolds over a source of this one: a |s| + b, rounded up."""
        # 1.1 x 50 is a little more than 55 to a computer.
        return math.ceil(round(self.length_factor * length + self.length_offset, 6))


class ResidualBlock(Module):
    """x + W_3 r(conv(r(W_1 r(x)))), r = ReLU of LayerNorm: 2 d features to d, and back (section 3.6 and figure 3)."""

    def __init__(self, config: ByteNetConfig, window: Window, builder: Builder):
        inner, outer = config.width, 2 * config.width
        self.first_norm = LayerNorm(outer, builder=builder)
        self.contract = Linear((("embed", outer),), (("features", inner),), bias=True, builder=builder)
        self.second_norm = LayerNorm(inner, builder=builder)
        self.convolution = Convolution1D(inner, ("embed", inner), window, builder=builder)
        self.third_norm = LayerNorm(inner, builder=builder)
        self.expand = Linear((("features", inner),), (("embed", outer),), bias=True, builder=builder)

    def __call__(self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T F"]:
        """Whole sequences; nothing reads what stands beyond their lengths."""
        convolved = self.convolution(self._before(x_BxTxF), lengths_B)
        return place(x_BxTxF + self._behind(convolved), "batch", "length", None)

    def step(
        self, x_RxF: Float[Array, "R F"], past_RxPxI: Float[Array, "R P I"]
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P I"]]:
        """One more position of every row, and the convolution's inputs that later ones read."""
        convolved, past_RxPxI = self.convolution.step(self._before(x_RxF), past_RxPxI)
        return x_RxF + self._behind(convolved), past_RxPxI

    def _before(self, x: Array) -> Array:
        return jax.nn.relu(self.second_norm(self.contract(jax.nn.relu(self.first_norm(x)))))

    def _behind(self, convolved: Array) -> Array:
        return self.expand(jax.nn.relu(self.third_norm(convolved)))


class ResidualSet(Module):
    """One block for each dilation, the smallest first (section 3.4)."""

    def __init__(self, config: ByteNetConfig, padding: Padding, builder: Builder):
        self.dilations = config.dilations
        for dilation in self.dilations:
            window = Window(config.kernel, dilation=dilation, padding=padding)
            setattr(self, f"dilation_{dilation}", ResidualBlock(config, window, builder))

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The blocks in their order."""
        return tuple(getattr(self, f"dilation_{dilation}") for dilation in self.dilations)

    def __call__(self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T F"]:
        """All blocks, one after another."""
        for block in self.blocks:
            x_BxTxF = block(x_BxTxF, lengths_B)
        return x_BxTxF


# What every block reads of the positions before, set by set: as many as its convolution reaches back.
Past = tuple[tuple[Float[Array, "R _ I"], ...], ...]


class Carry(NamedTuple):
    """What a row carries from step to step: its position, and every block's newest inputs, set by set."""

    position: Int[Array, " R"]
    past: Past


def first_past(sets: Module, weights: Sequence[Any], rows: int, dtype: jax.typing.DTypeLike) -> Past:
    """What the blocks of causal sets read before the first position: zeros."""
    return tuple(
        tuple(block.convolution.initial(rows, dtype) for block in layer_of(sets, of_set).blocks) for of_set in weights
    )


def step_sets(sets: Module, weights: Sequence[Any], x_RxF: Array, past: Past) -> tuple[Float[Array, "R F"], Past]:
    """One more position of every row through all sets, and what their blocks read at later ones."""
    after = []
    for params, of_set in zip(weights, past, strict=True):
        grown = []
        for block, of_block in zip(layer_of(sets, params).blocks, of_set, strict=True):
            x_RxF, of_block = block.step(x_RxF, of_block)
            grown.append(of_block)
        after.append(tuple(grown))
    return x_RxF, tuple(after)


def run_sets(sets: Module, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T F"]:
    """Whole sequences through one set after another."""
    return scan(lambda layer, x, _: (layer[0](x, lengths_B), None), sets, x_BxTxF, None)[0]


class ByteNet(Stateless):
    """Encoder, and decoder on top of it, over one joint vocabulary, whose embedding both share.

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target behind a begin token); padding is the
    token `pad`, at the end only. Outputs: logits [B, T, V]. The decoder's input at a position is the embedding of the
    word before plus the encoder's output of the same position, zeros beyond the last of these (section 3.2; that they
    are added is our reading).
    """

    def __init__(self, config: ByteNetConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("an encoder-decoder needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        builder = builder.with_rule(Initialise(config.initialisation))
        vocabulary, outer = rows_for(interface.vocabularies["joint"], config.embedding_rows), 2 * config.width
        self.embedding = Embedding(vocabulary, outer, builder=builder)
        self.encoder = builder.stack(lambda builder: ResidualSet(config, Padding.SAME, builder), config.encoder_sets)
        self.decoder = builder.stack(lambda builder: ResidualSet(config, Padding.CAUSAL, builder), config.decoder_sets)
        self.readout = Linear((("features", outer),), (("embed", outer),), bias=True, builder=builder)
        self.output = Linear((("embed", outer),), (("vocabulary", vocabulary),), bias=True, builder=builder)

    def encode(self, source_BxS: Int[Array, "B S"]) -> tuple[Float[Array, "B U F"], Int[Array, " B"]]:
        """The representation, zero beyond the length to which each source unfolds, and the sources' lengths.

        Between a source's end and that length the encoder reads zeros in place of words.
        """
        count, lengths_B = source_BxS.shape[1], real_lengths(source_BxS, self.pad)
        # By a table, for floating-point numbers would round some products up.
        unfolded_B = jnp.asarray([self.config.unfolded(length) for length in range(count + 1)])[lengths_B]
        longest = self.config.unfolded(count)
        x_BxUxF = _to_length(self._embedded(source_BxS, lengths_B), max(count, longest))
        x_BxUxF = run_sets(self.encoder, x_BxUxF, jnp.maximum(lengths_B, unfolded_B))[:, :longest]
        return jnp.where(real_positions(unfolded_B, longest)[..., None], x_BxUxF, 0), lengths_B

    def hidden(
        self,
        state: dict,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T F"], Aux]:
        """Teacher forcing: what `logits` scores the words of a known target from."""
        representation_BxUxF, source_lengths_B = self.encode(jnp.asarray(inputs["source"]))
        target_BxT = jnp.asarray(inputs["target"])
        lengths_B = target_lengths(target_BxT, source_lengths_B, self.pad)
        x_BxTxF = self._embedded(target_BxT, lengths_B) + _to_length(representation_BxUxF, target_BxT.shape[1])
        x_BxTxF = run_sets(self.decoder, x_BxTxF, lengths_B)
        return self._read_out(x_BxTxF, key if train else None), Aux({}, {}, state)

    def logits(self, hidden: Float[Array, "*B F"]) -> Float[Array, "*B V"]:
        """The score of every word, in at least float32."""
        logits = self.output(hidden)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def forward(self, state: dict, inputs: Inputs, **options: Any) -> tuple[Float[Array, "B T V"], Aux]:
        """The score of every word at every position of the target."""
        hidden_BxTxF, aux = self.hidden(state, inputs, **options)
        return self.logits(hidden_BxTxF), aux

    def init_cache(self, state: dict, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source once; every row begins with the begin token and with zeros before it."""
        representation_BxUxF, _ = self.encode(jnp.asarray(inputs["source"]))
        rows, weights = beams * len(representation_BxUxF), unstacked(self.decoder, self.config.decoder_sets)
        carry = Carry(jnp.zeros(rows, jnp.int32), first_past(self.decoder, weights, rows, self.dtype))
        return Cache((), carry, representation_BxUxF, weights), jnp.full(rows, self.begin, jnp.int32)

    def step(
        self,
        state: dict,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same blocks over one more word of every row."""
        carry, representation_BxUxF = cache.rows, cache.examples
        position_BxM = by_example(carry.position, len(representation_BxUxF))
        read_BxMxF = jnp.take_along_axis(
            representation_BxUxF, position_BxM[..., None], axis=1, mode="fill", fill_value=0
        )
        x_RxF = self.embedding(tokens_R, self.dtype) + as_rows(read_BxMxF)
        x_RxF, past = step_sets(self.decoder, cache.weights, x_RxF, carry.past)
        cache = cache._replace(rows=Carry(carry.position + 1, past))
        return self.logits(self._read_out(x_RxF, None)), cache, Aux({}, {}, state)

    def _embedded(self, tokens_BxT: Array, lengths_B: Array) -> Array:
        """The words' vectors, zero beyond the lengths (section 3.3)."""
        x_BxTxF = self.embedding(tokens_BxT, self.dtype)
        x_BxTxF = jnp.where(real_positions(lengths_B, tokens_BxT.shape[1])[..., None], x_BxTxF, 0)
        return place(x_BxTxF, "batch", "length", None)

    def _read_out(self, x: Array, key: Key[Array, ""] | None) -> Array:
        return dropout(jax.nn.relu(self.readout(x)), self.config.dropout, key)


def _to_length(x_BxTxF: Array, length: int) -> Array:
    """As many positions: the first of them, or zeros behind the last."""
    more = max(length - x_BxTxF.shape[1], 0)
    return jnp.pad(x_BxTxF[:, :length], ((0, 0), (0, more), (0, 0)))


def build(config: ByteNetConfig, interface: Interface, precision: Precision) -> Model:
    """The model for a task with inputs `source` and `target` and one joint vocabulary; it attends to nothing."""
    return Model(Functional(lambda builder: ByteNet(config, interface, builder), precision), ())


def operations(config: ByteNetConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    (rows, source), target = batch["source"].shape, batch["target"].shape[1]
    outer, of_set = 2 * config.width, len(config.dilations) * (4 + config.kernel) * config.width**2
    scores = outer * (outer + rows_for(vocabularies["joint"], config.embedding_rows))
    of_source = max(source, config.unfolded(source)) * config.encoder_sets * of_set
    return Operations(float(2 * rows * (of_source + target * (config.decoder_sets * of_set + scores))))


FAMILY = Family(ByteNetConfig, build, frozenset({TRANSLATION}), operations)
