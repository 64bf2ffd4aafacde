"""What the toys share: rows that are never trained on as the probe, and labels made of numbers."""

import dataclasses

import numpy as np

from transformer.data.batches import GeneratedBatches
from transformer.models.task_interface import TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import BaseTask
from transformer.tasks.task import TaskSpec


def no_choice() -> type:
    """The config class of a toy that is as it is; each has one of its own, by which it is known."""
    return dataclasses.make_dataclass("NoChoice", (), frozen=True)


class Toy(BaseTask):
    """A task whose batches `draw` makes; four rows of a seed of their own are the probe."""

    interface = TaskInterface(inputs={}, vocabularies={})

    def draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def training_batches(self, seed):
        return GeneratedBatches(self.draw, seed)

    @property
    def probe_batch(self):
        return {name: x[:4] for name, x in self.training_batches(12345)[0].items()}


def task_spec(task: type) -> TaskSpec:
    """A toy as a TASK."""
    return TaskSpec(no_choice(), lambda config, rows_multiple: task())


def labeled(numbers: dict[str, np.ndarray], site: str, truth: np.ndarray | None = None) -> AxisLabels:
    """Numbers as the tokens of each axis, zeros at the end being padding; `truth[q]` is where query q should look.

    The first axis is the queries'.
    """
    tokens = {axis: tuple(tuple(map(str, np.trim_zeros(row, "b"))) for row in x) for axis, x in numbers.items()}
    queries = next(iter(tokens.values()))
    titles = tuple(f"example {row}" for row in range(len(queries)))
    if truth is None:
        return AxisLabels(tokens, titles)
    links = tuple(
        tuple(GoldAlignment(query, int(key), True) for query, key in enumerate(keys[: len(row)]))
        for row, keys in zip(queries, truth, strict=True)
    )
    return AxisLabels(tokens, titles, {site: links})
