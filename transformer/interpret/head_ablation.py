"""What each attention head of a run is worth: the loss on held-out data without it, and its importance by gradients.

Heads are set to zero or replaced by their mean, alone, in pairs, or one after the other. The loss is that of the run's
own evaluation, of the model with edited head outputs.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from transformer.attention.requested_activations import HEAD_OUTPUTS, request_activations
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.head_ablation_record import (
    CheckpointAblation,
    HeadKnockOut,
    LossDifference,
    PairKnockOut,
    PruningCurve,
    PruningOrder,
)
from transformer.models.activations import EditedModel
from transformer.models.edits import Edit, add, resolve_edit, scale
from transformer.models.named_values import Occurrences, evaluate, find_named_values, trace
from transformer.tasks.classification_metrics import spearman_correlation
from transformer.tasks.task import Batch, Evaluation, EvaluationStep, StateView
from transformer.training.build import TrainingComponents
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.partitioning import shard_batch, trace_with_placement
from transformer.training.state import TrainState, derive_key

CONFIDENCE = 0.95  # of every interval
NUM_RANDOM_ORDERS = 3  # in which heads are pruned
_LOSS = "loss"
_ROUNDING = 1e-4  # relative: sums over examples one by one that differ by less from those of their batch are equal

# Arrays of every layer and head by the name of the attention module.
BySite = Mapping[str, np.ndarray]


class Head(NamedTuple):
    """A head of a model.

    Attributes:
        site: The name of its attention module.
        layer: The index of its layer.
        head: The index of the head.
    """

    site: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.site}:{self.layer}.{self.head}"


class EditedSite(NamedTuple):
    """An attention module whose heads are edited.

    Attributes:
        site: The module.
        head_dim: The number of features of a head's output.
    """

    site: Site
    head_dim: int

    @property
    def activation(self) -> str:
        """The name of its heads' outputs."""
        return _head_outputs(self.site)


class GateGradients(NamedTuple):
    """Gradients of the loss with respect to a gate g = 1 on each head's output, and the heads' mean outputs.

    Attributes:
        importance_N: The sum of |dL/dg| over the examples or batches.
        gradient_N: The sum of dL/dg.
        means: The mean output of each head, [layer, head, feature].
    """

    importance_N: Float[np.ndarray, " N"]
    gradient_N: Float[np.ndarray, " N"]
    means: BySite


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOutLoss:
    """The held-out loss of a run as a function of its checkpoint and of gates on its heads.

    Attributes:
        components: The run's components.
        evaluation: The evaluation that reports the loss.
        batches: The batches that are measured.
        edited_sites: The attention modules whose heads are edited.
        sum_names: The sums of the evaluation that are numbers.
        other_results: Its other sums and its rows, of the unedited model.
        by_example: Whether it is summed for every example; else for every batch.
        heads_at_once: The number of edited models that run at once.
    """

    components: TrainingComponents
    evaluation: Evaluation
    batches: Sequence[Batch]
    edited_sites: tuple[EditedSite, ...]
    sum_names: tuple[str, ...]
    other_results: tuple[Mapping[str, Any], Any]
    by_example: bool
    heads_at_once: int

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads, by module, layer and number."""
        return tuple(
            Head(site.name, layer, head)
            for site, _ in self.edited_sites
            for layer, head in np.ndindex(len(site.layers), len(site.heads))
        )

    @property
    def unit(self) -> str:
        """What the loss is summed for: "examples" or "batches"."""
        return "examples" if self.by_example else "batches"

    def unit_sums(
        self, state: TrainState, gates_VxN: Float[np.ndarray, "V N"], replacements: BySite | None = None
    ) -> Float[np.ndarray, "V U K"]:
        """Sum the evaluation for every example or batch, with gates on the heads: g output + (1 - g) replacement.

        All variants run through one program, compiled once for each shape of batch.

        Args:
            state: The checkpoint.
            gates_VxN: The gates of each variant and head.
            replacements: What replaces the outputs, [layer, head, feature]; None is zero.

        Returns:
            The sums `sum_names` of each variant and unit.
        """
        num_chunks = -(-len(gates_VxN) // self.heads_at_once)
        padded_VxN = np.ones((num_chunks * self.heads_at_once, len(self.heads)), np.float32)
        padded_VxN[: len(gates_VxN)] = gates_VxN
        if replacements is None:
            replacements = {
                site.name: np.zeros((len(site.layers), len(site.heads), head_dim), np.float32)
                for site, head_dim in self.edited_sites
            }
        sums_by_batch = []
        for batch, key in self._keyed_batches(state):
            sums_by_chunk = [
                jax.device_get(self._sums_of_variants(state, batch, key, gates_CxN, replacements))
                for gates_CxN in np.split(padded_VxN, num_chunks)
            ]
            sums_by_batch.append(np.concatenate(sums_by_chunk)[: len(gates_VxN)])
        return np.concatenate(sums_by_batch, axis=1, dtype=np.float64)

    def loss(self, sums_K: Float[np.ndarray, " K"]) -> float:
        """Return the loss that the evaluation reports for sums over all units."""
        other_sums, rows = self.other_results
        sums = {**other_sums, **dict(zip(self.sum_names, np.asarray(sums_K, np.float64), strict=True))}
        return float(self.evaluation.finish(sums, rows).scalars[_LOSS])

    def loss_derivatives(self, sums_K: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """Return the derivatives of the reported loss with respect to the sums, by central differences."""
        changes_K = 1e-5 * np.maximum(np.abs(sums_K), 1.0)
        return np.array(
            [
                (self.loss(sums_K + change_K) - self.loss(sums_K - change_K)) / (2 * change_K.sum())
                for change_K in np.diag(changes_K)
            ]
        )

    def gate_gradients(self, state: TrainState, derivatives_K: Float[np.ndarray, " K"]) -> GateGradients:
        """Compute the gradients with respect to the heads' gates, and the heads' means.

        A mean is over the positions that count: those on whose head outputs the loss of the batch depends, by its
        gradient. Padding is none of them.

        Args:
            state: The checkpoint.
            derivatives_K: The derivatives of the loss with respect to the sums.
        """
        gradients_by_batch, totals_by_batch, counts_by_batch = [], [], []
        for batch, key in self._keyed_batches(state):
            gradients, totals, counts = jax.device_get(self._gate_gradients(state, batch, key, derivatives_K))
            parts = [np.moveaxis(gradients[site.name], 1, 2) for site, _ in self.edited_sites]  # [L, H, B]
            gradients_NxU = np.concatenate([part.reshape(-1, part.shape[2]) for part in parts], dtype=np.float64)
            if not self.by_example:
                gradients_NxU = gradients_NxU.sum(axis=1, keepdims=True)
            gradients_by_batch.append(gradients_NxU)
            totals_by_batch.append(totals)
            counts_by_batch.append(counts)
        gradients_NxU = np.concatenate(gradients_by_batch, axis=1)
        total, count = (
            jax.tree.map(lambda *leaves: np.sum(leaves, axis=0, dtype=np.float64), *trees)
            for trees in (totals_by_batch, counts_by_batch)
        )
        means = {name: (total[name] / np.maximum(count[name], 1)[:, None, None]).astype(np.float32) for name in total}
        return GateGradients(np.abs(gradients_NxU).sum(axis=1), gradients_NxU.sum(axis=1), means)

    def _keyed_batches(self, state: TrainState) -> Iterator[tuple[dict[str, jax.Array], jax.Array]]:
        """Yield the batches with the keys that the run's own evaluation has."""
        key = derive_key(state.key, state.step, self.evaluation.name)
        for number, batch in enumerate(self.batches):
            yield shard_batch(batch, self.components.placement), jax.random.fold_in(key, number)

    @functools.cached_property
    def _sums_of_variants(self) -> Any:
        def measure(
            state: TrainState, batch: Batch, key: Array, gates_CxN: Array, replacements: Mapping[str, Array]
        ) -> Float[Array, "C U K"]:
            def measure_variant(gates_N: Array) -> Float[Array, "U K"]:
                model = EditedModel.of(self.components.model, self._gate_edits(gates_N, replacements))
                view = evaluation_view(model, state, self.evaluation.parameters)
                sums = sums_by_unit(self.evaluation.step, view, batch, key, by_example=self.by_example)
                return jnp.stack([sums[name] for name in self.sum_names], axis=-1)

            return jax.vmap(measure_variant)(gates_CxN)

        return jax.jit(trace_with_placement(self.components.placement, measure))

    def _gate_edits(self, gates_N: Array, replacements: Mapping[str, Array]) -> list[Edit]:
        edits, start = [], 0
        for edited in self.edited_sites:
            shape = (len(edited.site.layers), len(edited.site.heads))
            gates_Lx1x1xHx1 = gates_N[start : start + math.prod(shape)].reshape(shape)[:, None, None, :, None]
            start += math.prod(shape)
            replacement_Lx1x1xHxD = replacements[edited.site.name][:, None, None]
            value = (1 - gates_Lx1x1xHx1) * replacement_Lx1x1xHxD
            edits.append(Edit(edited.activation, factor=gates_Lx1x1xHx1, value=value))
        return edits

    @functools.cached_property
    def _gate_gradients(self) -> Any:
        """The compiled function to gradients [L, B, H], and to sums [L, H, D] and counts [L] of the counted outputs."""

        def measure(
            state: TrainState, batch: Batch, key: Array, derivatives_K: Array
        ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
            names = [edited.activation for edited in self.edited_sites]

            def run_step(state: TrainState, batch: Batch, key: Array) -> Any:
                view = evaluation_view(self.components.model, state, self.evaluation.parameters)
                with request_activations(names):
                    return self.evaluation.step(view, batch, key)[0]

            args = (state, batch, key)
            closed, structure = trace(run_step, *args)
            occurrences = find_named_values(closed)

            def weighted_sum(gates: Mapping[str, Array], offsets: Mapping[str, Array]) -> tuple[Array, Any]:
                changes = {}
                for name, gates_LxBx1xHx1 in gates.items():
                    passes = len(offsets[name]) // len(gates_LxBx1xHx1)
                    edits = (scale(name, jnp.tile(gates_LxBx1xHx1, (passes, 1, 1, 1, 1))), add(name, offsets[name]))
                    changes[name] = [resolve_edit(edit, occurrences[name]) for edit in edits]
                flat, outputs = evaluate(closed, jax.tree.leaves(args), dict.fromkeys(names, jnp.asarray), changes)
                sums = jax.tree.unflatten(structure, flat)
                total = sum(
                    derivative * sums[name] for name, derivative in zip(self.sum_names, derivatives_K, strict=True)
                )
                return total, outputs

            gates, offsets = {}, {}
            for edited in self.edited_sites:
                number, shape = occurrences[edited.activation]
                assert shape is not None
                offsets[edited.activation] = jnp.zeros((number, *shape.shape), shape.dtype)
                layers, examples, heads = len(edited.site.layers), shape.shape[0], shape.shape[2]
                gates[edited.activation] = jnp.ones((layers, examples, 1, heads, 1), shape.dtype)
            differentiate = jax.grad(weighted_sum, argnums=(0, 1), has_aux=True)
            (gate_gradients, output_gradients), outputs = differentiate(gates, offsets)
            by_site: dict[str, tuple[Array, Array, Array]] = {}
            for edited in self.edited_sites:
                # A step may run the model several times, and a recurrent decoder runs at each position.
                output, gradient = (
                    values[edited.activation].reshape(-1, len(edited.site.layers), *values[edited.activation].shape[1:])
                    for values in (outputs, output_gradients)
                )
                counted_PxLxBxT = jnp.any(gradient != 0, axis=(4, 5))
                by_site[edited.site.name] = (
                    gate_gradients[edited.activation][:, :, 0, :, 0],
                    jnp.einsum("plbthd,plbt->lhd", output, counted_PxLxBxT),
                    jnp.sum(counted_PxLxBxT, axis=(0, 2, 3)),
                )
            gradients, totals, counts = ({site: parts[k] for site, parts in by_site.items()} for k in range(3))
            return gradients, totals, counts

        return jax.jit(trace_with_placement(self.components.placement, measure))


def sums_by_unit(
    step: EvaluationStep, view: StateView, batch: Batch, key: Array, *, by_example: bool
) -> dict[str, Array]:
    """Return the sums of an evaluation's step for every example of a batch, or for the batch, with a leading axis."""
    if by_example:
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], dict(batch))
        return jax.vmap(lambda row: step(view, row, key)[0])(rows)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], step(view, batch, key)[0])


def find_held_out_loss(
    components: TrainingComponents,
    state: TrainState,
    *,
    split: str | None = None,
    num_batches: int | None = None,
    heads_at_once: int = 8,
) -> HeldOutLoss:
    """Return the held-out loss of a run: that of the first evaluation that sums one.

    Args:
        components: The run's components.
        state: A checkpoint of the run.
        split: The data split; None is that of the evaluations during training.
        num_batches: The number of batches to measure, the first of the split; None is all.
        heads_at_once: The number of edited models that run at once, in one program.

    Raises:
        UserError: If the run has no such evaluation, or its model has no heads whose outputs are named.
    """
    task, state = components.task, state.without_optimizers()
    splits = sorted({evaluation.split for evaluation in task.evaluations})
    if split not in (None, *splits):
        raise UserError(f"--split={split} is not evaluated by this run; choose one of: {', '.join(splits)}")
    candidates = [evaluation for evaluation in components.evaluations if split in (None, evaluation.split)]
    for evaluation in sorted(candidates, key=lambda evaluation: evaluation.at_end):
        if _has_loss(components, evaluation, state):
            break
    else:
        raise UserError(
            "this run's evaluations report no loss whose change without a head could be measured: name a run whose "
            "evaluation sums a loss, such as one of language_modeling or translation"
        )
    batches = [evaluation.batches[number] for number in range(len(evaluation.batches))][:num_batches]
    batch, key = shard_batch(batches[0], components.placement), state.key

    def run_step(state: TrainState, batch: Batch, key: Array) -> Any:
        return evaluation.step(evaluation_view(components.model, state, evaluation.parameters), batch, key)

    def find(state: TrainState, batch: Batch, key: Array) -> dict[str, Occurrences]:
        def run_named_step(*args: Any) -> Any:
            with request_activations(map(_head_outputs, components.model.sites)):
                return run_step(*args)

        return find_named_values(trace(run_named_step, state, batch, key)[0])

    placed = functools.partial(trace_with_placement, components.placement)
    edited_sites = find_edited_sites(components.model.sites, placed(find)(state, batch, key))
    if not edited_sites:
        raise UserError(
            "this run's model has no attention heads whose outputs are named: name a run of a Transformer or of a "
            "recurrent decoder with attention (docs/guides/activations.md lists the activations of each family)"
        )
    sums, rows = jax.device_get(jax.jit(placed(run_step))(state, batch, key))
    sum_names = tuple(name for name, value in sums.items() if np.ndim(value) == 0)
    by_example = not any(objective.compares_rows for objective in task.objectives) and _is_sum_of_rows(
        components, evaluation, state, batch, sums
    )
    other_sums = {name: value for name, value in sums.items() if name not in sum_names}
    loss = HeldOutLoss(
        components, evaluation, batches, edited_sites, sum_names, (other_sums, rows), by_example, heads_at_once
    )
    derivatives_K = loss.loss_derivatives(np.array([sums[name] for name in sum_names], np.float64))
    if derivatives_K[sum_names.index(_LOSS)] <= 0:
        raise UserError(f"the evaluation {evaluation.name} reports a loss that is not made of its summed loss")
    return loss


def _has_loss(components: TrainingComponents, evaluation: Evaluation, state: TrainState) -> bool:
    """Whether an evaluation sums a loss."""

    def run_step(state: TrainState, batch: Batch) -> Any:
        view = evaluation_view(components.model, state, evaluation.parameters)
        return evaluation.step(view, batch, state.key)[0]

    batch = shard_batch(evaluation.batches[0], components.placement)
    sums = jax.eval_shape(trace_with_placement(components.placement, run_step), state, batch)
    return isinstance(sums, Mapping) and _LOSS in sums and sums[_LOSS].shape == ()


def find_edited_sites(sites: Sequence[Site], occurrences: Mapping[str, Occurrences]) -> tuple[EditedSite, ...]:
    """Return the attention modules whose head outputs a step has, of all layers and heads, in each of its passes."""
    edited_sites = []
    for site in sites:
        number, shape = occurrences.get(_head_outputs(site), Occurrences(0, None))
        if (
            shape is not None
            and shape.ndim == 4
            and (shape.shape[2], number % len(site.layers)) == (len(site.heads), 0)
        ):
            edited_sites.append(EditedSite(site, shape.shape[3]))
    return tuple(edited_sites)


def _head_outputs(site: Site) -> str:
    return f"{site.name}/{HEAD_OUTPUTS}"


def _is_sum_of_rows(
    components: TrainingComponents, evaluation: Evaluation, state: TrainState, batch: Batch, sums: Mapping[str, Any]
) -> bool:
    """Whether the sums over the examples of a batch, one by one, are those of the batch."""
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(dict(batch))}
    if len(lengths) != 1:
        return False

    def measure(state: TrainState, batch: Batch) -> dict[str, Array]:
        view = evaluation_view(components.model, state, evaluation.parameters)
        by_row = sums_by_unit(evaluation.step, view, batch, state.key, by_example=True)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), by_row)

    summed = jax.device_get(jax.jit(trace_with_placement(components.placement, measure))(state, batch))
    return all(np.allclose(summed[name], sums[name], rtol=_ROUNDING, atol=_ROUNDING) for name in sums)


def ablate_heads(
    loss: HeldOutLoss,
    state: TrainState,
    *,
    pairs: Sequence[tuple[Head, Head]] = (),
    prune: bool = False,
) -> CheckpointAblation:
    """Measure what every head of a checkpoint is worth.

    Args:
        loss: The held-out loss.
        state: The checkpoint.
        pairs: Pairs of heads to set to zero together.
        prune: Whether to set heads to zero one after the other, by importance, by knock-out and in random order.
    """
    state, heads = state.without_optimizers(), loss.heads
    singles_NxN = 1 - np.eye(len(heads))
    pair_indices = [(heads.index(first), heads.index(second)) for first, second in pairs]
    pairs_PxN = np.array([singles_NxN[first] * singles_NxN[second] for first, second in pair_indices])
    random_orders = [
        tuple(np.random.default_rng(seed).permutation(len(heads)).tolist())
        for seed in range(NUM_RANDOM_ORDERS if prune else 0)
    ]
    unedited_1xN = np.ones((1, len(heads)))
    gates = [unedited_1xN, singles_NxN, pairs_PxN.reshape(-1, len(heads)), *map(_pruning_gates, random_orders)]
    zeroed = _Variants(loss, loss.unit_sums(state, np.concatenate(gates)))
    gradients = loss.gate_gradients(state, zeroed.derivatives_VxK[0])
    averaged = _Variants(loss, loss.unit_sums(state, np.concatenate(gates[:2]), gradients.means))
    single_range = range(1, 1 + len(heads))
    zero_N, mean_N = ([variants.difference({v: 1, 0: -1}) for v in single_range] for variants in (zeroed, averaged))
    knock_outs = tuple(
        HeadKnockOut(*head, zero_N[index], mean_N[index], *map(float, (importance, gradient)))
        for index, (head, importance, gradient) in enumerate(
            zip(heads, gradients.importance_N, gradients.gradient_N, strict=True)
        )
    )
    first_pair = 1 + len(heads)
    pair_records = tuple(
        PairKnockOut(
            first,
            second,
            zeroed.difference({first_pair + number: 1, 0: -1}),
            zeroed.difference({first_pair + number: 1, 1 + first: -1, 1 + second: -1, 0: 1}),
        )
        for number, (first, second) in enumerate(pair_indices)
    )
    unedited_loss = float(zeroed.losses_V[0])
    first_random = first_pair + len(pairs)
    random_losses = zeroed.losses_V[first_random:].reshape(len(random_orders), len(heads))
    curves = [
        PruningCurve(PruningOrder.RANDOM, order, (unedited_loss, *losses.tolist()))
        for order, losses in zip(random_orders, random_losses, strict=True)
    ]
    if prune:
        worths = {
            PruningOrder.IMPORTANCE: gradients.importance_N,
            PruningOrder.KNOCK_OUT: np.array([zero.value for zero in zero_N]),
        }
        orders = {name: tuple(np.argsort(worth_N, kind="stable").tolist()) for name, worth_N in worths.items()}
        pruned = _Variants(loss, loss.unit_sums(state, np.concatenate([*map(_pruning_gates, orders.values())])))
        ranked = [
            PruningCurve(name, order, (unedited_loss, *losses.tolist()))
            for (name, order), losses in zip(orders.items(), pruned.losses_V.reshape(2, -1), strict=True)
        ]
        curves = [*ranked, *curves]
    zero_correlation, mean_correlation = (
        spearman_correlation(gradients.importance_N, np.array([difference.value for difference in differences]))
        for differences in (zero_N, mean_N)
    )
    return CheckpointAblation(
        int(state.step),
        unedited_loss,
        zeroed.num_units,
        knock_outs,
        zero_correlation,
        mean_correlation,
        pair_records,
        tuple(curves),
    )


def pairs_within_layers(heads: Sequence[Head]) -> list[tuple[Head, Head]]:
    """Return the pairs of heads of one layer of one attention module."""
    return [(first, second) for first, second in itertools.combinations(heads, 2) if first[:2] == second[:2]]


def _pruning_gates(order: Sequence[int]) -> Float[np.ndarray, "N N"]:
    """The gates with 1, 2 ... heads removed in an order."""
    gates_NxN = np.ones((len(order), len(order)))
    for number, head in enumerate(order):
        gates_NxN[number:, head] = 0
    return gates_NxN


class _Variants:
    """Losses of variants of a model, and intervals of their differences, paired over the units.

    Args:
        loss: The held-out loss.
        sums_VxUxK: The sums of each variant and unit.
    """

    def __init__(self, loss: HeldOutLoss, sums_VxUxK: Float[np.ndarray, "V U K"]):
        # Rows that fill up a batch sum to nothing: they are no sample of anything.
        sums_VxUxK = sums_VxUxK[:, np.any(sums_VxUxK[0] != 0, axis=-1)]
        totals_VxK = sums_VxUxK.sum(axis=1)
        self.losses_V = np.array([loss.loss(totals_K) for totals_K in totals_VxK])
        self.derivatives_VxK = np.array([loss.loss_derivatives(totals_K) for totals_K in totals_VxK])
        self._influences_VxU = np.einsum("vuk,vk->vu", sums_VxUxK, self.derivatives_VxK)

    @property
    def num_units(self) -> int:
        """The number of units."""
        return self._influences_VxU.shape[1]

    def difference(self, factors: Mapping[int, float]) -> LossDifference:
        """Return the sum of losses times factors, with its t interval by the delta method.

        A loss is a function f of sums S over n units. With I = sum_k df/dS_k s_k of one unit, the variance of f is that
        of a sum of I: n var(I). For a mean over examples of equal size it is the paired t interval.
        """
        indices, signs = list(factors), np.array(list(factors.values()))
        value = float(signs @ self.losses_V[indices])
        if self.num_units < 2:
            return LossDifference(value)
        influences_U = signs @ self._influences_VxU[indices]
        error = math.sqrt(self.num_units * np.var(influences_U, ddof=1))
        half_width = float(special.stdtrit(self.num_units - 1, (1 + CONFIDENCE) / 2)) * error
        return LossDifference(value, value - half_width, value + half_width)
