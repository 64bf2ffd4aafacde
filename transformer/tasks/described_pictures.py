"""What tasks share in which a picture is described symbol by symbol, each said while a part of it is looked at."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.sites import Site, between
from transformer.config import UserError
from transformer.data.pictures import unscaled
from transformer.decode.constraints import Constraints
from transformer.decode.generate import Tokens, generate
from transformer.models.contract import Aux
from transformer.models.interface import CAPTIONING, Input, Interface, Modality
from transformer.tasks.contract import Answers, Batch, LossAux, Objective, Request, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels, Link
from transformer.tasks.looking import LOOKED
from transformer.tasks.losses import token_loss
from transformer.tasks.plain import PlainTask, look_over, refuse_options

PAD, BEGIN, END = range(3)
_SPECIAL = ("<pad>", "<begin>", "<end>")


class DescribedPictures(PlainTask, abc.ABC):
    """Pictures of `size` x `size` pixels in batches of `rows`, descriptions of at most `longest` of the `symbols`.

    A batch has `picture`, `target`, which the decoder reads, `labels`, which it is to say, one step ahead, and what
    `links` needs. In a line of text `separator` stands between symbols.

    A task adds `source`, `evaluations` and `links`, and calls `show` with the batch whose maps are stored.
    """

    def __init__(
        self, name: str, symbols: Sequence[str], longest: int, *, size: int, rows: int, beams: int, separator: str
    ):
        self.symbols, self.steps, self.separator = (*_SPECIAL, *symbols), longest + 1, separator
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.beams = beams
        inputs = {
            "picture": Input((rows, size, size, 3), jnp.float32, Modality.PICTURE),
            "target": Input((rows, self.steps)),
        }
        self.interface = Interface(inputs, {"target": len(self.symbols)}, PAD, BEGIN, END, output=CAPTIONING.output)
        self.objectives = (Objective(name, self.loss),)

    def show(self, batch: dict[str, np.ndarray]) -> None:
        """Have the maps of these pictures and descriptions stored."""
        self.shown, self.probed = batch, inputs_of(batch)

    @abc.abstractmethod
    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
        """For each picture which places each symbol is about."""

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
        inputs = inputs_of(batch)
        logits, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
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
        """The step of an evaluation of what is said when nothing is given but the pictures."""
        decoding = Decoding(length=self.steps, beams=self.beams, length_penalty=0.0)
        return {}, {"tokens": decode(view, batch, decoding)}

    def said_in(self, row: np.ndarray) -> list[str]:
        """The symbols of one description, up to its end."""
        numbers = row.tolist()
        return [self.symbols[number] for number in numbers[: numbers.index(END) if END in numbers else None]]

    def lines(self, rows: np.ndarray) -> list[str]:
        """Descriptions as lines of text."""
        return [self.separator.join(self.said_in(row)) for row in rows]

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The symbols and pictures of the probe, and the places that each symbol is about."""
        return self._describe(self.shown, sites)

    def _describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> Labels:
        """Of descriptions that are not `right` it is not known what their symbols are about."""
        end = self.symbols[END]
        steps = tuple((*self.said_in(row), *([end] if END in row else [])) for row in batch["labels"])
        looked, pictures = between(sites, *LOOKED), unscaled(batch["picture"])
        gold = {site.name: self.links(batch, site) for site in looked}
        if right_B is not None:
            kept = {name: zip(links, right_B, strict=True) for name, links in gold.items()}
            gold = {name: tuple(of_row if right else () for of_row, right in rows) for name, rows in kept.items()}
        grids = {site.key.name: pictures for site in looked}
        return Labels({"target": steps}, tuple(self.lines(batch["labels"])), gold or None, pictures=grids)

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
        """What the model says of the pictures of a batch, beside what is true of them."""

        @jax.jit
        def run(variables: Any, batch: Batch) -> Array:
            return decode(view._replace(variables=variables), batch, decoding)

        rows = np.asarray(run(view.variables, {"picture": batch["picture"]}))
        said = {**batch, **self.sequences([self.said_in(row) for row in rows])}
        right_B = (said["labels"] == batch["labels"]).all(axis=1)
        labels = self._describe(said, view.model.sites, right_B)
        return Answers(self.lines(rows), labels, look_over(view, inputs_of(said)))


def links_to(places_BxTxK: Bool[Array | np.ndarray, "B T K"], *, sure: bool) -> tuple[tuple[Link, ...], ...]:
    """For each picture a link from every symbol to each of its places."""
    links = (np.argwhere(np.asarray(of_row)) for of_row in places_BxTxK)
    return tuple(tuple(Link(int(step), int(key), sure) for step, key in of_row) for of_row in links)


def inputs_of(batch: Batch) -> dict[str, Any]:
    """What of a batch the model reads."""
    return {name: batch[name] for name in ("picture", "target")}


def counted(batch: Batch) -> Bool[Array, "B T"]:
    """The steps at which something is to be said: a symbol or the end."""
    return jnp.asarray(batch["labels"]) != PAD


def decode(view: View, batch: Batch, decoding: Decoding) -> Int[Array, "B T"]:
    """What the model says of the pictures of a batch, a pure function that can run under jit."""
    rollout = generate(
        view.model,
        view.variables,
        {"picture": jnp.asarray(batch["picture"])},
        chooser=decoding.chooser,
        length=decoding.length,
        tokens=Tokens(PAD, BEGIN, END),
        key=jax.random.key(decoding.seed),
        constraints=Constraints(decoding.repetition_penalty),
    )
    return rollout.tokens[:, 0]
