"""The task of distances in graphs: what is fed, its loss by hand, its report, its labels, what it refuses."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

from experiments.graphs.data import RED, SOURCE, TARGET
from experiments.graphs.task import GraphDistances, GraphsConfig, distance_report
from transformer.attention import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.tasks.registry import task_config
from transformer.tasks.task import StateView

NODES = Axis("nodes", AxisKind.SLOTS)


@pytest.fixture(scope="module")
def task() -> GraphDistances:
    return GraphDistances(GraphsConfig(num_nodes=8, max_distance=3, batch_size=16, num_eval_examples=20))


def of_model(logits: Any) -> StateView:
    """A view of a model that gives these logits, whatever it reads."""
    aux = SimpleNamespace(state={}, maps={}, losses={})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (logits(inputs), aux))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def test_batches_are_of_seed_and_step(task: GraphDistances) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    assert all((again[name] == values).all() for name, values in batch.items())
    for other in (task.training_batches(3)[8], task.training_batches(4)[7], task.evaluations[0].batches[0]):
        assert (other["edges"] != batch["edges"]).any()
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    assert set(batch["labels"]) == {0, 1, 2}
    # Classes are counted from 0; an edge leads from its key to its query.
    for edges, marks, label in zip(batch["edges"], batch["marks"], batch["labels"], strict=True):
        steps = shortest_path((edges == RED).T, unweighted=True)
        assert steps[(marks == SOURCE).argmax(), (marks == TARGET).argmax()] == label + 1


def test_the_loss_and_the_evaluation_by_hand(task: GraphDistances) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    view = of_model(lambda inputs: np.broadcast_to(logits, (len(inputs["marks"]), 3)))
    batch = task.training_batches(0)[0]
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), None))()
    assert float(loss) == pytest.approx(-np.mean(logits[batch["labels"]]), rel=1e-5)
    assert float(aux.metrics["accuracy"]) == pytest.approx(np.mean(batch["labels"] == 0))
    evaluation = task.evaluations[0]
    step = jax.jit(lambda batch: evaluation.step(view, batch, jax.random.key(0)))
    sums, rows = zip(*map(step, evaluation.batches), strict=True)
    labels = np.concatenate([batch["labels"] for batch in evaluation.batches])
    assert len(labels) == 32
    scalars = evaluation.finish(
        {"loss": sum(each["loss"] for each in sums)},
        {"predicted": np.concatenate([each["predicted"] for each in rows])},
    ).scalars
    assert scalars == pytest.approx(
        {
            "loss": -np.mean(logits[labels]),
            "accuracy": np.mean(labels == 0),
            "accuracy/distance_1": 1,
            "accuracy/distance_2": 0,
            "accuracy/distance_3": 0,
        },
        rel=1e-5,
    )


def test_a_report_leaves_out_a_distance_that_no_graph_has() -> None:
    scalars = distance_report(np.array([1, 3, 3]), np.array([1, 1, 3]), 3).scalars
    assert scalars == {"accuracy": pytest.approx(2 / 3), "accuracy/distance_1": 0.5, "accuracy/distance_3": 1}


def test_nodes_are_named_and_linked_to_those_with_a_red_edge_to_them(task: GraphDistances) -> None:
    site = Site("graph/self", NODES, NODES, ("0",), ("0",))
    labels = task.axis_labels((site,))
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments["graph/self"]):
        marks, edges = (task.probe_batch[name][row] for name in ("marks", "edges"))
        assert {(link.query, link.key) for link in links} == set(map(tuple, np.argwhere(edges == RED)))
        names = labels.tokens["nodes"][row]
        assert (names.index("source"), names.index("target")) == tuple((marks == m).argmax() for m in (SOURCE, TARGET))
        assert len(names) == 8
    assert labels.titles[0] in {"distance 1", "distance 2", "distance 3"}
    assert task.axis_labels(()).gold_alignments is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_nodes": 3}, "num_nodes=3 must be at least 4"),
        ({"degree": 0}, "degree=0 must be at least 1"),
        ({"degree": 3}, "degree=3 must be at most 2"),
        ({"degree": 2, "num_nodes": 11, "max_distance": 3}, "num_nodes=11 leaves no room .*: say num_nodes=12 or more"),
        ({"max_distance": 1}, "max_distance=1 must be at least 2"),
        ({"max_distance": 12}, "max_distance=12 must be at most 11, as far as graphs with"),
        ({"degree": 2}, "max_distance=5 must be at most 3"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"num_node": 9}, "did you mean 'num_nodes'"),
    ],
)
def test_unfit_values_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        task_config({"name": "experiments.graphs.task", **wrong})
    assert "\n" not in str(refused.value)
