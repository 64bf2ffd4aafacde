"""What tasks share in which something is described symbol by symbol, each said while a part of it is attended to."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.decode.constraints import Constraints
from transformer.decode.generate import Tokens, generate
from transformer.models.contract import Aux
from transformer.models.interface import Input, Interface, Signature
from transformer.tasks.contract import Answers, Batch, LossAux, Objective, Request, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels, Link
from transformer.tasks.losses import token_loss
from transformer.tasks.plain import PlainTask, look_over, refuse_options

PAD, BEGIN, END = range(3)
_SPECIAL = ("<pad>", "<begin>", "<end>")


class Described(PlainTask, abc.ABC):
    """Inputs by name, in batches of so many rows as they have, and descriptions of at most `longest` of the `symbols`.

    A batch has the inputs, `target`, which the decoder reads, and `labels`, which it is to say, one step ahead; and
    what labels need. Its numbers are those of `vocabulary`. In a line of text `separator` stands between symbols.

    A task adds `source`, `evaluations` and `describe`, and calls `show` with the batch whose maps are stored.
    """

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        longest: int,
        *,
        inputs: Mapping[str, Input],
        signature: Signature,
        vocabulary: str,
        beams: int,
        separator: str,
    ):
        self.symbols, self.steps, self.separator, self.beams = (*_SPECIAL, *symbols), longest + 1, separator, beams
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        rows = next(iter(inputs.values())).shape[0]
        self.interface = Interface(
            {**inputs, "target": Input((rows, self.steps))},
            {vocabulary: len(self.symbols)},
            PAD,
            BEGIN,
            END,
            output=signature.output,
        )
        self.objectives = (Objective(name, self.loss),)

    def show(self, batch: dict[str, np.ndarray]) -> None:
        """Have the maps of these inputs and descriptions stored."""
        self.shown, self.probed = batch, self.inputs_of(batch)

    @abc.abstractmethod
    def describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> Labels:
        """The labels of a batch; of descriptions that are not `right` it is not known what their symbols are about."""

    def inputs_of(self, batch: Batch) -> dict[str, Any]:
        """What of a batch the model reads."""
        return {name: batch[name] for name in self.interface.inputs}

    def sequences(self, said: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Descriptions as numbers: `target` and `labels` of a batch."""
        target, labels = np.full((2, len(said), self.steps), PAD, np.int32)
        for row, of_row in enumerate(said):
            numbers = [self._numbers[symbol] for symbol in of_row]
            target[row, : len(numbers) + 1] = [BEGIN, *numbers][: self.steps]
            labels[row, : len(numbers) + 1] = [*numbers, END][: self.steps]
        return {"target": target, "labels": labels}

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of symbols with the ends of their descriptions, by which every sum is divided."""
        return {"tokens": jnp.sum(counted(batch)).astype(jnp.float32)}

    def likelihood(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Float[Array, "B T V"], Aux, dict[str, Array]]:
        """A pass of the model: its logits, what comes beside them, and `loss`, in nats a symbol, with `accuracy`."""
        inputs, train = self.inputs_of(batch), view.train
        logits, aux = view.model.apply(view.variables, inputs, train=train, key=key, capture=view.capture)
        sums = token_loss(logits, jnp.asarray(batch["labels"]), counted(batch), label_smoothing=0.0)
        metrics = {"loss": sums.cross_entropy / totals["tokens"], "accuracy": sums.correct / totals["tokens"]}
        return logits, aux, metrics

    def loss(self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]) -> tuple[Array, LossAux]:
        """Cross-entropy in nats a symbol."""
        _, aux, metrics = self.likelihood(view, batch, totals, key)
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    def loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """The step of an evaluation of the loss."""
        _, _, sums = self.likelihood(view, batch, {"tokens": jnp.float32(1)}, key)
        return {**sums, **self.totals(batch)}, None

    def decoded(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        """The step of an evaluation of what is said when nothing is given but the inputs."""
        decoding = Decoding(length=self.steps, beams=self.beams, length_penalty=0.0)
        return {}, {"tokens": self.decode(view, batch, decoding)}

    def said_in(self, row: np.ndarray) -> list[str]:
        """The symbols of one description, up to its end."""
        numbers = row.tolist()
        return [self.symbols[number] for number in numbers[: numbers.index(END) if END in numbers else None]]

    def lines(self, rows: np.ndarray) -> list[str]:
        """Descriptions as lines of text."""
        return [self.separator.join(self.said_in(row)) for row in rows]

    def steps_of(self, batch: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], ...]:
        """What is said at every step of each description, the end included."""
        end = self.symbols[END]
        return tuple((*self.said_in(row), *([end] if END in row else [])) for row in batch["labels"])

    def labels(self, sites: Sequence[Site]) -> Labels:
        """Those of the probe."""
        return self.describe(self.shown, sites)

    def decoding(self, request: Request, does: str, longest: str) -> Decoding:
        """How a request wants descriptions decoded, of a run that `does` something.

        Errors: UserError for what such a run does not have, and for more symbols than the longest description has.
        """
        refuse_options(request, does)
        decoding = Decoding.asked(request.decoding, length=self.steps, beams=self.beams, length_penalty=0.0)
        if decoding.length > self.steps:
            raise UserError(f"--length={decoding.length}: {longest} with its end")
        return decoding

    def answers(self, view: View, batch: Mapping[str, np.ndarray], decoding: Decoding) -> Answers:
        """What the model says of the inputs of a batch, beside what is true of them."""

        @jax.jit
        def run(variables: Any, batch: Batch) -> Array:
            return self.decode(view._replace(variables=variables), batch, decoding)

        rows = np.asarray(run(view.variables, self.inputs_of(batch)))
        said = {**batch, **self.sequences([self.said_in(row) for row in rows])}
        right_B = (said["labels"] == batch["labels"]).all(axis=1)
        labels = self.describe(said, view.model.sites, right_B)
        return Answers(self.lines(rows), labels, look_over(view, self.inputs_of(said)))

    def decode(self, view: View, batch: Batch, decoding: Decoding) -> Int[Array, "B T"]:
        """What the model says of the inputs of a batch, a pure function that can run under jit."""
        rollout = generate(
            view.model,
            view.variables,
            {name: jnp.asarray(batch[name]) for name in self.interface.inputs if name != "target"},
            chooser=decoding.chooser,
            length=decoding.length,
            tokens=Tokens(PAD, BEGIN, END, len(self.symbols)),
            key=jax.random.key(decoding.seed),
            constraints=Constraints(decoding.repetition_penalty),
        )
        return rollout.tokens[:, 0]


def links_to(places_BxTxK: Bool[Array | np.ndarray, "B T K"], *, sure: bool) -> tuple[tuple[Link, ...], ...]:
    """For each picture a link from every symbol to each of its places."""
    links = (np.argwhere(np.asarray(of_row)) for of_row in places_BxTxK)
    return tuple(tuple(Link(int(step), int(key), sure) for step, key in of_row) for of_row in links)


def known(
    gold: Mapping[str, tuple[tuple[Link, ...], ...]], right_B: Bool[np.ndarray, " B"] | None
) -> dict[str, tuple[tuple[Link, ...], ...]]:
    """The links by site, of descriptions that are `right`; all where that is not asked."""
    if right_B is None:
        return dict(gold)
    kept = {name: zip(links, right_B, strict=True) for name, links in gold.items()}
    return {name: tuple(of_row if right else () for of_row, right in rows) for name, rows in kept.items()}


def counted(batch: Batch) -> Bool[Array, "B T"]:
    """The steps at which something is to be said: a symbol or the end."""
    return jnp.asarray(batch["labels"]) != PAD
