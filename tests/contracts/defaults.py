"""What a toy need not say: the parts of a model and a task that most problems leave at their simplest."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from transformer.layers.module import Module
from transformer.models.contract import Interface
from transformer.tasks.contract import Evaluation
from transformer.tasks.labels import Labels, Link


class Stateless(Module):
    """A module that carries nothing between steps."""

    def initial_state(self, key):
        return {}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Batches drawn anew at every step: a pure function of seed and step."""

    draw: Callable[[np.random.Generator], dict[str, np.ndarray]]
    seed: int

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return self.draw(np.random.default_rng((self.seed, step)))


class Defaults:
    """Nothing carried, prepared or evaluated; four rows that are never trained on are the probe."""

    interface = Interface(inputs={}, vocabularies={}, pad=0, begin=0, end=0)
    evaluations: tuple[Evaluation, ...] = ()
    draw: Callable[[np.random.Generator], dict[str, np.ndarray]]

    def source(self, seed):
        return Drawn(self.draw, seed)

    def init_extra(self, view, key):
        return {}

    def prepare(self, view, batch, key):
        return batch, view.extra

    def totals(self, batch):
        return {"examples": jnp.float32(len(next(iter(batch.values()))))}

    def probed(self):
        return {name: x[:4] for name, x in self.source(12345)[0].items()}

    def probe(self, view, capture, key):
        inputs = {name: jnp.asarray(x) for name, x in self.probed().items()}
        return view.model.apply(view.variables, inputs, train=False, capture=capture)[1]


def labelled(numbers: dict[str, np.ndarray], site: str, truth: np.ndarray | None = None) -> Labels:
    """Numbers as the tokens of each axis, zeros at the end being padding; `truth[q]` is where query q should look.

    The first axis is the queries'.
    """
    tokens = {axis: tuple(tuple(map(str, np.trim_zeros(row, "b"))) for row in x) for axis, x in numbers.items()}
    queries = next(iter(tokens.values()))
    titles = tuple(f"example {row}" for row in range(len(queries)))
    if truth is None:
        return Labels(tokens, titles)
    links = tuple(
        tuple(Link(query, int(key), True) for query, key in enumerate(keys[: len(row)]))
        for row, keys in zip(queries, truth, strict=True)
    )
    return Labels(tokens, titles, {site: links})
