"""A mixture of experts: networks of which every position chooses a few (Shazeer et al. 2017)."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention, capture_weights
from transformer.attention.component import Initializer, zeros
from transformer.attention.masks import Mask
from transformer.attention.reference_mode import is_tracing_reference
from transformer.attention.rng import draw_array
from transformer.config import Amount, Config, Count, Positive, PositiveAmount, UserError
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import Builder, Module, Params, one_by_one
from transformer.layers.initialization import Role
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import place, placement

# Below it a deviation counts as this much, so that the gradient of a quotient by it stays finite.
_LEAST_DEVIATION = 1e-6
# Room grows by so many rows, which accelerators multiply at once.
_ROWS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class ExpertsConfig(Config, path="config.model.experts"):
    """The mixtures of experts of a stack of blocks (Shazeer et al. 2017); `count` 0: none, all else is not read.

    Of `count` feed-forward networks every position uses `chosen`, in every block (`every` 1), every other (2) ... of
    a stack, the last of each period. `importance` and `load` are the weights of the two losses that balance them
    (w_importance and w_load, appendix A). `room` is how many rows an expert computes in one go, where 1 is an even
    share: an expert that more positions choose computes several times, and none is left out.
    """

    count: Count = 0
    top_k: int = 2
    every_n_layers: Positive = 1
    importance_loss: Amount = 0.1
    load_loss: Amount = 0.1
    capacity_factor: PositiveAmount = 1.5

    def _check(self) -> None:
        if self.count and not 2 <= self.top_k < self.count:
            raise UserError(
                f"config.model.experts.top_k={self.top_k} of count={self.count} must be at least 2, for the gate of "
                "one alone is always 1 and learns nothing, and below the count"
            )

    @property
    def group(self) -> int:
        """How many blocks one after another are unlike: those of a period in which the last alone has experts."""
        return self.every_n_layers if self.count else 1

    def layers(self, count: int) -> tuple[int, ...]:
        """The numbers of the blocks that have experts, of a stack of `count`."""
        return tuple(range(self.every_n_layers - 1, count, self.every_n_layers)) if self.count else ()


class Balance(NamedTuple):
    """How unevenly experts are used by some positions, of which there are `positions`.

    `importance`: CV(sum_x G(x))^2, the squared coefficient of variation over the experts (equations 6 and 7);
    `load`: CV(sum_x P(x))^2, P(x) the probability of being chosen under other noise (equations 8 to 11).
    """

    importance: Float[Array, "*layers"]
    load: Float[Array, "*layers"]
    positions: Float[Array, "*layers"]


class Routing(NamedTuple):
    """Which experts each position chose, their gates (which sum to 1), and of every expert how probably it is chosen.

    `probability` is P(x, i) of equation 8: of being chosen if this expert's noise alone were drawn again.
    """

    experts: Int[Array, "*B k"]
    gates: Float[Array, "*B k"]
    probability: Float[Array, "*B X"]


def route(
    clean: Float[Array, "*B X"],
    deviation: Float[Array, "*B X"],
    noise: Float[Array, "*B X"] | None,
    chosen: int,
) -> Routing:
    """G(x) = softmax(KeepTopK(H(x), k)), H(x)_i = (x W_g)_i + noise_i softplus((x W_noise)_i) (equations 3 to 5).

    `clean` is x W_g, `deviation` the softplus, `noise` standard normal (None: zero), `chosen` k, below the number of
    experts. Of equal ones those of lower numbers are chosen. P(x, i) = Phi(((x W_g)_i - kth_excluding(H(x), k, i)) /
    deviation_i) (equation 9), whose threshold is the k-th largest of the other experts' H.
    """
    noisy = clean if noise is None else clean + noise * deviation
    largest, experts = _largest(noisy, chosen + 1)
    experts = experts[..., :chosen]
    gates = jax.nn.softmax(largest[..., :chosen], axis=-1)
    # Without one of the chosen the next takes its place; without another the k-th is the k-th.
    is_chosen = jnp.sum(jax.nn.one_hot(experts, clean.shape[-1], dtype=bool), axis=-2, dtype=bool)
    threshold = jnp.where(is_chosen, largest[..., chosen:], largest[..., chosen - 1 : chosen])
    probability = ndtr((clean - threshold) / jnp.maximum(deviation, _LEAST_DEVIATION))
    return Routing(experts, gates, probability)


def _largest(x: Array, count: int) -> tuple[Array, Array]:
    """As `jax.lax.top_k`, for which devices that divide the positions would first gather all of them."""
    found, left = [], x
    for _ in range(count):
        index = jnp.argmax(left, axis=-1)
        here = jax.nn.one_hot(index, x.shape[-1], dtype=bool)
        found.append((jnp.sum(jnp.where(here, x, 0), axis=-1), index))
        left = jnp.where(here, -jnp.inf, left)
    values, indices = (jnp.stack(each, axis=-1) for each in zip(*found, strict=True))
    return values, indices


def squared_variation(x: Float[Array, " X"]) -> Float[Array, ""]:
    """CV(x)^2 = variance / mean^2, of the whole population; 0 of zeros."""
    mean = jnp.mean(x)
    return jnp.where(mean > 0, jnp.var(x) / jnp.square(jnp.where(mean > 0, mean, 1)), 0)


class Experts(Module):
    """y = sum_i G(x)_i E_i(x) over networks E_i that `make` builds (Shazeer et al. 2017, equation 1).

    W_g and W_noise begin at zero, so that at first noise alone chooses (appendix A). The noise is drawn only where a
    key is given, as while training.

    Each expert computes up to its room of rows at a time, and again while any has more: the result is exact whatever
    the room, and what an example comes to does not depend on the others beside it.
    """

    def __init__(self, config: ExpertsConfig, width: int, make: Callable[[Builder], FeedForward], *, builder: Builder):
        at_zero = builder.with_rule(_at_zero)
        to_experts = functools.partial(Linear, (("embed", width),), (("features", config.count),), bias=False)
        self.router, self.noise = to_experts(builder=at_zero), to_experts(builder=at_zero)
        self.networks = builder.stack(make, config.count, axis="experts")
        self.config = config

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        *,
        lengths_B: Int[Array, " B"] | None = None,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T E"], CapturedAttention | None, Balance]:
        """What the experts make of each position, the map of its gates [B, 1, T, X], and how even their use is.

        Positions at or beyond an example's length are padding: they choose none, and count nowhere.
        """
        config, count = self.config, self.config.count
        batch, length, _ = x_BxTxE.shape
        real_BxTx1 = jnp.ones((batch, length, 1), bool)
        if lengths_B is not None:
            real_BxTx1 = real_positions(lengths_B, length)[..., None]
            x_BxTxE = jnp.where(real_BxTx1, x_BxTxE, 0)

        wide_BxTxE = x_BxTxE.astype(jnp.promote_types(x_BxTxE.dtype, jnp.float32))
        clean_BxTxX, deviation_BxTxX = self.router(wide_BxTxE), jax.nn.softplus(self.noise(wide_BxTxE))
        drawn_BxTxX = None if key is None else draw_array(jax.random.normal, key, clean_BxTxX.shape, clean_BxTxX.dtype)
        routing = route(clean_BxTxX, deviation_BxTxX, drawn_BxTxX, config.top_k)
        gates_BxTxK = jnp.where(real_BxTx1, routing.gates, 0)
        map_BxTxX = jnp.sum(jax.nn.one_hot(routing.experts, count) * gates_BxTxK[..., None], axis=-2)
        load_BxTxX = jnp.where(real_BxTx1, routing.probability, 0)
        importance, load = (squared_variation(jnp.sum(each, axis=(0, 1))) for each in (map_BxTxX, load_BxTxX))
        balance = Balance(importance, load, jnp.sum(real_BxTx1, dtype=importance.dtype))
        captured = capture_weights(map_BxTxX[:, None], capture, mask=Mask(query_lengths=lengths_B))

        groups = _groups(batch, length)
        x_GxSxNxE, gates_GxSxNxK, experts_GxSxNxK, real_GxSxNx1 = (
            _in_groups(each, groups) for each in (x_BxTxE, gates_BxTxK, routing.experts, real_BxTx1)
        )
        y_GxSxNxE = self._served(x_GxSxNxE, gates_GxSxNxK.astype(x_BxTxE.dtype), experts_GxSxNxK, real_GxSxNx1)
        return _whole(y_GxSxNxE, groups, batch, length), captured, balance

    def _served(self, x_GxSxNxE: Array, gates_GxSxNxK: Array, experts_GxSxNxK: Array, real_GxSxNx1: Array) -> Array:
        if is_tracing_reference():
            return self._of_each(x_GxSxNxE, gates_GxSxNxK, experts_GxSxNxK)
        positions, count = x_GxSxNxE.shape[2], self.config.count
        share = self.config.capacity_factor * self.config.top_k * positions / count
        room = min(math.ceil(share / _ROWS_AT_ONCE) * _ROWS_AT_ONCE, positions)
        # How many positions before each have chosen the expert as well: its place in the expert's queue.
        asked_GxSxNxX = jnp.sum(jax.nn.one_hot(experts_GxSxNxK, count, dtype=jnp.int32), axis=3) * real_GxSxNx1
        before_GxSxNxX = jnp.cumsum(asked_GxSxNxX, axis=2) - asked_GxSxNxX
        places_GxSxNxK = jnp.take_along_axis(before_GxSxNxX, experts_GxSxNxK, axis=3)
        queue = Queue(experts_GxSxNxK, jnp.where(real_GxSxNx1, places_GxSxNxK, -1), jnp.max(asked_GxSxNxX.sum(axis=2)))
        networks, params = one_by_one(self.networks)
        go = functools.partial(_go, networks, count, room)
        given = Given(params, x_GxSxNxE, gates_GxSxNxK)
        y_GxSxNxE = go(given, queue, 0)
        return y_GxSxNxE if room == positions else y_GxSxNxE + _further(go, room, given, queue)

    def _of_each(self, x_GxSxNxE: Array, gates_GxSxNxK: Array, experts_GxSxNxK: Array) -> Array:
        """Equation 1 as it stands: each position meets copies of the networks that it chose, and no others."""
        networks, params = one_by_one(self.networks)
        chosen = jax.tree.map(lambda leaf: jnp.take(leaf, experts_GxSxNxK.ravel(), axis=0), params)
        x_Rx1xE = jnp.repeat(x_GxSxNxE, self.config.top_k, axis=2).reshape(-1, 1, x_GxSxNxE.shape[-1])
        y_GxSxNxKxE = networks(chosen, x_Rx1xE).reshape(*gates_GxSxNxK.shape, -1)
        return jnp.sum(y_GxSxNxKxE * gates_GxSxNxK[..., None], axis=3)


class Queue(NamedTuple):
    """The experts that each position chose, its place in their queues (-1: in none), and the longest queue's length."""

    experts: Int[Array, "G S N k"]
    places: Int[Array, "G S N k"]
    longest: Int[Array, ""]


class Given(NamedTuple):
    """What the experts' work is differentiated by."""

    params: Params
    x: Float[Array, "G S N E"]
    gates: Float[Array, "G S N k"]


Go = Callable[[Given, Queue, Array | int], Array]


def _go(
    networks: Callable[[Params, Array], Array], count: int, room: int, given: Given, queue: Queue, turn: Any
) -> Any:
    """What the experts add to each position's output when they compute places turn x room and on of their queues."""
    groups, parts, _, width = given.x.shape
    row_GxSxNxK = queue.places - turn * room
    served = (row_GxSxNxK >= 0) & (row_GxSxNxK < room) & (queue.places >= 0)
    # Beyond the last row nothing is written, and zeros are read.
    slot_GxSxNxK = jnp.where(served, queue.experts * room + row_GxSxNxK, count * room)
    reader_GxSxR = _each(_readers, count * room)(slot_GxSxNxK)
    x_GxSxXxCxE = _each(_rows)(given.x, reader_GxSxR).reshape(groups, parts, count, room, width)
    x_GxSxXxCxE = place(x_GxSxXxCxE, "batch", "length", None, None, None)
    x_XxGxSxCxE = place(jnp.moveaxis(x_GxSxXxCxE, 2, 0), "experts", "expert_batch", "length", None, None)
    y_XxGxSxCxE = place(networks(given.params, x_XxGxSxCxE), "experts", "expert_batch", "length", None, None)
    y_GxSxXxCxE = place(jnp.moveaxis(y_XxGxSxCxE, 0, 2), "batch", "length", None, None, None)
    y_GxSxRxE = y_GxSxXxCxE.reshape(groups, parts, count * room, width)
    y_GxSxNxKxE = _each(_rows)(y_GxSxRxE, slot_GxSxNxK)
    return jnp.sum(y_GxSxNxKxE * given.gates[..., None], axis=3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _further(go: Go, room: int, given: Given, queue: Queue) -> Array:
    """The sum of `go` over all turns but the first. What a turn made is computed again for its gradient."""
    return _over_turns(room, queue, lambda turn: go(given, queue, turn), jnp.zeros_like(given.x))


def _further_forward(go: Go, room: int, given: Given, queue: Queue) -> tuple[Array, tuple[Given, Queue]]:
    return _further(go, room, given, queue), (given, queue)


def _further_backward(go: Go, room: int, kept: tuple[Given, Queue], gradient: Array) -> tuple[Given, None]:
    given, queue = kept

    def of_turn(turn: Array) -> Given:
        _, pull = jax.vjp(lambda given: go(given, queue, turn), given)
        return pull(gradient)[0]

    return _over_turns(room, queue, of_turn, jax.tree.map(jnp.zeros_like, given)), None


_further.defvjp(_further_forward, _further_backward)


def _over_turns[T](room: int, queue: Queue, of_turn: Callable[[Array], T], zero: T) -> T:
    def advance(carry: tuple[Array, T]) -> tuple[Array, T]:
        turn, total = carry
        return turn + 1, jax.tree.map(jnp.add, total, of_turn(turn))

    # A loop that most steps never enter: a scan would pay for turns that nobody needs.
    return jax.lax.while_loop(lambda carry: carry[0] * room < queue.longest, advance, (jnp.int32(1), zero))[1]


def _at_zero(role: Role, fan_in: int, fan_out: int) -> Initializer:
    return zeros


def _each(function: Callable[..., Array], *static: int) -> Callable[..., Array]:
    """The function of each group of examples and part of their positions by itself."""
    return jax.vmap(jax.vmap(functools.partial(function, *static)))


def _rows(values_RxE: Array, index: Array) -> Array:
    """The rows of these numbers; zeros for a number beyond the last."""
    return jnp.take(values_RxE, index, axis=0, mode="fill", fill_value=0)


def _readers(slots: int, slot_NxK: Array) -> Array:
    """The position that stands in each slot; one beyond the last where none does."""
    positions, chosen = slot_NxK.shape
    numbers_NxK = jnp.broadcast_to(jnp.arange(positions, dtype=jnp.int32)[:, None], (positions, chosen))
    return jnp.full(slots, positions, jnp.int32).at[slot_NxK].set(numbers_NxK, mode="drop")


def _groups(batch: int, length: int) -> tuple[int, int]:
    """Into how many parts devices divide the batch and its positions: each part fills its own rows of each expert.

    So that what devices exchange are the rows alone, by an all-to-all.
    """
    placed = placement()
    if placed is None:
        return 1, 1
    batches, parts = placed.parts("batch"), placed.parts("length")
    return (batches if batch % batches == 0 else 1), (parts if length % parts == 0 else 1)


def _in_groups(x_BxTxF: Array, groups: tuple[int, int]) -> Array:
    """[B, T, F] as [groups of examples, parts of their positions, positions of both, F]."""
    (batches, parts), (batch, length, features) = groups, x_BxTxF.shape
    cut = x_BxTxF.reshape(batches, batch // batches, parts, length // parts, features)
    return place(cut.swapaxes(1, 2).reshape(batches, parts, -1, features), "batch", "length", None, None)


def _whole(x_GxSxNxF: Array, groups: tuple[int, int], batch: int, length: int) -> Array:
    """The inverse of `_in_groups`."""
    (batches, parts), features = groups, x_GxSxNxF.shape[-1]
    cut = x_GxSxNxF.reshape(batches, parts, batch // batches, length // parts, features)
    return place(cut.swapaxes(1, 2).reshape(batch, length, features), "batch", "length", None)
