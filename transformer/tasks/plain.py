"""Defaults for simple tasks: no data, no state between steps, no preparation, no evaluations, no answers."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.models.contract import Aux
from transformer.tasks.contract import Answers, Batch, Evaluation, Look, Report, Request, View


class PlainTask:
    """Defaults of transformer.tasks.contract.Task.

    A task adds `interface`, `objectives`, `source` and `labels`, and `probed`, the inputs of the examples whose maps
    are stored.
    """

    evaluations: tuple[Evaluation, ...] = ()
    probed: Mapping[str, np.ndarray]

    def fingerprint(self) -> dict[str, str]:
        """Nothing: a task that reads no files draws its examples."""
        return {}

    def init_extra(self, view: View, key: Key[Array, ""]) -> dict:
        return {}

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict]:
        return batch, view.extra

    def totals(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """The number of examples, by which sums over them are divided."""
        return {"examples": jnp.float32(len(next(iter(batch.values()))))}

    def probe(self, view: View, capture: Capture, key: Key[Array, ""]) -> Aux:
        """One forward pass over the probed examples."""
        inputs = {name: jnp.asarray(values) for name, values in self.probed.items()}
        return view.model.apply(view.variables, inputs, train=False, capture=capture)[1]

    def answer(self, view: View, request: Request) -> Answers:
        """Errors: UserError, since the task is not about texts."""
        raise UserError("this run's task does not answer texts: it neither translates nor continues nor fills in")


def means(sums: Mapping[str, float], rows: object = None, *, by: str = "tokens") -> Report:
    """The report of sums over a split, each divided by the one named `by`."""
    return Report({name: value / max(sums[by], 1) for name, value in sums.items() if name != by})


def look_over(view: View, inputs: Batch, *, method: str = "forward") -> Look:
    """A pass of the model over inputs, for their maps."""
    return lambda capture: view.model.apply(view.variables, inputs, method=method, train=False, capture=capture)[1].maps


def refuse_decoding(request: Request, does: str) -> None:
    """Refuse a language and ways of decoding, for a task that generates nothing but `does` something else.

    Errors: UserError.
    """
    if request.language is not None:
        raise UserError(f"--language={request.language} is for runs that translate")
    if request.decoding:
        name = next(iter(request.decoding))
        raise UserError(f"--{name} is for runs that generate; this one {does}")


def check_rows(rows: int, rows_multiple: int) -> None:
    """Refuse `config.task.rows` that a mesh and a config cannot cut into equal parts.

    Errors: UserError.
    """
    if rows % rows_multiple:
        raise UserError(
            f"config.task.rows={rows} cannot be cut into {rows_multiple} equal parts (those of the batch on the mesh x "
            f"config.accumulate): give a multiple of {rows_multiple}, or another config.sharding"
        )
