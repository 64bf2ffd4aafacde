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
    accuracy_by_distance,
    sample_graphs,
)
from transformer.attention.sites import Site, sites_between
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, Range, UserError
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import class_loss
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, StateView, TaskSpec


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


class GraphDistances(GeneratedTask):
    """Distances in graphs: implements transformer.tasks.task.Task."""

    def __init__(self, config: GraphsConfig, rows_multiple: int = 1):
        rows, nodes = config.batch_size, config.num_nodes
        inputs = {
            "marks": InputSpec((rows, nodes)),
            "edges": InputSpec((rows, nodes, nodes), modality=Modality.POSITIONS),
        }
        vocabularies = {"marks": len(MARKS), "edge types": len(EDGE_TYPES), "classes": config.max_distance}
        interface = TaskInterface(inputs, vocabularies, output=GRAPH_CLASSIFICATION.output)
        super().__init__(config, interface, "classification", rows_multiple)

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample graphs; the label is the class of the distance."""
        config = self.config
        graphs = sample_graphs(random, config.batch_size, config.num_nodes, config.degree, config.max_distance)
        return {
            "marks": graphs.marks.astype(np.int32),
            "edges": graphs.edges.astype(np.int32),
            "labels": (graphs.distances - 1).astype(np.int32),
        }

    def _classify(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, "B C"], dict[str, Array], Aux]:
        """Return the logits, the sums of -log p(distance) and of correct distances, and the model's other results."""
        logits_BxC, aux = self.apply_model(view, batch, key)
        labels_B = jnp.asarray(batch["labels"])
        sums = class_loss(logits_BxC, labels_B, jnp.ones_like(labels_B, bool))
        return logits_BxC, {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(distance) in nats and the correct distances."""
        _, sums, aux = self._classify(view, batch, key)
        return sums, aux

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluation of the accuracy by distance."""
        batches = self.held_out_batches(seed)
        labels = np.concatenate([batch["labels"] for batch in batches])

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            logits_BxC, sums, _ = self._classify(view, batch, None)
            return {"loss": sums["loss"]}, {"predicted": jnp.argmax(logits_BxC, axis=-1)}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            report = distance_report(np.asarray(rows["predicted"]) + 1, labels + 1, self.config.max_distance)
            return report._replace(scalars={"loss": float(sums["loss"]) / len(labels), **report.scalars})

        return (Evaluation("distances", split, batches, step, finish, at_end=split == "test"),)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Name source and target of each graph; the gold alignment of a node is each node with a red edge to it."""
        kinds = {SOURCE: "source", TARGET: "target"}
        names = tuple(
            tuple(kinds.get(mark, f"node {number}") for number, mark in enumerate(marks))
            for marks in self.probe_examples["marks"]
        )
        links = tuple(
            tuple(
                GoldAlignment(int(node), int(before), True)
                for node, before in zip(*(edges == RED).nonzero(), strict=True)
            )
            for edges in self.probe_examples["edges"]
        )
        titles = tuple(f"distance {label + 1}" for label in self.probe_examples["labels"])
        attended = sites_between(sites, "nodes", "nodes")
        return AxisLabels(
            {"nodes": names},
            titles,
            {site.name: links for site in attended} or None,
            gold_key_description="a node with a red edge to it",
        )


def distance_report(predicted_B: np.ndarray, distances_B: np.ndarray, max_distance: int) -> EvaluationReport:
    """Report the accuracy over all graphs and over those of each distance.

    Args:
        predicted_B: The predicted distances.
        distances_B: The true distances.
        max_distance: The largest distance.

    Returns:
        The report.
    """
    accuracy_K = accuracy_by_distance(predicted_B, distances_B, max_distance)
    return EvaluationReport(
        {
            "accuracy": float(np.mean(predicted_B == distances_B)),
            **{f"accuracy/distance_{k + 1}": float(value) for k, value in enumerate(accuracy_K) if value == value},
        },
        note=f"{len(distances_B)} graphs",
    )


TASK = TaskSpec(GraphsConfig, GraphDistances)
