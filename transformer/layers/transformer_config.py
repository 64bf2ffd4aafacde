"""The configuration that all Transformer families share."""

import dataclasses
import enum
import itertools
import math
from typing import Any, ClassVar, NamedTuple, Self

from transformer.attention.attention_spec import AttentionSpec, Backend, incompatible_reason
from transformer.attention.backends import AttentionVariant, unsupported_reason
from transformer.attention.component import AttentionSizes
from transformer.attention.logit_modification import Softcap
from transformer.attention.positions import SCHEMES, AttentionPosition, PositionCombination, PositionScheme
from transformer.attention.rotary import NO_SCALING, RotaryScaling, rotated_features
from transformer.attention.scores import DEFAULT_SCORE, Score, ScoreKind, score_class, score_name
from transformer.attention.sites import MapValues
from transformer.config import (
    Config,
    NonNegativeFloat,
    NonNegativeInt,
    NumHeads,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Rate,
    UserError,
)
from transformer.layers.embedding import padded_vocab_size
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization
from transformer.layers.lora import LoraConfig, LoraTarget
from transformer.layers.mixture_of_experts import MixtureOfExpertsConfig
from transformer.layers.norm import LayerNorm, NormKind, RmsNorm
from transformer.layers.own_score import resolve_score
from transformer.layers.residual import NormPlacement
from transformer.logical_axes import Placement, SequenceParallel


class PositionEncoding(enum.Enum):
    """How a model represents positions: in its embeddings, within its attention, or not at all.

    The members that are not listed are relative and act within attention; see
    `transformer.attention.positions.AttentionPosition`.

    Attributes:
        NONE: Not at all.
        SINUSOIDAL: The encodings of Vaswani et al. 2017, sine and cosine interleaved.
        SINUSOIDAL_HALVES: All sines, then all cosines, as in Marian.
        SINUSOIDAL_TENSOR2TENSOR: The same with the frequencies of its authors' code, tensor2tensor, and of fairseq, the
            last of which is exactly 1 / 10000.
        LEARNED: A table (their table 3, row E).
    """

    NONE = "none"
    SINUSOIDAL = "sinusoidal"
    SINUSOIDAL_HALVES = "sinusoidal_halves"
    SINUSOIDAL_TENSOR2TENSOR = "sinusoidal_tensor2tensor"
    LEARNED = "learned"
    ROTARY = "rotary"
    ROTARY_HALVES = "rotary_halves"
    ALIBI = "alibi"
    T5 = "t5"
    SHAW = "shaw"
    TRANSFORMER_XL = "transformer_xl"
    DISENTANGLED = "disentangled"

    @property
    def within_attention(self) -> AttentionPosition:
        """The position scheme of self-attention; NONE if positions are in the embeddings."""
        try:
            return AttentionPosition(self.value)
        except ValueError:
            return AttentionPosition.NONE

    @property
    def scheme(self) -> type[PositionScheme]:
        """The class of self-attention's position scheme."""
        return SCHEMES[self.within_attention]


# Of models that read a text in segments, unless they say otherwise.
SEGMENT_MODEL_POSITIONS = PositionEncoding.TRANSFORMER_XL
SINUSOIDAL_POSITIONS = frozenset(
    {
        PositionEncoding.SINUSOIDAL,
        PositionEncoding.SINUSOIDAL_HALVES,
        PositionEncoding.SINUSOIDAL_TENSOR2TENSOR,
    }
)


class Biases(enum.Enum):
    """Which linear maps have a bias.

    Attributes:
        ALL: All.
        FEED_FORWARD: All but attention's projections (Vaswani et al. 2017).
        ATTENTION: Attention's projections alone.
        QUERY_KEY_VALUE: The projections of queries, keys and values alone (Bai et al. 2023, section 2.3).
        NONE: No linear map.
    """

    ALL = "all"
    FEED_FORWARD = "feed_forward"
    ATTENTION = "attention"
    QUERY_KEY_VALUE = "query_key_value"
    NONE = "none"

    @property
    def in_feed_forward(self) -> bool:
        """Whether the maps of the feed-forward network have a bias."""
        return self in (Biases.ALL, Biases.FEED_FORWARD)

    @property
    def in_query_key_value(self) -> bool:
        """Whether the projections of queries, keys and values have a bias."""
        return self in (Biases.ALL, Biases.ATTENTION, Biases.QUERY_KEY_VALUE)

    @property
    def in_attention_output(self) -> bool:
        """Whether the projection of attention's output has a bias."""
        return self in (Biases.ALL, Biases.ATTENTION)


class QueryKeyNorm(enum.Enum):
    """A norm of queries and keys behind their projections, of the kind of the other norms but without a bias.

    It comes before the position scheme (Henry et al. 2020; Dehghani et al. 2023, section 2).

    Attributes:
        NONE: None.
        HEAD: Over the features of each head, with one scale for all heads (Qwen 3, Gemma 3).
        WIDTH: Over the features of all heads together (OLMo 2).
    """

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"


class LayerRotary(enum.Enum):
    """The rotary positions of a layer.

    Attributes:
        GLOBAL: Of base `rotary_base`, scaled by `rotary_scaling`.
        LOCAL: Of base `local_rotary_base`, not scaled.
        NONE: None at all (Kazemnejad et al. 2023; Yang et al. 2025, section 2.1).
    """

    GLOBAL = "global"
    LOCAL = "local"
    NONE = "none"


class LayerKind(NamedTuple):
    """What differs between the layers of a period.

    Attributes:
        window: How many positions back attention sees; 0 means all.
        rotary: The rotary positions.
    """

    window: int
    rotary: LayerRotary


class WidthScale(enum.Enum):
    """The factor on embeddings or logits: 1, sqrt(width) or 1 / sqrt(width)."""

    NONE = "none"
    SQRT_WIDTH = "sqrt_width"
    INVERSE_SQRT_WIDTH = "inverse_sqrt_width"

    def factor_for(self, width: int) -> float:
        """The factor for this width."""
        match self:
            case WidthScale.NONE:
                return 1.0
            case WidthScale.SQRT_WIDTH:
                return width**0.5
            case WidthScale.INVERSE_SQRT_WIDTH:
                return width**-0.5


class CrossAttentionKind(enum.Enum):
    """What a decoder's cross-attention computes.

    Attributes:
        ATTENTION: Attention over the source.
        MEAN: The mean of the whole source: every query is zero, so that every key has the same weight (the projections
            of queries and keys stay as initialized). It is an encoder-decoder without attention, for comparison.
    """

    ATTENTION = "attention"
    MEAN = "mean"


class Projections(enum.Enum):
    """How attention makes queries, keys and values of its inputs, and its output of the heads.

    Attributes:
        LINEAR: Four trained linear maps: Concat(head_1, ..., head_H) W_O, with head_i = Attention(Q W_Q,i, K W_K,i,
            V W_V,i) (Vaswani et al. 2017, section 3.2.2).
        NONE: The inputs themselves, without a parameter: Concat(head_1, ..., head_H), where head i attends with the
            i-th of H equal parts of the features. With one head and the score dot, self-attention is softmax(V V') V.
    """

    LINEAR = "linear"
    NONE = "none"


class Remat(enum.Enum):
    """Which activations of a block are stored for the backward pass; the others are recomputed.

    Attributes:
        NONE: All are stored.
        FULL: Only the input of each block (of each period of windows).
        DOTS: The results of matrix products without a batch axis and of cuDNN's attention, so that norms, activations
            and the attention of other backends are recomputed.
        ATTENTION: The outputs of attention.
    """

    NONE = "none"
    FULL = "full"
    DOTS = "dots"
    ATTENTION = "attention"


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Config, path="config.model"):
    """The configuration that all Transformer families share: blocks, embeddings and vocabulary head.

    Attributes:
        width: Features of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads, which neighboring query heads share (grouped-query attention, Ainslie et al.
            2023); None means as many as `heads`.
        head_dim: Features of a head; None means width / heads.
        projections: Whether attention projects its inputs.
        feed_forward: Hidden units of the feed-forward network.
        activation: Its activation.
        norm: The kind of norm.
        norm_epsilon: The norm's epsilon; published models differ in it (BERT 1e-12, Llama 1e-5), and read weights need
            their own.
        norm_placement: Where the norm stands around a sub-layer.
        biases: Which linear maps have a bias.
        norm_bias: Whether layer norms have a bias; None means that they have unless `biases` is NONE.
        query_key_norm: The norm of queries and keys.
        initialization: The initialization of the parameters.
        dropout: Dropout rate of embeddings and sub-layers.
        attention_dropout: Dropout rate of attention weights.
        stochastic_depth: Rate at which the last layer's sub-layers are dropped; those of earlier layers rise to it in
            proportion to the depth (Huang et al. 2016, equation 4).
        positions: How positions are represented.
        position_join: How position embeddings are combined with token embeddings; whether addition loses anything
            against concatenation is a question of its own.
        rotary_base: Base of the rotary frequencies: 10,000 in Su et al. 2021, more for longer contexts (Code Llama
            2023: 1,000,000).
        rotary_fraction: The part of a head's features that rotate, the first ones.
        rotary_scaling: How the rotary frequencies are scaled for contexts longer than those of pre-training.
        rotary_pattern: A period over the layers with the rotary positions of each; empty means GLOBAL in all.
        local_rotary_base: Base of the rotary frequencies of the layers that `rotary_pattern` calls LOCAL.
        relative_attention_num_buckets: T5's number of distance buckets, or that of disentangled attention, of both
            sides; there 0 means none: each distance has an embedding of its own.
        relative_attention_max_distance: The distance from which on relative positions are the same.
        relative_embedding_norm: Whether a norm follows the embeddings of relative positions in disentangled attention,
            as in DeBERTa's second version.
        attention_windows: A period over the layers: a layer of window w sees w positions back (an encoder also w
            ahead), a layer of window 0 sees all; (0, 128) alternates.
        max_length: The greatest number of positions.
        score: The score function of attention, or the dotted path of a module that exports a class `SCORE`.
        attention_scale: Factor on the products of queries and keys; None means 1 / sqrt(D).
        attention_softcap: The bound c of c tanh(logit / c) in attention; None for none.
        attention_sinks: Whether each head has a trained sink, a key without a value that every query sees (OpenAI
            2025, gpt-oss model card, section 2.2). It begins at 0, which adds one to the softmax's denominator.
        backend: The program that computes attention.
        embedding_scale: Factor on the embeddings.
        logit_scale: Factor on the last states before the vocabulary head, which T5 has with tied embeddings (Raffel et
            al. 2020).
        embedding_multiplier: A further factor on the embeddings.
        residual_multiplier: Factor on what each sub-layer adds to the residual stream.
        layer_scale: The value at which trained factors on the features of each sub-layer's output begin (Touvron et al.
            2021, Going deeper, equation 4); None for no such factors.
        logit_multiplier: Factor on the tokens' logits.
        logit_softcap: The bound c of c tanh(logit / c) of the tokens' logits; None for none.
        embedding_norm: Whether a norm follows the embeddings.
        tie_embeddings: Whether the embedding table is also the vocabulary head (Press and Wolf 2017).
        output_bias: Whether each token's logit has a bias, as in BERT's and Marian's heads.
        remat: Which activations are stored for the backward pass.
        vocab_size: Rows of the embedding table, if more than the task's tokens; None means as many.
        scan_unroll: How many layers (periods of windows) are compiled inline.
        experts: Mixtures of experts in place of feed-forward networks, each expert of the network's size.
        lora: Low-rank updates of the blocks' matrices, to be trained alone by `config.optimizer.trainable`.
        size: A published model whose values fill the keys that are not set (transformer.models.model_family).

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    width: PositiveInt = 512
    heads: NumHeads = 8
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    projections: Projections = Projections.LINEAR
    feed_forward: PositiveInt = 2048
    activation: Activation = Activation.RELU
    norm: NormKind = NormKind.LAYER
    norm_epsilon: NonNegativeFloat = 1e-6
    norm_placement: NormPlacement = NormPlacement.POST
    biases: Biases = Biases.ALL
    norm_bias: bool | None = None
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    initialization: Initialization = Initialization.XAVIER
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    positions: PositionEncoding = PositionEncoding.SINUSOIDAL
    position_join: PositionCombination = PositionCombination.ADDED
    rotary_base: PositiveFloat = 10000.0
    rotary_fraction: PositiveFraction = 1.0
    rotary_scaling: RotaryScaling = NO_SCALING
    rotary_pattern: tuple[LayerRotary, ...] = ()
    local_rotary_base: PositiveFloat = 10000.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: PositiveInt = 128
    relative_embedding_norm: bool = False
    attention_windows: tuple[NonNegativeInt, ...] = ()
    max_length: PositiveInt = 256
    score: Score | str = DEFAULT_SCORE
    attention_scale: PositiveFloat | None = None
    attention_softcap: PositiveFloat | None = None
    attention_sinks: bool = False
    backend: Backend = Backend.AUTO
    embedding_scale: WidthScale = WidthScale.NONE
    logit_scale: WidthScale = WidthScale.NONE
    embedding_multiplier: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    layer_scale: float | None = None
    logit_multiplier: PositiveFloat = 1.0
    logit_softcap: PositiveFloat | None = None
    embedding_norm: bool = False
    tie_embeddings: bool = True
    output_bias: bool = False
    remat: Remat = Remat.NONE
    vocab_size: int | None = None
    scan_unroll: PositiveInt = 1
    experts: MixtureOfExpertsConfig = dataclasses.field(default_factory=MixtureOfExpertsConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    size: str | None = None

    bidirectional: ClassVar[bool] = False
    """Whether every stack of these blocks sees both sides, so that each has half of T5's buckets."""

    @property
    def resolved_head_dim(self) -> int:
        """D, the features of a head."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def resolved_kv_heads(self) -> int:
        """G, the number of key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def map_values(self) -> MapValues:
        """What the numbers of the attention's maps are: rows beside a sink do not sum to one."""
        return MapValues.REWEIGHTED if self.attention_sinks else MapValues.PROBABILITY

    @property
    def resolved_norm_bias(self) -> bool:
        """Whether layer norms have a bias."""
        return self.biases is not Biases.NONE if self.norm_bias is None else self.norm_bias

    @property
    def resolved_base_width(self) -> int:
        """The width at which the maximal update parametrization changes nothing; without it the width itself."""
        return self.width

    @property
    def width_ratio(self) -> float:
        """m, the width over the base width."""
        return self.width / self.resolved_base_width

    @property
    def cross(self) -> CrossAttentionKind:
        """What cross-attention computes."""
        return CrossAttentionKind.ATTENTION

    @property
    def layer_pattern(self) -> tuple[LayerKind, ...]:
        """The layers of one period of windows, of rotary positions and of experts."""
        windows, rotary = self.attention_windows or (0,), self.rotary_pattern or (LayerRotary.GLOBAL,)
        period = math.lcm(len(windows), len(rotary), self.experts.layer_period)
        kinds = zip(itertools.cycle(windows), itertools.cycle(rotary), range(period), strict=False)
        return tuple(LayerKind(window, layer_rotary) for window, layer_rotary, _ in kinds)

    def make_norm(self, builder: ParameterBuilder) -> LayerNorm | RmsNorm:
        """Make a norm over the width; only a layer norm can have a bias."""
        return self.make_norm_over(self.width, builder, bias=self.resolved_norm_bias)

    def make_norm_over(self, features: int, builder: ParameterBuilder, *, bias: bool = False) -> LayerNorm | RmsNorm:
        """Make a norm of the model's kind over so many features."""
        match self.norm:
            case NormKind.LAYER:
                return LayerNorm(features, builder=builder, epsilon=self.norm_epsilon, bias=bias)
            case NormKind.RMS | NormKind.RMS_ZERO_CENTERED:
                zero_centered = self.norm is NormKind.RMS_ZERO_CENTERED
                return RmsNorm(features, builder=builder, epsilon=self.norm_epsilon, zero_centered=zero_centered)

    def padded_vocab_size(self, tokens: int) -> int:
        """The number of rows of the embedding table for a task with this many tokens.

        Raises:
            UserError: If there are more tokens than `vocab_size`.
        """
        return padded_vocab_size(tokens, self.vocab_size)

    def without_token_head(self) -> Self:
        """Return the config of a model that scores no tokens: without an output matrix of its own, and its bias."""
        return dataclasses.replace(self, tie_embeddings=True, output_bias=False)

    def attention_sizes(self, *, bidirectional: bool = False) -> AttentionSizes:
        """The sizes of the trained arrays of these blocks' attention."""
        settings = (
            self.max_length,
            self.width,
            self.rotary_base,
            self.rotary_fraction,
            self.rotary_scaling,
            self.relative_attention_num_buckets,
            self.relative_attention_max_distance,
            bidirectional,
            self.resolved_base_width,
        )
        return AttentionSizes(
            self.heads, self.resolved_head_dim, self.resolved_head_dim, self.resolved_head_dim, *settings
        )

    @property
    def score_kind(self) -> ScoreKind:
        """The score function of `score`."""
        return resolve_score(self.score)

    def attention_spec(self, position: AttentionPosition) -> AttentionSpec:
        """The attention spec of these blocks with this position scheme."""
        softcap = None if self.attention_softcap is None else Softcap(self.attention_softcap)
        return AttentionSpec(
            self.score_kind,
            position=position,
            backend=self.backend,
            scale=self.attention_scale,
            logit_modification=softcap,
            dropout=self.attention_dropout,
        )

    def _check(self) -> None:
        if self.head_dim is None and self.width % self.heads:
            closest = _nearest_divisor(self.width, self.heads)
            raise UserError(
                f"config.model.width={self.width} is not divisible by config.model.heads={self.heads}; "
                f"heads={closest} would do"
            )
        if self.heads % self.resolved_kv_heads:
            raise UserError(
                f"config.model.kv_heads={self.kv_heads} does not divide config.model.heads={self.heads}; "
                f"kv_heads={_nearest_divisor(self.heads, self.resolved_kv_heads)} would do"
            )
        self.check_projections()
        if self.width % 2 and (
            self.positions in SINUSOIDAL_POSITIONS or self.positions is PositionEncoding.TRANSFORMER_XL
        ):
            raise UserError(
                f"config.model.width={self.width} is odd; config.model.positions={self.positions.value} pairs sines "
                "with cosines: say an even width"
            )
        if self.width < 4 and self.positions is PositionEncoding.SINUSOIDAL_TENSOR2TENSOR:
            raise UserError(
                f"config.model.width={self.width} has one frequency alone; config.model.positions="
                f"{self.positions.value} has two or more: say width=4 or more"
            )
        if self.position_join is PositionCombination.CONCATENATED and self.positions not in (
            *SINUSOIDAL_POSITIONS,
            PositionEncoding.LEARNED,
        ):
            raise UserError(
                "config.model.position_join=concatenated needs positions in the embeddings, and config.model.positions="
                f"{self.positions.value} has none there: say sinusoidal or learned"
            )
        self.check_rotary()
        if (self.norm_placement is NormPlacement.DEEPNORM) != (self.initialization is Initialization.DEEPNORM):
            raise UserError(
                f"config.model.norm_placement={self.norm_placement.value} and config.model.initialization="
                f"{self.initialization.value} do not go together: deepnorm is both of them, or neither"
            )
        self.check_relative_positions()
        self.check_attention()
        if self.norm_bias is not None and self.norm is not NormKind.LAYER:
            raise UserError(
                f"config.model.norm_bias={self.norm_bias} is of layer norms, and config.model.norm={self.norm.value} "
                "has no bias: leave it out, or say norm=layer"
            )
        if self.lora.rank and self.experts.count and LoraTarget.FEED_FORWARD in self.lora.targets:
            raise UserError(
                "config.model.lora.targets holds feed_forward, whose networks are a mixture here "
                f"(config.model.experts.count={self.experts.count}): name attention's projections alone"
            )

    def check_memory_of_inputs(self) -> None:
        """Check that a memory of the layers' inputs holds what the layers read.

        Raises:
            UserError: If the first layer would read another input.
        """
        if self.norm_placement is NormPlacement.PRE_NORMED_INPUT:
            raise UserError(
                f"config.model.norm_placement={self.norm_placement.value} changes the input of the first layer, which "
                "a memory of that layer would not have: say pre"
            )

    def check_position_offset(self, offset: int) -> None:
        """Check that a first position above 0 is one of positions in the embeddings.

        Raises:
            UserError: If the model has none there.
        """
        if offset and self.positions not in (*SINUSOIDAL_POSITIONS, PositionEncoding.LEARNED):
            raise UserError(
                f"config.model.position_offset={offset} is of positions in the embeddings, and config.model.positions="
                f"{self.positions.value} has none there: leave it out, or say positions=learned or sinusoidal"
            )

    def check_relative_positions(self) -> None:
        """Check the buckets of relative positions, and a norm of their embeddings.

        Raises:
            UserError: If they do not go together; gives the keys, their values and what would be right.
        """
        disentangled = self.positions is PositionEncoding.DISENTANGLED
        if self.relative_embedding_norm and not disentangled:
            raise UserError(
                "config.model.relative_embedding_norm=True is of positions=disentangled, and config.model.positions="
                f"{self.positions.value}: leave it out"
            )
        buckets = f"config.model.relative_attention_num_buckets={self.relative_attention_num_buckets}"
        if disentangled and not self.relative_attention_num_buckets:
            return
        if self.relative_attention_num_buckets < 4 or self.relative_attention_num_buckets % 4:
            raise UserError(f"{buckets} must be a multiple of 4")
        quarter = self.relative_attention_num_buckets // 4
        alone = quarter + 1 if disentangled else quarter if self.bidirectional else 2 * quarter
        if (disentangled or self.positions is PositionEncoding.T5) and self.relative_attention_max_distance <= alone:
            raise UserError(
                f"config.model.relative_attention_max_distance={self.relative_attention_max_distance} must be above "
                f"{alone}, the distances that have a bucket each of {buckets}: say "
                f"relative_attention_max_distance={alone + 1} or more, or fewer buckets"
            )

    def check_rotary(self) -> None:
        """Check that keys of rotary positions go together, and with the other positions.

        Raises:
            UserError: If they do not; gives the keys, their values and what would be right.
        """
        if not self.positions.scheme.rotates_features:
            for name in ("rotary_fraction", "rotary_scaling", "rotary_pattern"):
                if getattr(self, name) != getattr(TransformerConfig, name):
                    raise UserError(
                        f"config.model.{name} is of rotary positions, and config.model.positions="
                        f"{self.positions.value}: leave it out, or say positions=rotary"
                    )
            return
        depth, width = self.resolved_head_dim, rotated_features(self.resolved_head_dim, self.rotary_fraction)
        if width % 2 or not width:
            part = "" if width == depth else f" x config.model.rotary_fraction={self.rotary_fraction} = {width}"
            raise UserError(
                f"head depth {depth}{part} is {'odd' if width else 'nothing'}; config.model.positions="
                f"{self.positions.value} rotates pairs of features"
            )
        try:
            self.rotary_scaling.check_features(width)
        except ValueError as error:
            raise UserError(f"config.model.rotary_scaling.{error}") from error

    def check_projections(self) -> None:
        """Check that attention without projections is asked for nothing that only projections can have.

        Raises:
            UserError: If it is; gives the keys, their values and what would be right.
        """
        if self.projections is Projections.LINEAR:
            return
        setting = f"config.model.projections={self.projections.value}"
        if self.resolved_kv_heads != self.heads:
            raise UserError(
                f"config.model.kv_heads={self.kv_heads} shares projected keys and values, which {setting} has not: say "
                f"kv_heads={self.heads} or none"
            )
        if self.resolved_head_dim != self.width // self.heads:
            raise UserError(
                f"config.model.head_dim={self.head_dim} does not cut the width {self.width} into "
                f"config.model.heads={self.heads} equal parts, as {setting} does: say head_dim=none"
            )
        targets = [target.value for target in self.lora.targets if target is not LoraTarget.FEED_FORWARD]
        if self.lora.rank and targets:
            raise UserError(
                f"config.model.lora.rank={self.lora.rank} updates {', '.join(targets)}, of which {setting} leaves no "
                "matrix: say config.model.lora.targets=(feed_forward,), or rank=0"
            )

    def check_attention(self) -> None:
        """Check that score, positions, backend and dropout of attention can be combined.

        Raises:
            UserError: If they cannot; gives the keys, their values and what would be right.
        """
        position = self.positions.within_attention
        kind = self.score_kind
        why = incompatible_reason(kind, position)
        if why is not None:
            scores = " or ".join(score.value for score in Score if incompatible_reason(score, position) is None)
            raise UserError(
                f"config.model.positions={self.positions.value} and config.model.score={score_name(kind)} do not go "
                f"together: {why}; say score={scores}, or other positions"
            )
        if self.attention_scale is not None and not score_class(kind).takes_scale:
            raise UserError(
                f"config.model.attention_scale={self.attention_scale} belongs to score=scaled_dot alone; "
                f"config.model.score={score_name(kind)}: leave it out"
            )
        if self.backend is Backend.AUTO:
            return
        used = {"softcap": self.attention_softcap is not None, "sinks": self.attention_sinks}
        features = frozenset(name for name, is_used in used.items() if is_used)
        why = unsupported_reason(self.backend, AttentionVariant(kind, position=position, features=features))
        if why is not None:
            raise UserError(f"config.model.{why}: say backend=auto or einsum")
        if self.attention_dropout and unsupported_reason(
            self.backend, AttentionVariant(features=frozenset({"dropout"}))
        ):
            raise UserError(
                f"config.model.attention_dropout={self.attention_dropout} drops weights, which config.model.backend="
                f"{self.backend.value} never has: say backend=auto or einsum, or attention_dropout=0"
            )

    def check_window_pattern(self, layers: str) -> None:
        """Check that a number of layers is a multiple of the periods of windows and of experts.

        Args:
            layers: Name of the field with the number of layers.

        Raises:
            UserError: If it is not.
        """
        count, experts = getattr(self, layers), self.experts
        if self.rotary_pattern and count % len(self.rotary_pattern):
            raise UserError(
                f"config.model.{layers}={count} is no multiple of the {len(self.rotary_pattern)} layers of "
                "config.model.rotary_pattern"
            )
        if self.attention_windows and count % len(self.attention_windows):
            raise UserError(
                f"config.model.{layers}={count} is no multiple of the {len(self.attention_windows)} windows of "
                f"config.model.attention_windows={self.attention_windows}"
            )
        if count % experts.layer_period:
            raise UserError(
                f"config.model.{layers}={count} is no multiple of "
                f"config.model.experts.every_n_layers={experts.every_n_layers}"
            )


def _nearest_divisor(number: int, target: int) -> int:
    below = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    divisors = sorted({*below, *(number // divisor for divisor in below)})
    return min(divisors, key=lambda divisor: abs(divisor - target))


def block_config_from(config: Any) -> TransformerConfig:
    """The Transformer config of a family that has another one: its fields of the same names, without positions."""
    shared = {field.name for field in dataclasses.fields(TransformerConfig)} - {"positions", "size"}
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in shared}
    return TransformerConfig(positions=PositionEncoding.NONE, **values)


def check_ring_attention(model: TransformerConfig, placement: Placement) -> None:
    """Check that the attention can run as a ring, where the placement asks for one.

    Args:
        model: The configuration of the Transformer.
        placement: The placement on the mesh.

    Raises:
        UserError: If it cannot; gives the keys that could change it.
    """
    parts = placement.num_shards("length")
    if parts == 1 or placement.sequence_attention is not SequenceParallel.RING:
        return
    if model.attention_dropout:
        raise UserError(
            f"config.model.attention_dropout={model.attention_dropout} drops weights, which a ring never has: say "
            "config.sharding.sequence_attention=gather, or 0"
        )
    spec = model.attention_spec(model.positions.within_attention)
    why = unsupported_reason(Backend.BLOCKWISE, AttentionVariant(spec.score, position=spec.position))
    if spec.backend not in (Backend.AUTO, Backend.BLOCKWISE):
        why = f"config.model.backend={spec.backend.value} is another"
    if why is not None:
        raise UserError(
            f"config.sharding.sequence={parts} with sequence_attention=ring runs in blocks, and {why}: say "
            "config.sharding.sequence_attention=gather, or change the model's attention"
        )
