"""Decoding of a pointer network: which tokens may follow in each problem, and answers with or without constraints."""

import dataclasses
import enum
import functools
from collections.abc import Iterable
from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from experiments.pointer_networks.signature import POINTER_END
from transformer.decoding.constraints import Constraints, NoRepeatedTokens, TokenRule
from transformer.decoding.generation import DecodedSequences, SpecialTokens, generate
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import Batch, StateView

Answer = tuple[int, ...]


class Problem(enum.Enum):
    """The problem about n points.

    hull: the corners of the convex hull, counter-clockwise from the lowest index. delaunay: the triangles of the
    Delaunay triangulation, each with rising indices, ordered by their incenters. tour: the shortest closed tour, from
    index 0, counter-clockwise.
    """

    HULL = "hull"
    DELAUNAY = "delaunay"
    TOUR = "tour"

    def max_answer_steps(self, count: int) -> int:
        """Return the most steps of an answer about `count` points: its indices and the end.

        A triangulation of n points, h of them corners of the hull, has 2 n - 2 - h triangles.
        """
        return 3 * (2 * count - 5) + 1 if self is Problem.DELAUNAY else count + 1

    def token_rule(self, lengths_B: Int[Array, " B"]) -> TokenRule:
        """Return the constraint on answers: no repeated point, at least three corners, complete tours and triangles."""
        match self:
            case Problem.HULL:
                return NoRepeatedTokens(jnp.minimum(lengths_B, 3), POINTER_END)
            case Problem.TOUR:
                return NoRepeatedTokens(lengths_B, POINTER_END)
            case Problem.DELAUNAY:
                return TriangleConstraint(lengths_B)
            case _:
                assert_never(self)


class _TriangleState(NamedTuple):
    """The state of `TriangleConstraint`: `place` is the corner that comes next, `last` the number before it."""

    place: Int[Array, " R"]
    last: Int[Array, " R"]
    has_begun: Bool[Array, " R"]
    ended: Bool[Array, " R"]
    lengths: Int[Array, " R"]
    numbers: Int[Array, "R V"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["lengths"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TriangleConstraint:
    """A constraint to triangles with rising indices, with the end only after at least one whole triangle.

    Attributes:
        lengths: The number of points of each example.
    """

    lengths: Int[Array | np.ndarray, " B"]

    def start(self, rows: int, vocabulary: int) -> _TriangleState:
        """Return the state before the first corner."""
        lengths_B = jnp.asarray(self.lengths)
        zeros_R, never_R = jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
        numbers_RxV = jnp.broadcast_to(jnp.arange(vocabulary), (rows, vocabulary))
        lengths_R = jnp.repeat(lengths_B, rows // len(lengths_B))
        return _TriangleState(zeros_R, zeros_R, never_R, never_R, lengths_R, numbers_RxV)

    def allowed_tokens(self, state: _TriangleState) -> Bool[Array, "R V"]:
        """Allow larger numbers within a triangle, if enough of them remain to complete it."""
        beyond_R = jnp.where(state.place == 0, POINTER_END, state.last)
        greatest_R = state.lengths - (2 - state.place)
        corner_RxV = (state.numbers > beyond_R[:, None]) & (state.numbers <= greatest_R[:, None])
        whole_R = state.has_begun & (state.place == 0)
        return (corner_RxV & ~state.ended[:, None]).at[:, POINTER_END].set(state.ended | whole_R | ~corner_RxV.any(1))

    def advance(self, state: _TriangleState, tokens_R: Int[Array, " R"]) -> _TriangleState:
        """Return the state after one more token."""
        ended_R = state.ended | (tokens_R == POINTER_END)
        place_R = jnp.where(ended_R, 0, (state.place + 1) % 3)
        return state._replace(place=place_R, last=tokens_R, has_begun=jnp.ones_like(state.has_begun), ended=ended_R)


def decode_answers(
    view: StateView, batch: Batch, problem: Problem, decoding: DecodingConfig, *, constrained: bool
) -> DecodedSequences:
    """Decode the model's answers about the points of a batch; can run under jit.

    Args:
        view: The model and its variables.
        batch: The points.
        problem: The problem.
        decoding: The decoding options.
        constrained: Whether answers must be valid for the problem.

    Returns:
        The decoded sequences.
    """
    inputs = {name: jnp.asarray(batch[name]) for name in ("points", "lengths")}
    return generate(
        view.model,
        view.variables,
        inputs,
        strategy=decoding.strategy,
        length=decoding.max_new_tokens,
        tokens=SpecialTokens(eos_id=POINTER_END),
        key=jax.random.key(decoding.seed),
        constraints=Constraints(
            decoding.repetition_penalty, rule=problem.token_rule(inputs["lengths"]) if constrained else None
        ),
    )


def decode_point_indices(tokens: Iterable[int]) -> tuple[Answer, bool]:
    """Return the indices of points in a row of numbers up to its end, and whether it has an end."""
    numbers = [int(token) for token in tokens]
    ended = POINTER_END in numbers
    return tuple(number - 1 for number in numbers[: numbers.index(POINTER_END) if ended else len(numbers)]), ended
