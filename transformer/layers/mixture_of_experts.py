"""Mixture of experts: feed-forward networks of which each position uses a few (Shazeer et al. 2017)."""

import dataclasses
import enum
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
from transformer.attention.random_arrays import draw_array
from transformer.attention.reference_mode import is_tracing_reference
from transformer.config import Config, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UserError
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import Module, ParameterBuilder, Params, split_stacked
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import current_placement, with_logical_constraint

# Below it a deviation counts as this much, so that the gradient of a quotient by it stays finite.
_LEAST_DEVIATION = 1e-6
# Room grows by so many rows, which accelerators multiply at once.
_ROWS_AT_ONCE = 8


class Gating(enum.Enum):
    """How the gates G(x) follow from the router's logits x W_g.

    Attributes:
        NOISY_TOP_K: The softmax over the k largest, with trained noise in training (Shazeer et al. 2017, equations 3 to
            5).
        TOP_K: The same without noise (Jiang et al. 2024, section 2.1).
        SOFTMAX: The k largest of the softmax over all experts, as they are, so that they sum to less than 1 (Fedus et
            al. 2022, equations 1 and 2; Muennighoff et al. 2024, section 2).
    """

    NOISY_TOP_K = "noisy_top_k"
    TOP_K = "top_k"
    SOFTMAX = "softmax"


@dataclasses.dataclass(frozen=True)
class MixtureOfExpertsConfig(Config, path="config.model.experts"):
    """The mixtures of experts of a stack of blocks (Shazeer et al. 2017).

    Attributes:
        count: Number of experts; 0 means none, and the other fields are ignored.
        top_k: Experts that each position uses.
        gating: How a position's gates follow from the router's logits.
        router_bias: Whether the router's logits have a bias, x W_g + b.
        shared_feed_forward: Hidden units of a network that all positions use beside their experts (Dai et al. 2024,
            section 3.2), with a gate of its own as in Qwen's code; 0 means none.
        every_n_layers: Every how many blocks have experts in place of the feed-forward network: the last block of each
            period; 2 in GShard (Lepikhin et al. 2021).
        importance_loss: Weight of the importance loss of gating NOISY_TOP_K (w_importance, appendix A).
        load_loss: Weight of the load loss of gating NOISY_TOP_K (w_load, appendix A).
        balance_loss: Weight of the balance loss of the other gatings (alpha in Fedus et al. 2022, equation 4).
        capacity_factor: Rows that an expert computes in one pass, relative to an even share. An expert with more makes
            further passes; no position is dropped.

    Raises:
        UserError: If `top_k` does not fit `count` and `gating`, if a number is out of range, or if a field is set that
            belongs to another gating.
    """

    count: NonNegativeInt = 0
    top_k: int = 2
    gating: Gating = Gating.NOISY_TOP_K
    router_bias: bool = False
    shared_feed_forward: NonNegativeInt = 0
    every_n_layers: PositiveInt = 1
    importance_loss: NonNegativeFloat = 0.1
    load_loss: NonNegativeFloat = 0.1
    balance_loss: NonNegativeFloat = 0.01
    capacity_factor: PositiveFloat = 1.5

    def _check(self) -> None:
        if not self.count:
            return
        is_noisy = self.gating is Gating.NOISY_TOP_K
        if is_noisy and not 2 <= self.top_k < self.count:
            raise UserError(
                f"config.model.experts.top_k={self.top_k} of count={self.count} must be at least 2, for the gate of "
                "one alone is always 1 and learns nothing, and below the count"
            )
        if not 1 <= self.top_k <= self.count:
            raise UserError(
                f"config.model.experts.top_k={self.top_k} of count={self.count} must be at least 1, and not above the "
                "count"
            )
        for name in ("router_bias", "balance_loss") if is_noisy else ("importance_loss", "load_loss"):
            if getattr(self, name) != getattr(MixtureOfExpertsConfig, name):
                others = "top_k and softmax" if is_noisy else "noisy_top_k"
                raise UserError(
                    f"config.model.experts.{name}={getattr(self, name)} is of gating {others}, and "
                    f"config.model.experts.gating={self.gating.value}: leave it out, or say another gating"
                )

    @property
    def layer_period(self) -> int:
        """The period of blocks of which only the last has experts; 1 if all are alike."""
        return self.every_n_layers if self.count else 1

    def expert_layer_indices(self, count: int) -> tuple[int, ...]:
        """The indices of the blocks with experts, in a stack of `count`."""
        return tuple(range(self.every_n_layers - 1, count, self.every_n_layers)) if self.count else ()


class ExpertBalance(NamedTuple):
    """How unevenly some positions use the experts.

    Attributes:
        importance: CV(sum_x G(x))^2, the squared coefficient of variation over the experts (equations 6 and 7).
        load: CV(sum_x P(x))^2, P(x) being the probability of selection under fresh noise (equations 8 to 11).
        positions: Number of positions.
    """

    importance: Float[Array, "*layers"]
    load: Float[Array, "*layers"]
    positions: Float[Array, "*layers"]


class ExpertUse(NamedTuple):
    """How much some positions use each expert, of which the balance loss is made.

    Attributes:
        selections: Number of positions that select each expert.
        probability: Sum over the positions of the softmax over all experts.
        positions: Number of positions.
    """

    selections: Float[Array, "*layers X"]
    probability: Float[Array, "*layers X"]
    positions: Float[Array, "*layers"]

    def balance_loss(self) -> Float[Array, ""]:
        """Compute X sum_i f_i P_i over the positions of all layers together.

        f_i is the fraction of positions that select expert i and P_i the mean of its probability (Fedus et al. 2022,
        equations 4 to 6). Evenly used experts give k, the number that each position selects.
        """
        positions = jnp.maximum(jnp.sum(self.positions), 1)
        fraction_X, probability_X = (
            jnp.sum(array.reshape(-1, array.shape[-1]), axis=0) / positions
            for array in (self.selections, self.probability)
        )
        return fraction_X.size * jnp.sum(fraction_X * probability_X)


class Routing(NamedTuple):
    """The experts selected for each position.

    Attributes:
        experts: Indices of the k experts, by falling gate.
        gates: Their gates.
        probability: With noise P(x, i) of equation 8, the probability that expert i is selected if only its noise is
            redrawn; without noise the softmax over all experts.
    """

    experts: Int[Array, "*B k"]
    gates: Float[Array, "*B k"]
    probability: Float[Array, "*B X"]


def noisy_top_k_gating(
    clean: Float[Array, "*B X"],
    deviation: Float[Array, "*B X"],
    noise: Float[Array, "*B X"] | None,
    top_k: int,
) -> Routing:
    """Select experts: G(x) = softmax(KeepTopK(H(x), k)), H(x)_i = (x W_g)_i + noise_i softplus((x W_noise)_i).

    These are equations 3 to 5. Ties go to the lower index. P(x, i) = Phi(((x W_g)_i - kth_excluding(H(x), k, i)) /
    deviation_i) (equation 9), whose threshold is the k-th largest H of the other experts.

    Args:
        clean: x W_g.
        deviation: The softplus of x W_noise.
        noise: Standard normal noise; None means zero.
        top_k: k, below the number of experts.

    Returns:
        The routing.
    """
    noisy = clean if noise is None else clean + noise * deviation
    largest, experts = _top_k(noisy, top_k + 1)
    experts = experts[..., :top_k]
    gates = jax.nn.softmax(largest[..., :top_k], axis=-1)
    # Without one of the chosen the next takes its place; without another the k-th is the k-th.
    is_chosen = jnp.sum(jax.nn.one_hot(experts, clean.shape[-1], dtype=bool), axis=-2, dtype=bool)
    threshold = jnp.where(is_chosen, largest[..., top_k:], largest[..., top_k - 1 : top_k])
    probability = ndtr((clean - threshold) / jnp.maximum(deviation, _LEAST_DEVIATION))
    return Routing(experts, gates, probability)


def top_k_gating(logits: Float[Array, "*B X"], top_k: int, *, renormalized: bool) -> Routing:
    """Select the experts with the k largest probabilities p(x) = softmax(x W_g); ties go to the lower index.

    Args:
        logits: x W_g.
        top_k: k.
        renormalized: Whether a position's gates are divided by their sum, which is the softmax over the k logits;
            otherwise they are the probabilities.

    Returns:
        The routing.
    """
    largest, experts = _top_k(logits, top_k)
    total = jax.nn.logsumexp(largest if renormalized else logits, axis=-1, keepdims=True)
    return Routing(experts, jnp.exp(largest - total), jax.nn.softmax(logits, axis=-1))


def _top_k(x: Array, count: int) -> tuple[Array, Array]:
    """`jax.lax.top_k` that works on sharded positions, which the original would gather first."""
    pairs, remaining = [], x
    for _ in range(count):
        index = jnp.argmax(remaining, axis=-1)
        is_largest = jax.nn.one_hot(index, x.shape[-1], dtype=bool)
        pairs.append((jnp.sum(jnp.where(is_largest, x, 0), axis=-1), index))
        remaining = jnp.where(is_largest, -jnp.inf, remaining)
    values, indices = (jnp.stack(column, axis=-1) for column in zip(*pairs, strict=True))
    return values, indices


def squared_coefficient_of_variation(x: Float[Array, " X"]) -> Float[Array, ""]:
    """Compute CV(x)^2 = variance / mean^2 of the whole population; 0 if all are zero."""
    mean = jnp.mean(x)
    return jnp.where(mean > 0, jnp.var(x) / jnp.square(jnp.where(mean > 0, mean, 1)), 0)


class MixtureOfExperts(Module):
    """A mixture of experts: y = sum_i G(x)_i E_i(x) (Shazeer et al. 2017, equation 1).

    With a shared network E_s, sigmoid(x w_s) E_s(x) is added.

    With noise, W_g and W_noise begin at zero, so that at first noise alone selects (appendix A). Each expert computes
    up to its capacity in one pass, and makes further passes while any expert has rows left: the result is exact
    whatever the capacity, and an example's result does not depend on the rest of the batch.

    Args:
        config: Number of experts, k and capacity.
        width: Input and output features.
        make: Builds one expert.
        make_shared: Builds the shared network; None means none.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        config: MixtureOfExpertsConfig,
        width: int,
        make: Callable[[ParameterBuilder], FeedForward],
        *,
        make_shared: Callable[[ParameterBuilder], FeedForward] | None = None,
        builder: ParameterBuilder,
    ):
        to_experts = functools.partial(Linear, (("embed", width),), (("features", config.count),))
        if config.gating is Gating.NOISY_TOP_K:
            at_zero = builder.with_rule(_zero_initialization)
            self.router = to_experts(bias=False, builder=at_zero)
            self.noise: Linear | None = to_experts(bias=False, builder=at_zero)
        else:
            # Without noise, a router that begins at zero would select the same experts for all positions.
            self.router, self.noise = to_experts(bias=config.router_bias, builder=builder), None
        self.networks = builder.stack(make, config.count, axis="experts")
        self.shared = None if make_shared is None else make_shared(builder)
        to_gate = functools.partial(Linear, (("embed", width),), (("features", 1),), bias=False)
        self.shared_gate = None if make_shared is None else to_gate(builder=builder)
        self.config = config

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        *,
        lengths_B: Int[Array, " B"] | None = None,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T E"], CapturedAttention | None, ExpertBalance | ExpertUse]:
        """Apply the experts to each position.

        Args:
            x_BxTxE: The inputs.
            lengths_B: Real positions of each example; padding selects no expert and counts nowhere. None means all are
                real.
            key: Random key for the noise of gating NOISY_TOP_K, as in training; None adds none.
            capture: Which maps and statistics of the gates [B, 1, T, X] to capture.

        Returns:
            The outputs, what was captured, and how even the use of the experts is.
        """
        batch, length, _ = x_BxTxE.shape
        real_BxTx1 = jnp.ones((batch, length, 1), bool)
        if lengths_B is not None:
            real_BxTx1 = real_positions(lengths_B, length)[..., None]
            x_BxTxE = jnp.where(real_BxTx1, x_BxTxE, 0)

        routing = self._route(x_BxTxE, key)
        gates_BxTxK = jnp.where(real_BxTx1, routing.gates, 0)
        chosen_BxTxKxX = jax.nn.one_hot(routing.experts, self.config.count, dtype=gates_BxTxK.dtype)
        map_BxTxX = jnp.sum(chosen_BxTxKxX * gates_BxTxK[..., None], axis=-2)
        captured = capture_weights(map_BxTxX[:, None], capture, mask=Mask(query_lengths=lengths_B))
        probability_BxTxX = jnp.where(real_BxTx1, routing.probability, 0)
        positions = jnp.sum(real_BxTx1, dtype=map_BxTxX.dtype)
        balance: ExpertBalance | ExpertUse
        if self.config.gating is Gating.NOISY_TOP_K:
            importance, load = (
                squared_coefficient_of_variation(jnp.sum(array, axis=(0, 1)))
                for array in (map_BxTxX, probability_BxTxX)
            )
            balance = ExpertBalance(importance, load, positions)
        else:
            selections_X = jnp.sum(jnp.where(real_BxTx1[..., None], chosen_BxTxKxX, 0), axis=(0, 1, 2))
            balance = ExpertUse(selections_X, jnp.sum(probability_BxTxX, axis=(0, 1)), positions)

        groups = _group_counts(batch, length)
        x_GxSxNxE, gates_GxSxNxK, experts_GxSxNxK, real_GxSxNx1 = (
            _split_into_groups(array, groups) for array in (x_BxTxE, gates_BxTxK, routing.experts, real_BxTx1)
        )
        y_GxSxNxE = self._apply_experts(x_GxSxNxE, gates_GxSxNxK.astype(x_BxTxE.dtype), experts_GxSxNxK, real_GxSxNx1)
        y_BxTxE = _merge_groups(y_GxSxNxE, groups, batch, length)
        if self.shared is not None and self.shared_gate is not None:
            with jax.named_scope("shared"):
                shared_BxTxE = self.shared(x_BxTxE)
            y_BxTxE += jax.nn.sigmoid(self.shared_gate(x_BxTxE)) * shared_BxTxE
        return y_BxTxE, captured, balance

    def _route(self, x_BxTxE: Array, key: Key[Array, ""] | None) -> Routing:
        """Select experts by logits of float32 or wider."""
        wide_BxTxE = x_BxTxE.astype(jnp.promote_types(x_BxTxE.dtype, jnp.float32))
        logits_BxTxX, top_k = self.router(wide_BxTxE), self.config.top_k
        match self.config.gating:
            case Gating.NOISY_TOP_K:
                assert self.noise is not None
                deviation_BxTxX = jax.nn.softplus(self.noise(wide_BxTxE))
                shape, dtype = logits_BxTxX.shape, logits_BxTxX.dtype
                noise_BxTxX = None if key is None else draw_array(jax.random.normal, key, shape, dtype)
                return noisy_top_k_gating(logits_BxTxX, deviation_BxTxX, noise_BxTxX, top_k)
            case Gating.TOP_K:
                return top_k_gating(logits_BxTxX, top_k, renormalized=True)
            case Gating.SOFTMAX:
                return top_k_gating(logits_BxTxX, top_k, renormalized=False)

    def _apply_experts(
        self, x_GxSxNxE: Array, gates_GxSxNxK: Array, experts_GxSxNxK: Array, real_GxSxNx1: Array
    ) -> Array:
        if is_tracing_reference():
            return self._apply_selected_experts(x_GxSxNxE, gates_GxSxNxK, experts_GxSxNxK)
        positions, count = x_GxSxNxE.shape[2], self.config.count
        share = self.config.capacity_factor * self.config.top_k * positions / count
        capacity = min(math.ceil(share / _ROWS_AT_ONCE) * _ROWS_AT_ONCE, positions)
        # How many positions before each have chosen the expert as well: its place in the expert's queue.
        selected_GxSxNxX = jnp.sum(jax.nn.one_hot(experts_GxSxNxK, count, dtype=jnp.int32), axis=3) * real_GxSxNx1
        before_GxSxNxX = jnp.cumsum(selected_GxSxNxX, axis=2) - selected_GxSxNxX
        places_GxSxNxK = jnp.take_along_axis(before_GxSxNxX, experts_GxSxNxK, axis=3)
        queue = ExpertQueues(
            experts_GxSxNxK, jnp.where(real_GxSxNx1, places_GxSxNxK, -1), jnp.max(selected_GxSxNxX.sum(axis=2))
        )
        networks, params = split_stacked(self.networks)
        dispatch = functools.partial(_dispatch_pass, networks, count, capacity)
        inputs = DifferentiableInputs(params, x_GxSxNxE, gates_GxSxNxK)
        y_GxSxNxE = dispatch(inputs, queue, 0)
        return y_GxSxNxE if capacity == positions else y_GxSxNxE + _overflow_passes(dispatch, capacity, inputs, queue)

    def _apply_selected_experts(self, x_GxSxNxE: Array, gates_GxSxNxK: Array, experts_GxSxNxK: Array) -> Array:
        """Equation 1 as written: each position meets copies of the networks selected for it, and no others."""
        networks, params = split_stacked(self.networks)
        selected_params = jax.tree.map(lambda leaf: jnp.take(leaf, experts_GxSxNxK.ravel(), axis=0), params)
        x_Rx1xE = jnp.repeat(x_GxSxNxE, self.config.top_k, axis=2).reshape(-1, 1, x_GxSxNxE.shape[-1])
        y_GxSxNxKxE = networks(selected_params, x_Rx1xE).reshape(*gates_GxSxNxK.shape, -1)
        return jnp.sum(y_GxSxNxKxE * gates_GxSxNxK[..., None], axis=3)


class ExpertQueues(NamedTuple):
    """The experts selected for each position and its place in their queues.

    Attributes:
        experts: The experts of each position.
        queue_positions: The position's place in each expert's queue; -1 for padding.
        longest_queue: Length of the longest queue.
    """

    experts: Int[Array, "G S N k"]
    queue_positions: Int[Array, "G S N k"]
    longest_queue: Int[Array, ""]


class DifferentiableInputs(NamedTuple):
    """The inputs with respect to which the experts' computation is differentiated.

    Attributes:
        params: The experts' parameters, stacked.
        x: The positions' features, in groups (`_split_into_groups`).
        gates: The gates of each position's experts.
    """

    params: Params
    x: Float[Array, "G S N E"]
    gates: Float[Array, "G S N k"]


DispatchPass = Callable[[DifferentiableInputs, ExpertQueues, Array | int], Array]


def _dispatch_pass(
    networks: Callable[[Params, Array], Array],
    count: int,
    capacity: int,
    inputs: DifferentiableInputs,
    queue: ExpertQueues,
    pass_index: Any,
) -> Any:
    """The experts' contribution to each position in one pass: turn x capacity up to the next in their queues."""
    groups, parts, _, width = inputs.x.shape
    row_GxSxNxK = queue.queue_positions - pass_index * capacity
    served = (row_GxSxNxK >= 0) & (row_GxSxNxK < capacity) & (queue.queue_positions >= 0)
    # Beyond the last row nothing is written, and zeros are read.
    slot_GxSxNxK = jnp.where(served, queue.experts * capacity + row_GxSxNxK, count * capacity)
    reader_GxSxR = _map_over_groups(_position_in_each_slot, count * capacity)(slot_GxSxNxK)
    x_GxSxXxCxE = _map_over_groups(_take_rows)(inputs.x, reader_GxSxR).reshape(groups, parts, count, capacity, width)
    x_GxSxXxCxE = with_logical_constraint(x_GxSxXxCxE, "batch", "length", None, None, None)
    x_XxGxSxCxE = with_logical_constraint(
        jnp.moveaxis(x_GxSxXxCxE, 2, 0), "experts", "expert_batch", "length", None, None
    )
    y_XxGxSxCxE = with_logical_constraint(
        networks(inputs.params, x_XxGxSxCxE), "experts", "expert_batch", "length", None, None
    )
    y_GxSxXxCxE = with_logical_constraint(jnp.moveaxis(y_XxGxSxCxE, 0, 2), "batch", "length", None, None, None)
    y_GxSxRxE = y_GxSxXxCxE.reshape(groups, parts, count * capacity, width)
    y_GxSxNxKxE = _map_over_groups(_take_rows)(y_GxSxRxE, slot_GxSxNxK)
    return jnp.sum(y_GxSxNxKxE * inputs.gates[..., None], axis=3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _overflow_passes(dispatch: DispatchPass, capacity: int, inputs: DifferentiableInputs, queue: ExpertQueues) -> Array:
    """The sum of `dispatch` over all passes but the first; the gradient recomputes each pass."""
    return _sum_over_passes(
        capacity, queue, lambda pass_index: dispatch(inputs, queue, pass_index), jnp.zeros_like(inputs.x)
    )


def _overflow_forward(
    dispatch: DispatchPass, capacity: int, inputs: DifferentiableInputs, queue: ExpertQueues
) -> tuple[Array, tuple[DifferentiableInputs, ExpertQueues]]:
    return _overflow_passes(dispatch, capacity, inputs, queue), (inputs, queue)


def _overflow_backward(
    dispatch: DispatchPass, capacity: int, residuals: tuple[DifferentiableInputs, ExpertQueues], gradient: Array
) -> tuple[DifferentiableInputs, None]:
    inputs, queue = residuals

    def pass_gradient(pass_index: Array) -> DifferentiableInputs:
        _, pull = jax.vjp(lambda inputs: dispatch(inputs, queue, pass_index), inputs)
        return pull(gradient)[0]

    return _sum_over_passes(capacity, queue, pass_gradient, jax.tree.map(jnp.zeros_like, inputs)), None


_overflow_passes.defvjp(_overflow_forward, _overflow_backward)


def _sum_over_passes[T](capacity: int, queue: ExpertQueues, compute_pass: Callable[[Array], T], zero: T) -> T:
    def advance(carry: tuple[Array, T]) -> tuple[Array, T]:
        pass_index, total = carry
        return pass_index + 1, jax.tree.map(jnp.add, total, compute_pass(pass_index))

    # A loop that most steps never enter: a scan would pay for turns that nobody needs.
    return jax.lax.while_loop(lambda carry: carry[0] * capacity < queue.longest_queue, advance, (jnp.int32(1), zero))[1]


def _zero_initialization(role: ParameterRole, fan_in: int, fan_out: int) -> Initializer:
    return zeros


def _map_over_groups(function: Callable[..., Array], *static: int) -> Callable[..., Array]:
    """Map a function over groups of examples and parts of their positions."""
    return jax.vmap(jax.vmap(functools.partial(function, *static)))


def _take_rows(values_RxE: Array, index: Array) -> Array:
    """The rows of these indices; zeros for an index past the end."""
    return jnp.take(values_RxE, index, axis=0, mode="fill", fill_value=0)


def _position_in_each_slot(slots: int, slot_NxK: Array) -> Array:
    """The position in each slot; one past the end for an empty slot."""
    positions, top_k = slot_NxK.shape
    positions_NxK = jnp.broadcast_to(jnp.arange(positions, dtype=jnp.int32)[:, None], (positions, top_k))
    return jnp.full(slots, positions, jnp.int32).at[slot_NxK].set(positions_NxK, mode="drop")


def _group_counts(batch: int, length: int) -> tuple[int, int]:
    """The numbers of shards of the batch and of positions; each shard fills its own rows of each expert.

    Devices then exchange only these rows, by an all-to-all.
    """
    placed = current_placement()
    if placed is None:
        return 1, 1
    batches, parts = placed.num_shards("batch"), placed.num_shards("length")
    return (batches if batch % batches == 0 else 1), (parts if length % parts == 0 else 1)


def _split_into_groups(x_BxTxF: Array, groups: tuple[int, int]) -> Array:
    """Reshape [B, T, F] to [groups of examples, parts of their positions, positions of both, F]."""
    (batches, parts), (batch, length, features) = groups, x_BxTxF.shape
    cut = x_BxTxF.reshape(batches, batch // batches, parts, length // parts, features)
    return with_logical_constraint(
        cut.swapaxes(1, 2).reshape(batches, parts, -1, features), "batch", "length", None, None
    )


def _merge_groups(x_GxSxNxF: Array, groups: tuple[int, int], batch: int, length: int) -> Array:
    """The inverse of `_split_into_groups`."""
    (batches, parts), features = groups, x_GxSxNxF.shape[-1]
    cut = x_GxSxNxF.reshape(batches, parts, batch // batches, length // parts, features)
    return with_logical_constraint(cut.swapaxes(1, 2).reshape(batch, length, features), "batch", "length", None)
