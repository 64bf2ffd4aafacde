"""Self-attention over a set: unordered points, processed by blocks without positions (Lee et al. 2019)."""

import dataclasses
import enum
import functools
from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.point_clouds.signature import POINT_CLASSIFICATION
from transformer.attention.attention_spec import Backend
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, single_layer_maps
from transformer.attention.masks import Mask
from transformer.attention.scores import DEFAULT_SCORE, Score
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NumHeads, NumLayersOrZero, PositiveInt, Rate
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import InitializationRule, deepnorm
from transformer.layers.linear import Linear
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.residual import NormPlacement
from transformer.layers.sequence_lengths import real_positions
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import Projections, TransformerConfig, block_config_from
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface
from transformer.models.transformer_base import (
    BlockStacks,
    capture_for_stack,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)

STACK, POOLED = "encoder", "classifier/pooling"


class Pooling(enum.Enum):
    """How all points become one vector.

    attention: the output of a learned query, the attention of PMA with one seed (Lee et al. 2019, section 3.2) without
    its residual connections, norms and feed-forward networks. mean and max: of each feature over the points (Zaheer et
    al. 2017, Deep Sets; Qi et al. 2017, PointNet).
    """

    ATTENTION = "attention"
    MEAN = "mean"
    MAX = "max"


@dataclasses.dataclass(frozen=True)
class SetTransformerConfig(Config, path="config.model"):
    """The configuration of blocks over points, pooled to one vector; the other fields are those of TransformerConfig.

    Attributes:
        layers: Number of blocks; with 0 points do not interact before they are pooled.
        width: Features of a point.
        projections: Whether the blocks' self-attention projects its inputs; that of pooling always does.
        pooling: How points become one vector.

    Raises:
        UserError: If a value is out of range.
    """

    layers: NumLayersOrZero = 2
    width: PositiveInt = 64
    heads: NumHeads = 4
    projections: Projections = TransformerConfig.projections
    feed_forward: PositiveInt = 128
    pooling: Pooling = Pooling.ATTENTION
    dropout: Rate = 0.0
    score: Score | str = DEFAULT_SCORE
    backend: Backend = Backend.AUTO

    def _check(self) -> None:
        _ = self.blocks  # which checks its values

    @property
    def blocks(self) -> TransformerConfig:
        """The config of the blocks, pre-norm and without positions."""
        return dataclasses.replace(block_config_from(self), norm_placement=NormPlacement.PRE)


class SetTransformer(BlockStacks):
    """Blocks over W x_n + b of every point, the pooled vector r, logits V r + c.

    Inputs: `points` [B, N, D], `lengths` [B], the number of real points. Outputs: logits [B, C].
    """

    def __init__(self, config: SetTransformerConfig, interface: TaskInterface, builder: ParameterBuilder):
        blocks, deep = config.blocks, deepnorm(max(config.layers, 1))
        builder = builder.with_rule(
            InitializationRule(blocks.initialization, 2 * config.layers, blocks.resolved_head_dim, deep.beta)
        )
        self.config, self.count, self.pooling, self.dtype = blocks, config.layers, config.pooling, builder.dtype
        embed_axes, classes = (("embed", config.width),), (("classes", interface.vocabularies["classes"]),)
        coordinates = (("features", interface.inputs["points"].shape[-1]),)
        self.embed = Linear(coordinates, embed_axes, bias=True, builder=builder)
        make_blocks = functools.partial(self.make_blocks, cross=False, deep=deep, builder=builder)
        self.layers = make_blocks(config.layers) if config.layers else None
        if config.layers:
            self.norm = self.make_final_norm(builder)
        if config.pooling is Pooling.ATTENTION:
            self.seed = builder.parameter(jax.nn.initializers.normal(1.0), (1, config.width), ("positions", "embed"))
            projected = dataclasses.replace(blocks, projections=Projections.LINEAR)
            self.attention = MultiHeadAttention(projected, cross=False, builder=builder)
        self.head = Linear(embed_axes, classes, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes; values at or beyond the number of points, even NaN, are never read."""
        points_BxNxD, lengths_B = jnp.asarray(inputs["points"], self.dtype), jnp.asarray(inputs["lengths"])
        real_BxN = real_positions(lengths_B, points_BxNxD.shape[1])
        x_BxNxE = self.embed(jnp.where(real_BxN[..., None], points_BxNxD, 0))
        layers_key, pooling_key = split_key(forward_pass.training_key)
        maps: dict[str, CapturedAttention] = {}
        if self.layers is not None:
            with jax.named_scope(STACK):
                x_BxNxE, outputs = scan_blocks(
                    self.layers,
                    self.config,
                    self.count,
                    functools.partial(
                        Block.__call__,
                        mask=Mask(query_lengths=lengths_B, key_lengths=lengths_B),
                        capture=capture_for_stack(STACK, forward_pass.capture),
                    ),
                    x_BxNxE,
                    key=layers_key,
                    gates=gates_for_stack(STACK, forward_pass.capture),
                )
                x_BxNxE = final_states(self.norm, x_BxNxE)
            maps = maps_of_stack(STACK, stack_by_layer(outputs))
        with jax.named_scope(POOLED):
            pooled_BxE, captured = self.pool(
                x_BxNxE, lengths_B, pooling_key, capture_for_site(POOLED, forward_pass.capture)
            )
        maps |= single_layer_maps(POOLED, captured, forward_pass.capture)
        return self.head.logits(pooled_BxE), Aux(maps, {}, state)

    def pool(
        self,
        x_BxNxE: Float[Array, "B N E"],
        lengths_B: Int[Array, " B"],
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B E"], CapturedAttention | None]:
        """Pool each set to one vector, zero for an empty set.

        Args:
            x_BxNxE: The points.
            lengths_B: The number of real points.
            key: The random key of dropout.
            capture: What to capture of attention pooling.

        Returns:
            The vectors, and what was captured.
        """
        real_BxNx1 = real_positions(lengths_B, x_BxNxE.shape[1])[..., None]
        match self.pooling:
            case Pooling.ATTENTION:
                seed_Bx1xE = jnp.broadcast_to(
                    jnp.asarray(self.seed[...], self.dtype), (len(x_BxNxE), 1, self.config.width)
                )
                mask = Mask(key_lengths=lengths_B)
                read_Bx1xE, captured = self.attention(seed_Bx1xE, x_BxNxE, mask=mask, key=key, capture=capture)
                return read_Bx1xE[:, 0], captured
            case Pooling.MEAN:
                total_BxE = jnp.sum(jnp.where(real_BxNx1, x_BxNxE, 0), axis=1)
                return total_BxE / jnp.maximum(lengths_B, 1)[:, None].astype(x_BxNxE.dtype), None
            case Pooling.MAX:
                largest_BxE = jnp.max(jnp.where(real_BxNx1, x_BxNxE, -jnp.inf), axis=1)
                return jnp.where(lengths_B[:, None] > 0, largest_BxE, 0), None
            case _:
                assert_never(self.pooling)


def attention_sites(config: SetTransformerConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model, over points."""
    points = Axis("points", AxisKind.POINTS)
    sites: tuple[Site, ...] = (
        sites_of_stack(STACK, config.blocks, config.layers, points, points) if config.layers else ()
    )
    if config.pooling is Pooling.ATTENTION:
        heads = tuple(map(str, range(config.heads)))
        sites += (Site(POOLED, Axis("class", AxisKind.SLOTS, num_positions=1), points, layers=("0",), heads=heads),)
    return sites


FAMILY = ModelFamily(
    SetTransformerConfig,
    SetTransformer,
    frozenset({POINT_CLASSIFICATION}),
    embedding_patterns=("embed/*",),
    sites=attention_sites,
)
