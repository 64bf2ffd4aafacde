"""The graph Transformer against its equations in NumPy float64, and how far it sees."""

from typing import Any

import jax
import numpy as np
import pytest

from experiments.graphs.data import GRAPH_CLASSIFICATION, sample_graphs
from experiments.graphs.model import (
    SITE,
    EdgeAttention,
    EdgeEncoding,
    GraphTransformerConfig,
    check_ring_attention_placement,
)
from tests import programs
from tests.oracles import transformer as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import FunctionalModule, Precision
from transformer.logical_axes import SequenceParallel
from transformer.models import registry
from transformer.models.model import Model, Variables
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.training.partitioning import ShardingConfig, make_placement

GRAPHS = sample_graphs(np.random.default_rng(0), 4, 7, 1, 4)
INPUTS = {"marks": GRAPHS.marks.astype(np.int32), "edges": GRAPHS.edges.astype(np.int32)}
HEADS, DEPTH = 2, 4
FLOAT64 = Precision("float64", "float64")
SMALL: dict[str, Any] = {"layers": 2, "width": HEADS * DEPTH, "heads": HEADS, "feed_forward": 6}


def random_params(module: FunctionalModule) -> Any:
    random = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: 0.5 * random.normal(size=leaf.shape), module.shapes())


@pytest.fixture(scope="module")
def model() -> Model:
    """Two layers with a mask by type, so that all tests of the whole share one program."""
    inputs = {name: InputSpec(x.shape) for name, x in INPUTS.items()}
    vocabularies = {"marks": 3, "edge types": 3, "classes": 4}
    interface = TaskInterface(inputs, vocabularies, output=GRAPH_CLASSIFICATION.output)
    config = GraphTransformerConfig(**SMALL, edges=EdgeEncoding.TYPED_MASK)
    with jax.enable_x64(True):
        return registry.build(config, interface, FLOAT64)


def run(model: Model, inputs: dict[str, np.ndarray]) -> tuple[Any, np.ndarray, np.ndarray]:
    """The parameters, the logits and the maps."""
    with jax.enable_x64(True):
        params = random_params(model.functional)
        logits, aux = programs.apply(model, Variables(params, {}), inputs, train=False, capture=Capture((SITE,)))
        weights = aux.maps[SITE].weights
        assert weights is not None
    return params, np.asarray(logits), np.asarray(weights)


def attended(p: Any, kind: EdgeEncoding, x: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention of one graph, one query, head and key at a time."""
    q, k, v = (np.einsum("ne,ehd->nhd", x, p[n]["kernel"]) + p[n]["bias"] for n in ("query", "key", "value"))
    nodes, weights, output = len(x), np.zeros((HEADS, len(x), len(x))), np.zeros((len(x), HEADS, DEPTH))
    for head, i in np.ndindex(HEADS, nodes):
        logits, values = np.full(nodes, -np.inf), v[:, head].copy()
        for j in range(nodes):
            edge, key = edges[i, j], k[j, head]
            if kind is EdgeEncoding.VECTORS:
                key, values[j] = key + p["key_table"][edge], values[j] + p["value_table"][edge]
            visible = {EdgeEncoding.MASK: edge > 0, EdgeEncoding.TYPED_MASK: edge == head + 1}.get(kind, True)
            if visible:
                logits[j] = q[i, head] @ key / np.sqrt(DEPTH)
            if kind is EdgeEncoding.BIAS:
                logits[j] += p["bias_table"][edge, head]
        powers = np.exp(logits - logits.max())
        weights[head, i] = powers / powers.sum()
        output[i, head] = weights[head, i] @ values
    return np.einsum("nhd,hde->ne", output, p["output"]["kernel"]) + p["output"]["bias"], weights


@pytest.mark.parametrize("kind", EdgeEncoding, ids=lambda kind: kind.value)
def test_attention_is_that_of_its_equation(kind: EdgeEncoding) -> None:
    config = GraphTransformerConfig(**SMALL, edges=kind)
    x = np.random.default_rng(3).normal(size=(4, 7, HEADS * DEPTH))
    with jax.enable_x64(True):
        module = FunctionalModule(lambda builder: EdgeAttention(config, 3, builder), FLOAT64)
        params = random_params(module)
        # Operation by operation: the kinds share most of them, and as whole programs nothing.
        output, captured = module.bind(jax.device_put(params))(
            jax.device_put(x), jax.device_put(GRAPHS.edges), Capture((SITE,))
        )
    assert captured is not None
    for row, edges in enumerate(GRAPHS.edges):
        expected, weights = attended(params, kind, x[row], edges)
        np.testing.assert_allclose(output[row], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(captured.weights[row], weights, rtol=0, atol=1e-12)


def test_logits_and_maps_are_those_of_the_equations(model: Model) -> None:
    params, found, maps = run(model, INPUTS)
    for row, (edges, marks) in enumerate(zip(GRAPHS.edges, GRAPHS.marks, strict=True)):
        x = params["mark_table"][marks]
        for layer, block in enumerate(oracle.layers_of(params["layers"])):
            normed = oracle.layer_norm(block["attention_norm"], x)
            read, weights = attended(block["attention"], EdgeEncoding.TYPED_MASK, normed, edges)
            np.testing.assert_allclose(maps[layer, row], weights, rtol=0, atol=1e-12)
            x = x + read
            x = x + oracle.feed_forward(block["feed_forward"], oracle.layer_norm(block["feed_forward_norm"], x))
        last = oracle.layer_norm(params["norm"], x[marks == 2])
        np.testing.assert_allclose(found[row], oracle.affine(params["head"], last)[0], rtol=0, atol=1e-11)


def test_a_masked_target_sees_as_many_edges_back_as_there_are_layers(model: Model) -> None:
    """Of two layers: the mark of a source that is one or two edges away has an effect, and none farther away."""
    edges, marks = np.zeros_like(INPUTS["edges"]), np.zeros_like(INPUTS["marks"])
    edges[:, np.arange(1, 7), np.arange(6)] = 1
    marks[:, 6] = 2
    marks[np.arange(4), 5 - np.arange(4)] = 1  # one edge before the target, two, three and four
    _, logits, _ = run(model, {"marks": marks, "edges": edges})
    differences = np.abs(logits - logits[-1]).max(axis=1)
    assert (differences[:2] > 1e-3).all()
    assert (differences[2:] == 0).all()


def test_the_order_of_nodes_changes_nothing(model: Model) -> None:
    order = np.random.default_rng(2).permutation(7)
    shuffled = {"marks": INPUTS["marks"][:, order], "edges": INPUTS["edges"][:, order][:, :, order]}
    (_, here, maps), (_, there, of_shuffled) = run(model, INPUTS), run(model, shuffled)
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-12)
    np.testing.assert_allclose(maps[..., order, :][..., order], of_shuffled, rtol=0, atol=1e-12)


def test_vectors_of_edges_are_refused_where_a_ring_is_asked_for() -> None:
    def check(kind: EdgeEncoding, how: SequenceParallel, parts: int = 2) -> None:
        config = ShardingConfig(data=1, sequence=parts, rules="sp", sequence_attention=how)
        placement = make_placement(config, jax.devices()[:parts])
        check_ring_attention_placement(GraphTransformerConfig(edges=kind), placement)

    with pytest.raises(UserError, match="edges=vectors: say sequence_attention=gather, or another"):
        check(EdgeEncoding.VECTORS, SequenceParallel.RING)
    check(EdgeEncoding.VECTORS, SequenceParallel.GATHER)
    check(EdgeEncoding.VECTORS, SequenceParallel.RING, parts=1)
    check(EdgeEncoding.BIAS, SequenceParallel.RING)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 33}, r"width=33 is not divisible by config\.model\.heads=2: say a multiple of 2"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"heads": 0}, "heads=0 must be at least 1"),
        ({"edges": "vector"}, "edges='?vector'? .*vectors"),
        ({"edge": "bias"}, "did you mean 'edges'"),
    ],
)
def test_unfit_values_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        registry.model_config({"family": "experiments.graphs.model", **wrong})
    assert "\n" not in str(refused.value)
