"""The Vision Transformer over patches of an image (Dosovitskiy et al. 2021; DeiT, Touvron et al. 2021)."""

import dataclasses
import enum
import functools
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.attention_spec import Backend
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, single_layer_maps
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.scores import DEFAULT_SCORE, Score
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NonNegativeFloat, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.attention_pooling import AttentionPooling
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_positions import GridPositionEmbeddings, GridPositionEncoding
from transformer.layers.initialization import Initialization, InitializationRule, deepnorm
from transformer.layers.linear import Linear
from transformer.layers.lora import LoraConfig
from transformer.layers.norm import NormKind
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import (
    Biases,
    Remat,
    TransformerConfig,
    block_config_from,
    check_ring_attention,
)
from transformer.logical_axes import Placement
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily, PublishedSize
from transformer.models.task_interface import IMAGE_CLASSIFICATION, TaskInterface
from transformer.models.transformer_base import (
    BlockStacks,
    capture_for_stack,
    final_states,
    gates_for_stack,
    identity,
    maps_of_stack,
    sites_of_stack,
)

STACK, POOLING = "encoder", "pooling"


class ImagePooling(enum.Enum):
    """How the states are pooled for the classification head.

    Attributes:
        CLASS_TOKEN: The state of a learned token before the patches (Dosovitskiy et al. 2021, equation 4).
        MEAN: The mean of the patches' states (appendix D.3), without an additional token.
        PATCH_MEAN: The same beside a class token, which is not read (He et al. 2022, appendix A.1).
        CLASS_TOKEN_AND_MEAN: The class token's state beside the mean of the patches' (Oquab et al. 2023, DINOv2,
            appendix B.3).
        ATTENTION: Attention from a trained query over the patches' states, without an additional token
            (transformer.layers.attention_pooling).
        DISTILLED: A class token and a distillation token, each with its own head; the mean of both logits (DeiT,
            Touvron et al. 2021, section 4, who add the classes' probabilities; their code has this mean). It loads such
            models and trains them on labels: there is no distillation from a teacher.
    """

    CLASS_TOKEN = "class_token"
    MEAN = "mean"
    PATCH_MEAN = "patch_mean"
    CLASS_TOKEN_AND_MEAN = "class_token_and_mean"
    ATTENTION = "attention"
    DISTILLED = "distilled"

    @property
    def num_extra_tokens(self) -> int:
        """The number of tokens before the patches."""
        return {ImagePooling.MEAN: 0, ImagePooling.ATTENTION: 0, ImagePooling.DISTILLED: 2}.get(self, 1)


class FinalNorm(enum.Enum):
    """The norm after the last block.

    Attributes:
        STATES: Of all states, of which the pooled state is then made (Dosovitskiy et al. 2021, equation 4).
        POOLED: Of the pooled state alone (Radford et al. 2021, CLIP; He et al. 2022, appendix A.1).
        NONE: None.
    """

    STATES = "states"
    POOLED = "pooled"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class VitConfig(Config, path="config.model"):
    """The configuration of a Vision Transformer; the defaults are ViT-B/16 (Dosovitskiy et al. 2021, table 1).

    The keys that are not listed are those of `TransformerConfig`.

    Attributes:
        patch_size: Side of a patch in pixels; each patch becomes one vector.
        patch_bias: Whether the projection of patches has a bias; learned positions can hold it as well.
        layers: Number of blocks.
        positions: The position embeddings of patches.
        pooling: How states are pooled for the head.
        final_norm: What the norm after the last block acts on.
        add_pooling_layer: Whether a model without a head has a pooler, a projection of the first state, as the
            published models without a head have.
        size: A published model whose values fill the keys that are not set.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    patch_size: PositiveInt = 16
    patch_bias: bool = True
    layers: NumLayers = 12
    width: PositiveInt = 768
    heads: NumHeads = 12
    feed_forward: PositiveInt = 3072
    positions: GridPositionEncoding = GridPositionEncoding.LEARNED
    pooling: ImagePooling = ImagePooling.CLASS_TOKEN
    final_norm: FinalNorm = FinalNorm.STATES
    add_pooling_layer: bool = False
    activation: Activation = Activation.GELU
    norm: NormKind = NormKind.LAYER
    norm_epsilon: NonNegativeFloat = 1e-6
    norm_placement: NormPlacement = NormPlacement.PRE
    embedding_norm: bool = False
    layer_scale: float | None = None
    biases: Biases = Biases.ALL
    initialization: Initialization = Initialization.XAVIER
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    score: Score | str = DEFAULT_SCORE
    backend: Backend = Backend.AUTO
    remat: Remat = Remat.NONE
    scan_unroll: PositiveInt = 1
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    size: str | None = None

    def _check(self) -> None:
        _ = self.blocks  # which checks its values
        self.positions.check(self.width)
        if self.final_norm is not FinalNorm.STATES and not self.norm_placement.final_norm:
            raise UserError(
                f"config.model.final_norm={self.final_norm.value} says where the norm after the last block stands, and "
                f"config.model.norm_placement={self.norm_placement.value} has none: leave it out"
            )
        if self.final_norm is FinalNorm.POOLED and self.pooling in _WITHOUT_ONE_POOLED_STATE:
            raise UserError(
                f"config.model.final_norm=pooled is of one pooled state of the model's width, which "
                f"config.model.pooling={self.pooling.value} has not: say final_norm=states"
            )
        if self.add_pooling_layer and self.pools_without_head:
            raise UserError(
                f"config.model.add_pooling_layer=True projects the first state, and config.model.pooling="
                f"{self.pooling.value} with final_norm={self.final_norm.value} pools by itself: leave it out"
            )

    @property
    def pools_without_head(self) -> bool:
        """Whether pooling has parameters, so that a model without a head returns its pooled state, too."""
        return self.final_norm is FinalNorm.POOLED or self.pooling is ImagePooling.ATTENTION

    @property
    def blocks(self) -> TransformerConfig:
        """The config of the Transformer blocks."""
        return block_config_from(self)

    def grid(self, height: int, width: int) -> Axis:
        """Return the axis of attention maps: the tokens before the patches, and the grid of patches.

        Raises:
            UserError: If the patch size does not divide the image.
        """
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                f"the task's images of {height} x {width} pixels are not divisible by "
                f"config.model.patch_size={self.patch_size}"
            )
        shape = (height // self.patch_size, width // self.patch_size)
        return Axis(
            "patches",
            AxisKind.GRID,
            shape,
            stride=float(self.patch_size),
            num_leading_positions=self.pooling.num_extra_tokens,
        )


_WITHOUT_ONE_POOLED_STATE = (ImagePooling.CLASS_TOKEN_AND_MEAN, ImagePooling.DISTILLED)


class Vit(BlockStacks):
    """Vision Transformer: z_0 = [class; x_1 E; ... x_N E] + E_pos; blocks; y = norm(z_L) (equations 1 to 4).

    inputs: `image` [B, height, width, channels]. Outputs: logits [B, C]; for a task without classes, the states y
    [B, N, E] of the tokens and patches. With a pooler, the extras have tanh(y_0 W + b) as `pooled`, and without a head
    the pooled state if pooling has parameters.
    """

    def __init__(self, config: VitConfig, interface: TaskInterface, builder: ParameterBuilder):
        _, height, width, channels = interface.inputs["image"].shape
        grid, blocks, deep = config.grid(height, width), config.blocks, deepnorm(config.layers)
        assert grid.shape is not None
        builder = builder.with_rule(
            InitializationRule(config.initialization, 2 * config.layers, blocks.resolved_head_dim, deep.beta)
        )
        self.config, self.pooling, self.shape, self.patch = blocks, config.pooling, grid.shape, config.patch_size
        self.pools_without_head = config.pools_without_head
        self.count, self.dtype, tokens = config.layers, builder.dtype, config.pooling.num_extra_tokens
        distilled = config.pooling is ImagePooling.DISTILLED
        model, num_classes = (("embed", config.width),), interface.vocabularies.get("classes", 0)
        pixels = (("features", config.patch_size), ("features", config.patch_size), ("features", channels))
        self.embed = Linear(pixels, model, bias=config.patch_bias, builder=builder)

        def token() -> Any:
            return builder.parameter(jax.nn.initializers.zeros, (1, config.width), ("positions", "embed"))

        self.class_token = token() if tokens else None
        self.distillation_token = token() if distilled else None
        self.positions = GridPositionEmbeddings(
            config.positions, grid.shape, config.width, num_class_tokens=tokens, builder=builder
        )
        self.embedding_norm = blocks.make_norm(builder) if config.embedding_norm else identity
        self.layers = self.make_blocks(config.layers, cross=False, deep=deep, builder=builder)
        self.norm = self.make_final_norm(builder) if config.final_norm is FinalNorm.STATES else identity
        self.pooled_norm = self.make_final_norm(builder) if config.final_norm is FinalNorm.POOLED else identity
        attends = config.pooling is ImagePooling.ATTENTION
        self.attention_pooling = AttentionPooling(blocks, builder=builder) if attends else None
        classes = (("classes", num_classes),)
        parts = 2 if config.pooling is ImagePooling.CLASS_TOKEN_AND_MEAN else 1
        pooled = (("embed", parts * config.width),)
        self.head = Linear(pooled, classes, bias=True, builder=builder) if num_classes else None
        self.distilled = Linear(model, classes, bias=True, builder=builder) if num_classes and distilled else None
        features = (("features", config.width),)
        self.pooler = Linear(model, features, bias=True, builder=builder) if config.add_pooling_layer else None

    def patches(self, image_BxYxXxC: Float[Array, "B Y X C"]) -> Float[Array, "B N E"]:
        """Return the embedding of each patch, in row-major order."""
        (rows, columns), patch = self.shape, self.patch
        cut = image_BxYxXxC.reshape(len(image_BxYxXxC), rows, patch, columns, patch, -1)
        cut = jnp.swapaxes(cut, 2, 3).reshape(len(cut), rows * columns, patch, patch, -1)
        return self.embed(cut)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *N _"], Aux]:
        """Return the logits of the classes, or the states without a head."""
        embedding_key, layers_key = split_key(forward_pass.training_key)
        x_BxNxE = self.patches(jnp.asarray(inputs["image"], self.dtype))
        for token in (self.distillation_token, self.class_token):
            if token is not None:
                first = jnp.asarray(token[...], self.dtype)
                x_BxNxE = jnp.concatenate([jnp.broadcast_to(first, (len(x_BxNxE), *first.shape)), x_BxNxE], axis=1)
        x_BxNxE = dropout(self.embedding_norm(self.positions(x_BxNxE)), self.config.dropout, embedding_key)
        with jax.named_scope(STACK):
            x_BxNxE, outputs = scan_blocks(
                self.layers,
                self.config,
                self.count,
                functools.partial(Block.__call__, mask=Mask(), capture=capture_for_stack(STACK, forward_pass.capture)),
                x_BxNxE,
                key=layers_key,
                gates=gates_for_stack(STACK, forward_pass.capture),
            )
            x_BxNxE = final_states(self.norm, x_BxNxE)
        maps = maps_of_stack(STACK, stack_by_layer(outputs))
        extras = {} if self.pooler is None else {"pooled": jnp.tanh(self.pooler(x_BxNxE[:, 0]))}
        if self.head is None and not self.pools_without_head:
            return x_BxNxE, Aux(maps, extras, state)
        pooling_key = None if layers_key is None else jax.random.fold_in(layers_key, self.count)
        with jax.named_scope(POOLING):
            pooled, captured = self.pool(x_BxNxE, pooling_key, capture_for_site(POOLING, forward_pass.capture))
        maps |= single_layer_maps(POOLING, captured, forward_pass.capture)
        if self.head is None:
            return x_BxNxE, Aux(maps, {"pooled": pooled}, state)
        return self.logits(pooled), Aux(maps, extras, state)

    def pool(
        self, x_BxNxE: Float[Array, "B N E"], key: Key[Array, ""] | None = None, capture: Capture | None = None
    ) -> tuple[Float[Array, "B *T F"], CapturedAttention | None]:
        """Pool the states after the last block.

        Args:
            x_BxNxE: The states.
            key: Random key for dropout in attention pooling; None means evaluation.
            capture: Which maps of attention pooling to capture.

        Returns:
            What the head reads, for two heads the states of both tokens [B, 2, E]; and what was captured.
        """
        captured = None
        match self.pooling:
            case ImagePooling.CLASS_TOKEN:
                pooled = x_BxNxE[:, 0]
            case ImagePooling.MEAN:
                pooled = jnp.mean(x_BxNxE, axis=1)
            case ImagePooling.PATCH_MEAN:
                pooled = jnp.mean(x_BxNxE[:, 1:], axis=1)
            case ImagePooling.CLASS_TOKEN_AND_MEAN:
                pooled = jnp.concatenate([x_BxNxE[:, 0], jnp.mean(x_BxNxE[:, 1:], axis=1)], axis=-1)
            case ImagePooling.ATTENTION:
                assert self.attention_pooling is not None
                pooled, captured = self.attention_pooling(x_BxNxE, key=key, capture=capture)
            case ImagePooling.DISTILLED:
                pooled = x_BxNxE[:, :2]
            case _:
                assert_never(self.pooling)
        return self.pooled_norm(pooled), captured

    def logits(self, pooled: Float[Array, "B *T F"]) -> Float[Array, "B C"]:
        """Return the logits of the classes from what `pool` returns.

        Raises:
            ValueError: If the model has no head.
        """
        if self.head is None:
            raise ValueError("this Vision Transformer has no head: build it for a task with classes")
        if self.distilled is None:
            return self.head.logits(pooled)
        return (self.head.logits(pooled[:, 0]) + self.distilled.logits(pooled[:, 1])) / 2


def check_task(config: VitConfig, interface: TaskInterface) -> None:
    """Check that a model with a head has no pooler, which it would not read.

    Raises:
        UserError: If it has one.
    """
    if config.add_pooling_layer and interface.vocabularies.get("classes"):
        raise UserError(
            "config.model.add_pooling_layer=True is not read by a model with classes, whose head reads the states: "
            "leave it out"
        )


def attention_sites(config: VitConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model, over the patches of the task's images.

    Raises:
        UserError: If the patch size does not divide the images.
    """
    _, height, width, _ = interface.inputs["image"].shape
    grid = config.grid(height, width)
    sites = sites_of_stack(STACK, config.blocks, config.layers, grid, grid)
    if config.pooling is ImagePooling.ATTENTION:
        probe, heads = Axis("class", AxisKind.SLOTS, num_positions=1), tuple(map(str, range(config.heads)))
        sites += (Site(POOLING, probe, grid, layers=("0",), heads=heads),)
    return sites


def check_ring_attention_placement(config: VitConfig, placement: Placement) -> None:
    """Check that the attention supports ring attention if the placement needs it.

    Raises:
        UserError: If it does not; gives the keys that could change it.
    """
    check_ring_attention(config.blocks, placement)


def _published_size(
    patch: int, layers: int, width: int, heads: int, citation: str, published: float, **changes: Any
) -> PublishedSize:
    """Return a published size, for images of 224 x 224 pixels and the 1000 classes of ImageNet."""
    values = {
        "patch_size": patch,
        "layers": layers,
        "width": width,
        "heads": heads,
        "feed_forward": 4 * width,
        "positions": "learned",
        "pooling": "class_token",
        "activation": "gelu",
        "norm": "layer",
        "norm_placement": "pre",
        "biases": "all",
        "score": "scaled_dot",
    }
    values |= changes
    tokens = (224 // patch) ** 2 + ImagePooling(values["pooling"]).num_extra_tokens
    return PublishedSize("vit", values, 1000, tokens, citation, published, image_size=224)


_VIT, _DEIT = "Dosovitskiy et al. 2021, table 1", "Touvron et al. 2021, table 1"
SIZES = {
    "vit-b16": _published_size(16, 12, 768, 12, _VIT, 86e6),
    "vit-b32": _published_size(32, 12, 768, 12, _VIT, 86e6),
    "vit-l16": _published_size(16, 24, 1024, 16, _VIT, 307e6),
    "vit-l32": _published_size(32, 24, 1024, 16, _VIT, 307e6),
    "vit-h14": _published_size(14, 32, 1280, 16, _VIT, 632e6),
    "deit-ti16": _published_size(16, 12, 192, 3, _DEIT, 5e6),
    "deit-s16": _published_size(16, 12, 384, 6, _DEIT, 22e6),
    "deit-b16-distilled": _published_size(16, 12, 768, 12, "Touvron et al. 2021, table 5", 87e6, pooling="distilled"),
}

FAMILY = ModelFamily(
    VitConfig,
    Vit,
    frozenset({IMAGE_CLASSIFICATION}),
    sizes=SIZES,
    check_ring_attention_placement=check_ring_attention_placement,
    embedding_patterns=("embed/*", "class_token", "distillation_token", "positions/*", "embedding_norm/*"),
    sites=attention_sites,
    check=check_task,
)
