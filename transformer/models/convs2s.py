"""Convolutional sequence to sequence learning (Gehring et al. 2017): gated convolutions, attention in every layer."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import Config, NumLayers, PositiveInt, Rate
from transformer.layers.beam_rows import beam_queries_to_rows, flatten_beam_axis, unflatten_beam_axis
from transformer.layers.convolution import Convolution1D, ConvolutionActivation, ConvolutionWindow, Padding
from transformer.layers.embedding import Embedding, LearnedPositions, padded_vocab_size
from transformer.layers.functional_module import (
    Module,
    ParameterBuilder,
    bind_layer,
    scan_layers,
    unstack_layers,
)
from transformer.layers.initialization import Initialization, InitializationRule, ParameterRole
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import check_num_positions, real_lengths, real_positions, target_lengths
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, StatelessModule, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TRANSLATION, TaskInterface

SITE = "decoder/attention"
DOT_PRODUCT = AttentionSpec(scale=1.0)
# Of two summands of equal variance the sum has twice as much.
HALF_VARIANCE = math.sqrt(0.5)


@dataclasses.dataclass(frozen=True)
class ConvS2SConfig(Config, path="config.model"):
    """The configuration of ConvS2S; the defaults are the paper's for English-Romanian (section 4.3).

    Attributes:
        embedding_width: Features of words, positions, queries, keys and values, and of the output layer's input.
        width: Input and output features of every block.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        kernel_size: Positions that a block reads.
        max_length: Rows of each table of positions.
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.
        initialization: The initialization of the parameters.
        dropout: Dropout rate of embeddings, blocks and the output layer's input.

    Raises:
        UserError: If a size is below 1, or `dropout` is outside [0, 1).
    """

    embedding_width: PositiveInt = 512
    width: PositiveInt = 512
    encoder_layers: NumLayers = 20
    decoder_layers: NumLayers = 20
    kernel_size: PositiveInt = 3
    max_length: PositiveInt = 1024
    vocab_size: int | None = None
    initialization: Initialization = Initialization.GEHRING
    dropout: Rate = 0.1


class EncodedSource(NamedTuple):
    """The encoded source that every decoder layer attends to.

    Attributes:
        keys: The encoder's outputs z.
        values: z + e, e being the embeddings.
        lengths: The length m of each source.
    """

    keys: Float[Array, "B S 1 E"]
    values: Float[Array, "B S 1 E"]
    lengths: Int[Array, " B"]


class GatedConvolution(Module):
    """Gated convolution, sqrt(0.5) (v(W [h_(i-k/2) ... h_(i+k/2)] + b) + h_i), v([A B]) = A sigmoid(B) (section 3.2).

    Dropout acts on the inputs of the convolution. A causal one reads h_(i-k+1) ... h_i.

    Args:
        config: The sizes.
        padding: SAME in an encoder, CAUSAL in a decoder.
        builder: Makes the parameters.
    """

    def __init__(self, config: ConvS2SConfig, padding: Padding, builder: ParameterBuilder):
        window, outputs = ConvolutionWindow(config.kernel_size, padding=padding), 2 * config.width
        convolution = Convolution1D(config.width, ("embed", outputs), window, role=ParameterRole.GATED, builder=builder)
        self.convolution = WeightNorm(convolution, ("features", outputs), builder=builder)
        self.dropout = config.dropout

    def __call__(
        self, h_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"], key: Key[Array, ""] | None
    ) -> Float[Array, "B T F"]:
        """Run whole sequences; outputs beyond their lengths are zero if the inputs are."""
        sums = self.convolution(dropout(h_BxTxF, self.dropout, key), lengths_B=lengths_B)
        return with_logical_constraint(
            _add_at_half_variance(ConvolutionActivation.GLU(sums), h_BxTxF), "batch", "length", None
        )

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> Float[Array, "R P F"]:
        """Return the past inputs before the first position."""
        return self.convolution.layer.initial(rows, dtype)

    def step(
        self, h_RxF: Float[Array, "R F"], past_RxPxF: Float[Array, "R P F"]
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P F"]]:
        """Run one more position of every row.

        Args:
            h_RxF: The inputs at the position.
            past_RxPxF: The past inputs.

        Returns:
            The outputs, and the past inputs that the next position reads.
        """
        sums, past_RxPxF = self.convolution.layer.step(h_RxF, past_RxPxF, kernel=self.convolution.kernel)
        return _add_at_half_variance(ConvolutionActivation.GLU(sums), h_RxF), past_RxPxF


class DecoderBlock(Module):
    """A causal gated convolution, followed by attention (section 3.3).

    d_i = W h_i + b + g_i; a_ij = softmax_j(d_i . z_j); c_i = m sqrt(1/m) sum_j a_ij (z_j + e_j);
    sqrt(0.5) (h_i + W' c_i + b'), g being the embeddings of the decoder's input words. (The authors' code also halves
    the variance of d_i and of z_j + e_j, and adds the block's residual after the attention.)

    Args:
        config: The sizes.
        of_dropped: Makes the parameters of maps whose inputs have dropout.
        builder: Makes the other parameters.
    """

    def __init__(self, config: ConvS2SConfig, dropout_builder: ParameterBuilder, builder: ParameterBuilder):
        self.convolution = GatedConvolution(config, Padding.CAUSAL, dropout_builder)
        self.query = _weight_normalized_linear(config.width, ("embed", config.embedding_width), builder)
        self.context = _weight_normalized_linear(config.embedding_width, ("embed", config.width), builder)

    def __call__(
        self,
        h_BxTxF: Float[Array, "B T F"],
        g_BxTxE: Float[Array, "B T E"],
        source: EncodedSource,
        mask: Mask,
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B T F"], CapturedAttention | None]:
        """Run whole sequences.

        Args:
            h_BxTxF: The block's inputs.
            g_BxTxE: The embeddings of the decoder's input words.
            source: The encoded source.
            mask: The lengths of targets and sources.
            key: Random key for dropout; None means evaluation.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The block's outputs, and what was captured.
        """
        assert mask.query_lengths is not None
        return self._attend(self.convolution(h_BxTxF, mask.query_lengths, key), g_BxTxE, source, mask, capture)

    def step(
        self,
        h_RxF: Float[Array, "R F"],
        past_RxPxF: Float[Array, "R P F"],
        g_RxE: Float[Array, "R E"],
        source: EncodedSource,
        capture: Capture | None,
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P F"], CapturedAttention | None]:
        """Run one more position of every row; the beams of an example are queries of one attention.

        Args:
            h_RxF: The block's inputs at the position.
            past_RxPxF: The past inputs of the convolution.
            g_RxE: The embeddings of the decoder's input words.
            source: The encoded source, an entry per example.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The block's outputs, the next past inputs, and what was captured.
        """
        h_RxF, past_RxPxF = self.convolution.step(h_RxF, past_RxPxF)
        h_BxMxF, g_BxMxE = (unflatten_beam_axis(features, len(source.lengths)) for features in (h_RxF, g_RxE))
        h_BxMxF, captured = self._attend(h_BxMxF, g_BxMxE, source, Mask(key_lengths=source.lengths), capture)
        if captured is not None:
            captured = captured.with_maps(lambda leaf: beam_queries_to_rows(leaf)[:, :, None])
        return flatten_beam_axis(h_BxMxF), past_RxPxF, captured

    @jax.named_scope("attention")
    def _attend(
        self, h_BxTxF: Array, g_BxTxE: Array, source: EncodedSource, mask: Mask, capture: Capture | None
    ) -> tuple[Array, CapturedAttention | None]:
        query_BxTx1xE = (self.query(h_BxTxF) + g_BxTxE)[:, :, None]
        context_BxTx1xE, attended = attend(
            query_BxTx1xE, source.keys, source.values, spec=DOT_PRODUCT, mask=mask, capture=capture
        )
        # Equal weights of m summands shrink their variance to 1/m: m makes their sum, sqrt(1/m) its variance.
        scale_B = jnp.sqrt(source.lengths.astype(h_BxTxF.dtype))
        h_BxTxF = _add_at_half_variance(h_BxTxF, self.context(context_BxTx1xE[:, :, 0] * scale_B[:, None, None]))
        return with_logical_constraint(h_BxTxF, "batch", "length", None), attended.captured


class ConvS2S(StatelessModule):
    """ConvS2S: encoder and decoder with one joint vocabulary and a shared embedding.

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target after a begin token); padding is the
    token `pad`, at the end only. Outputs: logits [B, T, V]. Every layer except the tables has weight normalization
    (section 3.5).
    """

    def __init__(self, config: ConvS2SConfig, interface: TaskInterface, builder: ParameterBuilder):
        if interface.pad_id is None or interface.bos_id is None:
            raise ValueError("an encoder-decoder needs interface.pad_id and interface.bos_id, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad_id, interface.bos_id, builder.dtype
        builder = builder.with_rule(InitializationRule(config.initialization))
        dropout_builder = builder.with_rule(InitializationRule(config.initialization, retained=1 - config.dropout))
        vocabulary = padded_vocab_size(interface.vocabularies["joint"], config.vocab_size)
        width, embedding = ("embed", config.width), ("embed", config.embedding_width)
        self.embedding = Embedding(vocabulary, config.embedding_width, builder=builder)
        self.source_positions = LearnedPositions(config.max_length, config.embedding_width, builder=builder)
        self.target_positions = LearnedPositions(config.max_length, config.embedding_width, builder=builder)
        self.enter_encoder = _weight_normalized_linear(config.embedding_width, width, dropout_builder)
        self.encoder = dropout_builder.stack(
            lambda builder: GatedConvolution(config, Padding.SAME, builder), config.encoder_layers
        )
        self.leave_encoder = _weight_normalized_linear(config.width, embedding, builder)
        self.enter_decoder = _weight_normalized_linear(config.embedding_width, width, dropout_builder)
        plain_rule = builder.rule
        self.decoder = dropout_builder.stack(
            lambda builder: DecoderBlock(config, builder, builder.with_rule(plain_rule)), config.decoder_layers
        )
        self.leave_decoder = _weight_normalized_linear(config.width, embedding, builder)
        self.output = _weight_normalized_linear(config.embedding_width, ("vocabulary", vocabulary), dropout_builder)

    def encode(self, source_BxS: Int[Array, "B S"], key: Key[Array, ""] | None) -> EncodedSource:
        """Encode the source: the blocks' outputs are the keys z, and z + e the values.

        Every decoder layer sends gradients into the encoder: they are divided by twice the number of layers, except
        those of the embeddings e (section 3.4; the 2 is from the authors' code).

        Args:
            source_BxS: The source, padded.
            key: Random key for dropout; None means evaluation.

        Returns:
            The encoded source.
        """
        lengths_B = real_lengths(source_BxS, self.pad)
        embedding_key, layers_key = split_key(key)
        e_BxSxE = self._embed(source_BxS, self.source_positions, lengths_B, embedding_key)
        h_BxSxF, _ = scan_layers(
            lambda block, h, key: (block(h, lengths_B, key), None),
            self.encoder,
            self.enter_encoder(e_BxSxE),
            _layer_keys(layers_key, self.config.encoder_layers),
        )
        z_BxSxE = _scale_gradient(self.leave_encoder(h_BxSxF), 1 / (2 * self.config.decoder_layers))
        return EncodedSource(z_BxSxE[:, :, None], (z_BxSxE + e_BxSxE)[:, :, None], lengths_B)

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states of a known target, from which `logits` computes the logits."""
        source_key, embedding_key, layers_key, output_key = split_key(forward_pass.training_key, 4)
        source = self.encode(jnp.asarray(inputs["source"]), source_key)
        target_BxT, capture = jnp.asarray(inputs["target"]), capture_for_site(SITE, forward_pass.capture)
        lengths_B = target_lengths(target_BxT, source.lengths, self.pad)
        mask = Mask(query_lengths=lengths_B, key_lengths=source.lengths)
        g_BxTxE = self._embed(target_BxT, self.target_positions, lengths_B, embedding_key)
        h_BxTxF, captured = scan_layers(
            lambda block, h, key: block(h, g_BxTxE, source, mask, key, capture),
            self.decoder,
            self.enter_decoder(g_BxTxE),
            _layer_keys(layers_key, self.config.decoder_layers),
        )
        hidden_BxTxE = dropout(self.leave_decoder(h_BxTxF), self.config.dropout, output_key)
        return hidden_BxTxE, Aux({} if captured is None else {SITE: captured}, {}, state)

    def logits(self, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits of the tokens, in float32 or wider."""
        return checkpoint_name(self.output.layer.logits(hidden, kernel=self.output.kernel), "logits")

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T V"], Aux]:
        """Return the logits at every position of the target."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        return self.logits(hidden_BxTxE), aux

    def init_cache(self, state: dict, inputs: Inputs, *, num_beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source once; every row starts with the begin token, and zeros before it.

        Raises:
            UserError: If the source or `length` exceeds `max_length`.
        """
        check_num_positions(length, self.config.max_length, "a target to be generated")
        source, config = self.encode(jnp.asarray(inputs["source"]), None), self.config
        rows = num_beams * len(source.lengths)
        layers = unstack_layers(self.decoder, config.decoder_layers)
        past = tuple(bind_layer(self.decoder, params).convolution.initial(rows, self.dtype) for params in layers)
        carried = {"position": jnp.zeros(rows, jnp.int32), "past": past}
        return Cache((), carried, source, layers), jnp.full(rows, self.begin, jnp.int32)

    def step(
        self, state: dict, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Run one more token of every row through the blocks."""
        capture, position_R = capture_for_site(SITE, forward_pass.capture), cache.rows["position"]
        g_RxE = self._embed_at_positions(tokens_R, self.target_positions, position_R)
        h_RxF, grown, captured = self.enter_decoder(g_RxE), [], []
        for params, past in zip(cache.weights, cache.rows["past"], strict=True):
            block = bind_layer(self.decoder, params)
            h_RxF, past, layer_map = block.step(h_RxF, past, g_RxE, cache.examples, capture)
            grown.append(past)
            captured.append(layer_map)
        maps = {} if capture is None else {SITE: jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)}
        cache = cache._replace(rows={"position": position_R + 1, "past": tuple(grown)})
        return self.logits(self.leave_decoder(h_RxF)), cache, Aux(maps, {}, state)

    def _embed(
        self,
        tokens_BxT: Int[Array, "B T"],
        positions: LearnedPositions,
        lengths_B: Int[Array, " B"],
        key: Key[Array, ""] | None,
    ) -> Float[Array, "B T E"]:
        """Return token plus position embeddings, zero beyond the lengths (section 3.1)."""
        count = tokens_BxT.shape[1]
        check_num_positions(count, self.config.max_length, "a sequence")
        x_BxTxE = self._embed_at_positions(tokens_BxT, positions, jnp.arange(count)[None])
        x_BxTxE = jnp.where(real_positions(lengths_B, count)[..., None], x_BxTxE, 0)
        return dropout(with_logical_constraint(x_BxTxE, "batch", "length", None), self.config.dropout, key)

    def _embed_at_positions(self, tokens: Array, positions: LearnedPositions, places: Array) -> Array:
        return self.embedding(tokens, self.dtype) + positions(places).astype(self.dtype)


class WeightNorm[Layer: Linear | Convolution1D](Module):
    """A layer with weight normalization, w = g v / ||v|| for each output (Salimans and Kingma 2016, equation 2).

    v is the layer's own kernel and g begins as ||v||, so that w begins as the layer was initialized.

    Args:
        layer: The layer.
        outputs: Logical name and number of the outputs, the kernel's last axis.
        builder: Makes the parameters.
    """

    def __init__(self, layer: Layer, outputs: tuple[str, int], *, builder: ParameterBuilder):
        name, size = outputs
        self.layer = layer
        self.length = builder.parameter(
            lambda key, shape, dtype: _kernel_norms(layer.kernel[...]).astype(dtype), (size,), (name,)
        )

    @property
    def kernel(self) -> Float[Array, "*I F"]:
        """The normalized kernel w."""
        direction = self.layer.kernel[...]
        return direction * jax.lax.broadcast_to_rank(self.length[...] / _kernel_norms(direction), direction.ndim)

    def __call__(self, x: Float[Array, "..."], **arguments: Any) -> Float[Array, "..."]:
        """Apply the layer; `arguments` are its other arguments."""
        return self.layer(x, kernel=self.kernel, **arguments)


def _kernel_norms(kernel: Float[Array, "*I F"]) -> Float[Array, " F"]:
    """Return the Euclidean norm of the weights of every output."""
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=tuple(range(kernel.ndim - 1))))


def _weight_normalized_linear(inputs: int, outputs: tuple[str, int], builder: ParameterBuilder) -> WeightNorm:
    """Build a weight-normalized linear layer; one axis of its matrix is "embed"."""
    name, size = outputs
    input_axis, norm_axis = ("features", "features") if name == "embed" else ("embed", name)
    linear = Linear(((input_axis, inputs),), (outputs,), bias=True, builder=builder)
    return WeightNorm(linear, (norm_axis, size), builder=builder)


def _add_at_half_variance(x: Array, y: Array) -> Array:
    """Return sqrt(0.5) (x + y), which keeps the variance."""
    return (x + y) * HALF_VARIANCE


def _scale_gradient(x: Array, factor: float) -> Array:
    """Return x, with its gradient multiplied by the factor."""
    fixed = jax.lax.stop_gradient(x)
    return fixed + factor * (x - fixed)


def _layer_keys(key: Key[Array, ""] | None, count: int) -> Key[Array, " L"] | None:
    """Return a key for each layer of a scan; None without a key."""
    return None if key is None else jax.random.split(key, count)


def attention_sites(config: ConvS2SConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder."""
    layers = tuple(map(str, range(config.decoder_layers)))
    return (Site(SITE, Axis("target"), Axis("source"), layers, ("0",)),)


FAMILY = ModelFamily(ConvS2SConfig, ConvS2S, frozenset({TRANSLATION}), sites=attention_sites)
