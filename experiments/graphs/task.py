"""How many red edges lead from one marked node of a graph to another."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.graphs.data import (
    EDGE_TYPES,
    GRAPH_CLASSIFICATION,
    MARKS,
    RED,
    SOURCE,
    TARGET,
    Graphs,
    accuracy_by_distance,
    sample_graphs,
)
from transformer.attention.sites import Site, sites_between
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, Range, UserError
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import BaseTask, check_batch_size
from transformer.tasks.losses import TokenLoss, class_loss
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, LossAux, Objective, StateView, TaskSpec


@dataclasses.dataclass(frozen=True)
class GraphsConfig(Config, path="config.task"):
    """Random graphs with red and blue edges, sampled anew at every step.

    Attributes:
        num_nodes: The nodes of a graph.
        degree: The edges of each type that enter a node, and that leave it. With 1, the red edges are a cycle.
        max_distance: Distances are uniform from 1 to this.
        batch_size: Graphs in a batch.
        num_eval_examples: Graphs to evaluate, rounded up to whole batches.
        num_probe_examples: Graphs whose maps are stored.

    Raises:
        UserError: If a value is out of range, or if graphs of this size cannot be sampled.
    """

    num_nodes: Annotated[int, Range(4, 2**8)] = 12
    degree: Annotated[int, Range(1, 2)] = 1
    max_distance: Annotated[int, Range(2, 2**8)] = 5
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 1024
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.num_nodes < 6 * self.degree:
            raise UserError(
                f"config.task.num_nodes={self.num_nodes} leaves no room for config.task.degree={self.degree} edges of "
                f"each type at every node: say num_nodes={6 * self.degree} or more"
            )
        # With one red cycle; with two, in which the nodes within some distance about double with each step.
        longest = self.num_nodes - 1 if self.degree == 1 else (self.num_nodes - 1).bit_length() - 1
        if self.max_distance > longest:
            raise UserError(
                f"config.task.max_distance={self.max_distance} must be at most {longest}, as far as graphs with "
                f"config.task.num_nodes={self.num_nodes} and config.task.degree={self.degree} reach"
            )


class GraphDistances(BaseTask):
    """Distances in graphs: implements transformer.tasks.task.Task."""

    def __init__(self, config: GraphsConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        rows, nodes = config.batch_size, config.num_nodes
        inputs = {
            "marks": InputSpec((rows, nodes)),
            "edges": InputSpec((rows, nodes, nodes), modality=Modality.POSITIONS),
        }
        vocabularies = {"marks": len(MARKS), "edge types": len(EDGE_TYPES), "classes": config.max_distance}
        self.interface = TaskInterface(inputs, vocabularies, output=GRAPH_CLASSIFICATION.output)
        self.objectives = (Objective("classification", self._loss),)
        self.evaluations = (self._evaluation("validation", VALIDATION_SEED), self._evaluation("test", TEST_SEED))
        self._shown = Graphs(*(x[: config.num_probe_examples] for x in self._sample(random_generator(PROBE_SEED))))
        shown = make_batch(self._shown)
        self.probe_batch = {name: shown[name] for name in GRAPH_CLASSIFICATION.inputs}

    def _sample(self, random: np.random.Generator) -> Graphs:
        config = self.config
        return sample_graphs(random, config.batch_size, config.num_nodes, config.degree, config.max_distance)

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of graphs that are sampled anew at every step."""
        return GeneratedBatches(lambda random: make_batch(self._sample(random)), seed)

    def _sums(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, "B C"], TokenLoss, Aux]:
        """Return the logits, the sums of the losses over the graphs, and what else the model returned."""
        inputs = {name: jnp.asarray(batch[name]) for name in GRAPH_CLASSIFICATION.inputs}
        logits_BxC, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        labels_B = jnp.asarray(batch["labels"])
        return logits_BxC, class_loss(logits_BxC, labels_B, jnp.ones_like(labels_B, bool)), aux

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over graphs of -log p(distance), in nats."""
        _, sums, aux = self._sums(view, batch, key)
        metrics = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _evaluation(self, split: str, seed: int) -> Evaluation:
        drawn, count = self.training_batches(seed), -(-self.config.num_eval_examples // self.config.batch_size)
        batches = [drawn[number] for number in range(count)]
        labels = np.concatenate([batch["labels"] for batch in batches])

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            logits_BxC, sums, _ = self._sums(view, batch, None)
            return {"loss": sums.cross_entropy}, {"predicted": jnp.argmax(logits_BxC, axis=-1)}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            report = distance_report(np.asarray(rows["predicted"]) + 1, labels + 1, self.config.max_distance)
            return report._replace(scalars={"loss": float(sums["loss"]) / len(labels), **report.scalars})

        return Evaluation("distances", split, batches, step, finish, at_end=split == "test")

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Name source and target of each graph; the gold alignment of a node is each node with a red edge to it."""
        kinds = {SOURCE: "source", TARGET: "target"}
        names = tuple(
            tuple(kinds.get(mark, f"node {number}") for number, mark in enumerate(marks)) for marks in self._shown.marks
        )
        links = tuple(
            tuple(
                GoldAlignment(int(node), int(before), True)
                for node, before in zip(*(edges == RED).nonzero(), strict=True)
            )
            for edges in self._shown.edges
        )
        titles = tuple(f"distance {distance}" for distance in self._shown.distances)
        found = sites_between(sites, "nodes", "nodes")
        return AxisLabels(
            {"nodes": names},
            titles,
            {site.name: links for site in found} or None,
            gold_key_description="a node with a red edge to it",
        )


def make_batch(graphs: Graphs) -> dict[str, np.ndarray]:
    """Return the model's inputs, and the class of each graph's distance as its label."""
    return {
        "marks": graphs.marks.astype(np.int32),
        "edges": graphs.edges.astype(np.int32),
        "labels": (graphs.distances - 1).astype(np.int32),
    }


def distance_report(predicted_B: np.ndarray, distances_B: np.ndarray, max_distance: int) -> EvaluationReport:
    """Report the accuracy over all graphs and over those of each distance.

    Args:
        predicted_B: The predicted distances.
        distances_B: The true distances.
        max_distance: The largest distance.

    Returns:
        The report.
    """
    of_distance = accuracy_by_distance(predicted_B, distances_B, max_distance)
    return EvaluationReport(
        {
            "accuracy": float(np.mean(predicted_B == distances_B)),
            **{f"accuracy/distance_{k + 1}": float(value) for k, value in enumerate(of_distance) if value == value},
        },
        note=f"{len(distances_B)} graphs",
    )


TASK = TaskSpec(GraphsConfig, GraphDistances)
