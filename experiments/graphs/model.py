"""A Transformer over the nodes of a graph, whose attention knows the types of edges by a mask, a bias or vectors."""

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.graphs.data import GRAPH_CLASSIFICATION, NO_EDGE, TARGET
from transformer.attention import (
    AttentionParameters,
    AttentionPosition,
    AttentionSpec,
    Axis,
    AxisKind,
    Capture,
    CapturedAttention,
    Mask,
    Shaw,
    Site,
    attend,
    capture_for_site,
)
from transformer.config import Config, NumHeads, NumLayers, PositiveInt, UserError
from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import Module, ParameterBuilder, scan_layers
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear
from transformer.layers.norm import LayerNorm
from transformer.logical_axes import Placement, SequenceParallel
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

SITE = "graph/self"


class EdgeEncoding(enum.Enum):
    """How attention knows the edges.

    Attributes:
        NONE: Not at all: every node attends to every node.
        MASK: A node attends to the nodes that have an edge to it, of any type.
        TYPED_MASK: Head h attends along edges of type 1 + h mod T only, of T types (relational graph networks).
        BIAS: A learned number for each type and head is added to the logits; every node attends to every node.
        VECTORS: A learned vector for each type is added to the keys, and another to the values (Shaw et al. 2018,
            section 3.2).
    """

    NONE = "none"
    MASK = "mask"
    TYPED_MASK = "typed_mask"
    BIAS = "bias"
    VECTORS = "vectors"


@dataclasses.dataclass(frozen=True)
class GraphTransformerConfig(Config, path="config.model"):
    """The configuration of pre-norm blocks over nodes.

    Attributes:
        layers: Number of blocks. Each carries what a node knows along one edge.
        width: Features of a node.
        heads: Attention heads.
        feed_forward: Hidden units of the feed-forward network.
        edges: How attention knows the edges.

    Raises:
        UserError: If a value is out of range.
    """

    layers: NumLayers = 4
    width: PositiveInt = 32
    heads: NumHeads = 2
    feed_forward: PositiveInt = 64
    edges: EdgeEncoding = EdgeEncoding.VECTORS

    def _check(self) -> None:
        if self.width % self.heads:
            raise UserError(
                f"config.model.width={self.width} is not divisible by config.model.heads={self.heads}: say a multiple "
                f"of {self.heads}"
            )


class EdgeAttention(Module):
    """Multi-head self-attention over nodes that knows the edges between them.

    Args:
        config: The configuration.
        types: Number of types of edges, T with "no edge".
        builder: Makes the parameters.
    """

    def __init__(self, config: GraphTransformerConfig, types: int, builder: ParameterBuilder):
        depth = config.width // config.heads
        model, heads = (("embed", config.width),), (("heads", config.heads), ("head_dim", depth))
        self.query, self.key, self.value = (
            Linear(model, heads, bias=True, role=role, builder=builder)
            for role in (ParameterRole.QUERY, ParameterRole.KEY, ParameterRole.VALUE)
        )
        self.output = Linear(heads, model, bias=True, role=ParameterRole.OUTPUT, builder=builder)
        self.edges, self.types, self.heads = config.edges, types, config.heads
        if config.edges is EdgeEncoding.BIAS:
            start = jax.nn.initializers.normal(1.0)
            self.bias_table = builder.parameter(start, (types, config.heads), ("features", "heads"))
        if config.edges is EdgeEncoding.VECTORS:
            start = jax.nn.initializers.normal(depth**-0.5)
            self.key_table, self.value_table = (
                builder.parameter(start, (types, depth), ("features", "head_dim")) for _ in range(2)
            )

    @jax.named_scope("attention")
    def __call__(
        self, x_BxNxE: Float[Array, "B N E"], edges_BxNxN: Int[Array, "B N N"], capture: Capture | None
    ) -> tuple[Float[Array, "B N E"], CapturedAttention | None]:
        """Attend from every node to all nodes, or to those that the mask lets it see.

        Args:
            x_BxNxE: The nodes.
            edges_BxNxN: The type of the edge from node j to node i.
            capture: What to capture.

        Returns:
            The output, and what was captured.
        """
        spec, mask, bias, params = AttentionSpec(), Mask(), None, None
        match self.edges:
            case EdgeEncoding.MASK:
                mask = Mask(allowed=(edges_BxNxN != NO_EDGE)[:, None])
            case EdgeEncoding.TYPED_MASK:
                type_of_head_H = 1 + jnp.arange(self.heads) % (self.types - 1)
                mask = Mask(allowed=edges_BxNxN[:, None] == type_of_head_H[None, :, None, None])
            case EdgeEncoding.BIAS:
                bias = jnp.moveaxis(self.bias_table[...][edges_BxNxN], -1, 1)
            case EdgeEncoding.VECTORS:
                spec = AttentionSpec(position=AttentionPosition.SHAW)
                keys_TxD, values_TxD = (
                    jnp.asarray(table[...], x_BxNxE.dtype) for table in (self.key_table, self.value_table)
                )
                params = AttentionParameters(position=Shaw(keys_TxD, values_TxD, edges_BxNxN))
        output, attended = attend(
            self.query(x_BxNxE),
            self.key(x_BxNxE),
            self.value(x_BxNxE),
            spec=spec,
            mask=mask,
            bias=bias,
            params=params,
            capture=capture,
        )
        return self.output(output), attended.captured


class GraphBlock(Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: GraphTransformerConfig, types: int, builder: ParameterBuilder):
        self.attention_norm, self.feed_forward_norm = (LayerNorm(config.width, builder=builder) for _ in range(2))
        self.attention = EdgeAttention(config, types, builder)
        self.feed_forward = FeedForward(
            config.width, config.feed_forward, activation=Activation.RELU, bias=True, builder=builder
        )

    def __call__(
        self, x_BxNxE: Float[Array, "B N E"], edges_BxNxN: Int[Array, "B N N"], capture: Capture | None
    ) -> tuple[Float[Array, "B N E"], CapturedAttention | None]:
        """Return the nodes after this block, and what its attention captured."""
        read_BxNxE, captured = self.attention(self.attention_norm(x_BxNxE), edges_BxNxN, capture)
        x_BxNxE = x_BxNxE + read_BxNxE
        return x_BxNxE + self.feed_forward(self.feed_forward_norm(x_BxNxE)), captured


class GraphTransformer(StatelessModule):
    """A vector for each node's mark; blocks; logits V norm(x_t) + c of the target node t.

    Inputs and output: `GRAPH_CLASSIFICATION`.
    """

    def __init__(self, config: GraphTransformerConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.dtype = builder.dtype
        marks, width = interface.vocabularies["marks"], config.width
        # Not an `Embedding`: its rows are words, which a mesh may divide, and there are three marks.
        start = builder.rule(ParameterRole.EMBEDDING, marks, width)
        self.mark_table = builder.parameter(start, (marks, width), ("features", "embed"))
        types = interface.vocabularies["edge types"]
        self.layers = builder.stack(functools.partial(GraphBlock, config, types), config.layers)
        self.norm = LayerNorm(config.width, builder=builder)
        classes = (("classes", interface.vocabularies["classes"]),)
        self.head = Linear((("embed", config.width),), classes, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes."""
        marks_BxN, edges_BxNxN = (jnp.asarray(inputs[name]) for name in ("marks", "edges"))
        capture = capture_for_site(SITE, forward_pass.capture)
        x_BxNxE, captured = scan_layers(
            lambda block, x, _: block(x, edges_BxNxN, capture),
            self.layers,
            jnp.asarray(self.mark_table[...], self.dtype)[marks_BxN],
            None,
        )
        target_BxN = (marks_BxN == TARGET).astype(x_BxNxE.dtype)
        logits_BxC = self.head.logits(self.norm(jnp.einsum("bn,bne->be", target_BxN, x_BxNxE)))
        return logits_BxC, Aux({} if captured is None else {SITE: captured}, {}, state)


def attention_sites(config: GraphTransformerConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model, over nodes."""
    nodes = Axis("nodes", AxisKind.SLOTS)
    layers, heads = tuple(map(str, range(config.layers))), tuple(map(str, range(config.heads)))
    return (Site(SITE, nodes, nodes, layers, heads),)


def check_ring_attention_placement(config: GraphTransformerConfig, placement: Placement) -> None:
    """Check that the attention can run as a ring, where the placement asks for one.

    Raises:
        UserError: If it cannot; says what to change.
    """
    ring = placement.num_shards("length") > 1 and placement.sequence_attention is SequenceParallel.RING
    if ring and config.edges is EdgeEncoding.VECTORS:
        raise UserError(
            "config.sharding.sequence_attention=ring runs in blocks, which do not take the vectors of "
            "config.model.edges=vectors: say sequence_attention=gather, or another config.model.edges"
        )


FAMILY = ModelFamily(
    GraphTransformerConfig,
    GraphTransformer,
    frozenset({GRAPH_CLASSIFICATION}),
    check_ring_attention_placement=check_ring_attention_placement,
    embedding_patterns=("mark_table",),
    sites=attention_sites,
)
