"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import dataclasses
import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, Captured
from transformer.attention.masks import Mask
from transformer.attention.positions import sinusoidal
from transformer.attention.scores import Score
from transformer.attention.sites import Axis, Site
from transformer.attention.spec import AttentionSpec, Backend
from transformer.config import UserError
from transformer.layers.attention import MultiHeadAttention, write_cache
from transformer.layers.dropout import dropout
from transformer.layers.embedding import Embedding, LearnedPositions
from transformer.layers.feed_forward import FeedForward
from transformer.layers.module import Functional, Keys, Module, Parameter, scan, stack
from transformer.layers.norm import LayerNorm
from transformer.layers.residual import NormPlacement, Residual
from transformer.models.contract import Aux, Cache, Inputs, Interface, Model, Precision

Normaliser = Callable[[Array], Array]

ENCODER_SELF, DECODER_SELF, DECODER_CROSS = "encoder/self", "decoder/self", "decoder/cross"


class Positions(enum.Enum):
    """How positions enter the embeddings: fixed waves, or a trained table (table 3, row E)."""

    SINUSOIDAL = "sinusoidal"
    LEARNED = "learned"


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """The defaults are Transformer base (Vaswani et al. 2017, table 3).

    `score` and `backend` are those of every attention (transformer.attention.spec); `longest` is the greatest number
    of positions of a source or a target; `attention_bias` gives the four
    projections of each attention a bias; `unroll` compiles so many layers in line, which speeds up small
    models and lengthens compilation.
    """

    encoder_layers: int = 6
    decoder_layers: int = 6
    width: int = 512
    heads: int = 8
    feed_forward: int = 2048
    dropout: float = 0.1
    norm_placement: NormPlacement = NormPlacement.POST
    positions: Positions = Positions.SINUSOIDAL
    longest: int = 256
    score: Score = Score.SCALED_DOT
    backend: Backend = Backend.AUTO
    attention_bias: bool = False
    unroll: int = 1

    def __post_init__(self) -> None:
        for name in (
            "encoder_layers",
            "decoder_layers",
            "width",
            "heads",
            "feed_forward",
            "longest",
            "unroll",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        if self.width % self.heads:
            near = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            closest = min(near, key=lambda heads: abs(heads - self.heads))
            raise UserError(
                f"config.model.width={self.width} is not divisible by config.model.heads={self.heads}; "
                f"heads={closest} would do"
            )
        if self.positions is Positions.SINUSOIDAL and self.width % 2:
            raise UserError(f"config.model.width={self.width} is odd; sinusoidal positions need an even width")
        if not 0 <= self.dropout < 1:
            raise UserError(f"config.model.dropout={self.dropout} must be at least 0 and below 1")


class EncoderBlock(Module):
    """Self-attention and feed-forward, each with its residual connection."""

    def __init__(self, config: EncoderDecoderConfig, *, parameter: Parameter, keys: Keys):
        width = config.width
        self.attention = _attention(config, parameter, keys)
        self.attention_residual = Residual(width, config.norm_placement, parameter=parameter, keys=keys)
        self.feed_forward = FeedForward(width, config.feed_forward, parameter=parameter, keys=keys)
        self.feed_forward_residual = Residual(width, config.norm_placement, parameter=parameter, keys=keys)
        self.rate = config.dropout

    def __call__(
        self,
        x_BxSxE: Float[Array, "B S E"],
        mask: Mask,
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B S E"], Captured | None]:
        """One layer of the encoder."""
        first, second = _split(key, 2)
        x_BxSxE, captured = self.attention_residual(
            x_BxSxE, lambda x: self.attention(x, x, mask=mask, capture=capture), self.rate, first
        )
        x_BxSxE, _ = self.feed_forward_residual(x_BxSxE, lambda x: (self.feed_forward(x), None), self.rate, second)
        return x_BxSxE, captured


class DecoderBlock(Module):
    """Causal self-attention, attention over the encoder's output, and feed-forward."""

    def __init__(self, config: EncoderDecoderConfig, *, parameter: Parameter, keys: Keys):
        width = config.width
        self.attention = _attention(config, parameter, keys)
        self.attention_residual = Residual(width, config.norm_placement, parameter=parameter, keys=keys)
        self.cross = _attention(config, parameter, keys)
        self.cross_residual = Residual(width, config.norm_placement, parameter=parameter, keys=keys)
        self.feed_forward = FeedForward(width, config.feed_forward, parameter=parameter, keys=keys)
        self.feed_forward_residual = Residual(width, config.norm_placement, parameter=parameter, keys=keys)
        self.rate = config.dropout

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        memory_BxSxE: Float[Array, "B S E"],
        target_mask: Mask,
        source_mask: Mask,
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B T E"], dict[str, Captured | None]]:
        """One layer of the decoder over whole targets."""
        at = capture.at if capture is not None else lambda site: None
        first, second, third = _split(key, 3)
        x_BxTxE, of_self = self.attention_residual(
            x_BxTxE,
            lambda x: self.attention(x, x, mask=target_mask, capture=at(DECODER_SELF)),
            self.rate,
            first,
        )
        x_BxTxE, of_cross = self.cross_residual(
            x_BxTxE,
            lambda x: self.cross(x, memory_BxSxE, mask=source_mask, capture=at(DECODER_CROSS)),
            self.rate,
            second,
        )
        x_BxTxE, _ = self.feed_forward_residual(x_BxTxE, lambda x: (self.feed_forward(x), None), self.rate, third)
        return x_BxTxE, {DECODER_SELF: of_self, DECODER_CROSS: of_cross}

    def step(
        self,
        x_RxE: Float[Array, "R E"],
        position_R: Int[Array, " R"],
        own: tuple[Array, Array],
        memory: tuple[Array, Array],
        source_mask: Mask,
    ) -> tuple[Float[Array, "R E"], tuple[Array, Array]]:
        """One layer of the decoder over one new position of every row: the output and the grown cache."""

        def attend_to_cache(x_Rx1xE: Array) -> tuple[Array, tuple[Array, Array]]:
            keys, values = self.attention.keys_and_values(x_Rx1xE)
            grown = (write_cache(own[0], keys, position_R), write_cache(own[1], values, position_R))
            mask = Mask(causal=True, query_offset=position_R)
            return self.attention.read(x_Rx1xE, *grown, mask=mask)[0], grown

        def attend_to_memory(x_Rx1xE: Array) -> tuple[Array, None]:
            # The beams of an example are queries of one attention, so that its memory is never tiled.
            x_BxQxE = x_Rx1xE.reshape(memory[0].shape[0], -1, x_Rx1xE.shape[-1])
            return self.cross.read(x_BxQxE, *memory, mask=source_mask)[0].reshape(x_Rx1xE.shape), None

        x_Rx1xE = x_RxE[:, None]
        x_Rx1xE, grown = self.attention_residual(x_Rx1xE, attend_to_cache, self.rate, None)
        x_Rx1xE, _ = self.cross_residual(x_Rx1xE, attend_to_memory, self.rate, None)
        x_Rx1xE, _ = self.feed_forward_residual(x_Rx1xE, lambda x: (self.feed_forward(x), None), self.rate, None)
        return x_Rx1xE[:, 0], grown


class EncoderDecoder(Module):
    """Encoder and decoder over one shared embedding, which also scores the output (section 3.4).

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target behind a begin token); padding
    is the token `pad`, at the end only. Outputs: logits [B, T, V].
    """

    def __init__(self, config: EncoderDecoderConfig, interface: Interface, precision: Precision, keys: Keys):
        parameter = Parameter(jnp.dtype(precision.parameters))
        self.dtype = jnp.dtype(precision.compute)
        self.config, self.pad, self.begin = config, interface.pad, interface.begin
        joint = interface.vocabularies["joint"]
        self.embedding = Embedding(joint, config.width, parameter=parameter, keys=keys)
        match config.positions:
            case Positions.SINUSOIDAL:
                self.positions = lambda positions: sinusoidal(positions, config.width)
            case Positions.LEARNED:
                self.positions = LearnedPositions(config.longest, config.width, parameter=parameter, keys=keys)
        self.encoder = stack(
            lambda keys: EncoderBlock(config, parameter=parameter, keys=keys), config.encoder_layers, keys
        )
        self.decoder = stack(
            lambda keys: DecoderBlock(config, parameter=parameter, keys=keys), config.decoder_layers, keys
        )
        match config.norm_placement:
            case NormPlacement.PRE:
                self.encoder_norm: Normaliser = LayerNorm(config.width, parameter=parameter, keys=keys)
                self.decoder_norm: Normaliser = LayerNorm(config.width, parameter=parameter, keys=keys)
            case NormPlacement.POST:
                self.encoder_norm = self.decoder_norm = _identity

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Nothing is carried between steps."""
        return {}

    def forward(
        self,
        state: dict,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """The logits of every target position, given the source and the target before it."""
        encoder_key, decoder_key = _split(key if train else None, 2)
        memory_BxSxE, source_lengths, of_encoder = self.encode(jnp.asarray(inputs["source"]), encoder_key, capture)
        target_BxT = jnp.asarray(inputs["target"])
        target_lengths = jnp.sum(target_BxT != self.pad, axis=1)
        # Padded queries see nothing: their rows stay out of maps and statistics.
        target_mask = Mask(causal=True, query_lengths=target_lengths, key_lengths=target_lengths)
        source_mask = Mask(query_lengths=target_lengths, key_lengths=source_lengths)
        x_BxTxE = self.embed(target_BxT, jnp.arange(target_BxT.shape[1])[None], decoder_key)
        x_BxTxE, of_decoder = scan(
            lambda block, x, key: block(x, memory_BxSxE, target_mask, source_mask, key, capture),
            self.decoder,
            x_BxTxE,
            _layer_keys(decoder_key, self.config.decoder_layers),
            unroll=self.config.unroll,
        )
        logits_BxTxV = self.embedding.logits(self.decoder_norm(x_BxTxE))
        captured = {ENCODER_SELF: of_encoder, **of_decoder}
        maps = {site: found for site, found in captured.items() if found is not None}
        return logits_BxTxV, Aux(maps=maps, extras={}, state=state)

    def encode(
        self, source_BxS: Int[Array, "B S"], key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B S E"], Int[Array, " B"], Captured | None]:
        """The encoder's output, the lengths of the sources, and the maps."""
        lengths = jnp.sum(source_BxS != self.pad, axis=1)
        mask = Mask(query_lengths=lengths, key_lengths=lengths)
        at_site = capture.at(ENCODER_SELF) if capture is not None else None
        x_BxSxE, captured = scan(
            lambda block, x, key: block(x, mask, key, at_site),
            self.encoder,
            self.embed(source_BxS, jnp.arange(source_BxS.shape[1])[None], key),
            _layer_keys(key, self.config.encoder_layers),
            unroll=self.config.unroll,
        )
        return self.encoder_norm(x_BxSxE), lengths, captured

    def embed(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "#B T"], key: Key[Array, ""] | None
    ) -> Float[Array, "B T E"]:
        """Dropout over the sum of embedding and position (section 5.4)."""
        sum_BxTxE = self.embedding(tokens, self.dtype) + self.positions(positions).astype(self.dtype)
        return dropout(sum_BxTxE, self.config.dropout, None if key is None else jax.random.fold_in(key, 0))

    def init_cache(self, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source and project its keys and values once; every row starts with the begin token."""
        memory_BxSxE, lengths, _ = self.encode(jnp.asarray(inputs["source"]), None, None)
        _, memory = scan(
            lambda block, carry, _: (carry, block.cross.keys_and_values(memory_BxSxE)),
            self.decoder,
            None,
            None,
        )
        rows = memory_BxSxE.shape[0] * beams
        layers, _, _, heads, depth = memory[0].shape
        empty = jnp.zeros((layers, rows, length, heads, depth), self.dtype)
        cache = Cache(
            layers=(empty, empty),
            rows={"position": jnp.zeros(rows, jnp.int32)},
            examples={"memory": memory, "lengths": lengths},
        )
        return cache, jnp.full(rows, self.begin, jnp.int32)

    def step(self, cache: Cache, tokens_R: Int[Array, " R"]) -> tuple[Float[Array, "R V"], Cache]:
        """The logits behind each row's new token."""
        position_R = cache.rows["position"]
        mask = Mask(key_lengths=cache.examples["lengths"])
        x_RxE = self.embed(tokens_R[:, None], position_R[:, None], None)[:, 0]
        x_RxE, grown = scan(
            lambda block, x, layer: block.step(x, position_R, *layer, mask),
            self.decoder,
            x_RxE,
            (cache.layers, cache.examples["memory"]),
            unroll=self.config.unroll,
        )
        logits_RxV = self.embedding.logits(self.decoder_norm(x_RxE))
        return logits_RxV, Cache(grown, {"position": position_R + 1}, cache.examples)


def build(config: EncoderDecoderConfig, interface: Interface, precision: Precision) -> Model:
    """The model of this config for a task.

    Errors: UserError when the task's longest source or target has more positions than the model.
    """
    for name, shape in interface.inputs.items():
        if shape.shape[1] > config.longest:
            raise UserError(
                f"the task's longest {name} has {shape.shape[1]} positions, more than "
                f"config.model.longest={config.longest}; shorten config.task.lengths or raise config.model.longest"
            )
    # A target position reads one token and predicts the next: as a query it is known by the one that it
    # predicts, as a key by the one that it has read.
    source, target, target_input = Axis("source"), Axis("target"), Axis("target_input")
    heads = tuple(str(head) for head in range(config.heads))
    encoder = tuple(str(layer) for layer in range(config.encoder_layers))
    decoder = tuple(str(layer) for layer in range(config.decoder_layers))
    return Model(
        functional=Functional(lambda keys: EncoderDecoder(config, interface, precision, keys)),
        sites=(
            Site(ENCODER_SELF, source, source, encoder, heads),
            Site(DECODER_SELF, target, target_input, decoder, heads, causal=True),
            Site(DECODER_CROSS, target, source, decoder, heads),
        ),
    )


def _attention(config: EncoderDecoderConfig, parameter: Parameter, keys: Keys) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        bias=config.attention_bias,
        spec=AttentionSpec(config.score, backend=config.backend),
        longest=config.longest,
        parameter=parameter,
        keys=keys,
    )


def _identity(x: Array) -> Array:
    return x


def _split(key: Key[Array, ""] | None, count: int) -> list:
    return [None] * count if key is None else list(jax.random.split(key, count))


def _layer_keys(key: Key[Array, ""] | None, layers: int) -> Key[Array, " L"] | None:
    return None if key is None else jax.random.split(jax.random.fold_in(key, 1), layers)
