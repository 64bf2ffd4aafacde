"""Optimizers, and which parameters they train."""

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from transformer.config import (
    Config,
    Fraction,
    GreaterThan,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Range,
    UserError,
    suggest_nearest,
)
from transformer.layers.lora import LORA_NAME, has_lora
from transformer.models.model import Model, leaves_by_path, matches_any_pattern
from transformer.tasks.task import Objective
from transformer.training.learning_rate import (
    Hyperparameters,
    LearningRateSchedule,
    Number,
    check_schedule,
    learning_rate,
    schedule_hyperparameters,
)
from transformer.training.state import cast_to_accumulation_dtype

PyTree = Any
LAYERS = "layers"


class OptimizerAlgorithm(enum.Enum):
    """An update rule.

    Attributes:
        ADAM: Kingma and Ba 2015.
        ADAMW: Adam with decoupled weight decay (Loshchilov and Hutter 2019).
        SGD: Gradient descent, with momentum.
        MUON: For the matrices of attention, feed-forward networks and experts, momentum whose singular values are
            brought near 1 by five Newton-Schulz iterations (Jordan et al. 2024), times 0.2 sqrt(max(inputs, outputs)):
            its updates are then as large as AdamW's, and its learning rates and weight decays serve (Liu et al. 2025,
            equation 4). AdamW for all other parameters.
    """

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    MUON = "muon"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config, path="config.optimizer"):
    """How parameters are updated.

    A parameter is trained if its path matches one of `trainable` and none of `frozen`, and if it is not in or below
    the first `frozen_layers` layers; others keep their values and have neither gradients nor moments.

    Attributes:
        algorithm: The update rule.
        learning_rate: The peak learning rate, reached after the warmup.
        schedule: The learning rate after the warmup, or the dotted path of a module that exports a function `SCHEDULE`
            of `step`, which counts earlier steps, and any of `steps`, `learning_rate`, `warmup_steps` and
            `final_lr_fraction` to the learning rate.
        warmup_steps: Steps of linear warmup.
        final_lr_fraction: The fraction of the peak that linear and cosine schedules end at.
        beta1: The decay of Adam's first moment; for SGD and Muon, the momentum.
        beta2: The decay of Adam's second moment.
        epsilon: Adam's epsilon.
        weight_decay: The weight decay of AdamW and Muon. It applies to all parameters except those named `bias`,
            `scale`, `content` and `position`: not to the biases and scales of projections and norms, but to those of
            gates and candidates, which have other names.
        clip_norm: The maximum global norm of the gradient. 0 does not clip.
        trainable: Patterns of the paths of trained parameters (fnmatch).
        frozen: Patterns of the paths of frozen parameters.
        frozen_layers: The number of first layers of every stack that are frozen, with all parameters before the first
            layer, such as embeddings (Lee et al. 2019, "What would Elsa do?"). 0 freezes nothing.
        layer_decay: The factor d of layerwise learning-rate decay: layer l of L stacked layers has d^(L - l) of the
            learning rate; parameters before the first layer have d^L, those after the last all of it (Howard and Ruder
            2018, section 3.2, with d = 1 / 2.6; Clark et al. 2020, appendix B). 1 is none.

    Raises:
        UserError: If a value is out of range, `schedule` names no schedule, or `weight_decay` is set for Adam or SGD.
    """

    algorithm: OptimizerAlgorithm = OptimizerAlgorithm.ADAM
    learning_rate: PositiveFloat = 7e-4
    schedule: LearningRateSchedule | str = LearningRateSchedule.INVERSE_SQUARE_ROOT
    warmup_steps: NonNegativeInt = 4000
    final_lr_fraction: NonNegativeFloat = 0.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: NonNegativeFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: NonNegativeFloat = 0.0
    trainable: tuple[str, ...] = ("*",)
    frozen: tuple[str, ...] = ()
    frozen_layers: NonNegativeInt = 0
    layer_decay: Annotated[float, GreaterThan(0.0, "; config.optimizer.frozen leaves parts alone"), Range(0.0, 1.0)] = (
        1.0
    )

    def _check(self) -> None:
        check_schedule(self.schedule)
        if self.weight_decay and self.algorithm not in (OptimizerAlgorithm.ADAMW, OptimizerAlgorithm.MUON):
            raise UserError(
                f"config.optimizer.weight_decay={self.weight_decay} acts with algorithm=adamw or muon; algorithm is "
                f"{self.algorithm.value}"
            )

    def is_trainable(self, path: str) -> bool:
        """Whether the parameter of this path is trained, by `trainable` and `frozen`."""
        return matches_any_pattern(path, self.trainable) and not matches_any_pattern(path, self.frozen)


class Optimizer(NamedTuple):
    """An update rule over a dict of parameters by path.

    Its numbers `hyper` are arguments, so that one compiled program serves all their values (`hyperparameters`). Moments
    and updates are float32 even if gradients and parameters are narrower.

    Attributes:
        init: A function of the parameters to the optimizer state.
        update: A function (gradients, state, params, step, hyper) to the updates and the next state. `step` counts all
            earlier steps, including those whose update was skipped.
        learning_rate: A function (step, hyper) to the learning rate.
        is_trainable: A function of a path: whether the optimizer trains that parameter, or entries of it.
        num_frozen_entries: For each parameter of which the first entries are frozen, how many.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, PyTree, int | Int[Array, ""], Hyperparameters], tuple[PyTree, PyTree]]
    learning_rate: Callable[[int | Int[Array, ""], Hyperparameters], Float[Array, ""]]
    is_trainable: Callable[[str], bool] = lambda path: True
    num_frozen_entries: Mapping[str, int] = MappingProxyType({})


def hyperparameters(config: OptimizerConfig) -> dict[str, np.float32]:
    """Return the numbers of the config's update rule by field name.

    A clip_norm, weight_decay or SGD momentum of 0 and a layer_decay of 1 are left out, since they make other programs.
    """
    names = schedule_hyperparameters(config.schedule)
    match config.algorithm:
        case OptimizerAlgorithm.ADAM:
            names += ["beta1", "beta2", "epsilon"]
        case OptimizerAlgorithm.ADAMW | OptimizerAlgorithm.MUON:
            names += ["beta1", "beta2", "epsilon"] + ["weight_decay"] * bool(config.weight_decay)
        case OptimizerAlgorithm.SGD:
            names += ["beta1"] * bool(config.beta1)
    names += ["clip_norm"] * bool(config.clip_norm) + ["layer_decay"] * (config.layer_decay != 1)
    return {name: np.float32(getattr(config, name)) for name in names}


def make_optimizer(
    config: OptimizerConfig,
    steps: int,
    layers_above: Mapping[str, np.ndarray | int] | None = None,
    rate_factors: Mapping[str, float] | None = None,
    matrices: Mapping[str, MuonDimensionNumbers] | None = None,
    num_frozen_entries: Mapping[str, int | None] = MappingProxyType({}),
) -> Optimizer:
    """Build the optimizer of a run.

    Args:
        config: The config. Of its numbers the optimizer depends only on which are zero.
        steps: The number of updates of the run.
        layers_above: The number of layers above each parameter (`count_layers_above`), for `layer_decay`.
        rate_factors: The factor on Adam's learning rate for each parameter (`width_rate_factors`), but not on weight
            decay; None for none.
        matrices: The axes of the matrices that Muon trains (`hidden_matrices`).
        num_frozen_entries: The first entries of each parameter that `frozen_layers` freezes (`count_frozen_entries`).

    Raises:
        UserError: If a schedule of the user's own does not return one number.
        ValueError: If `layer_decay` is not 1 and `layers_above` is None, or Muon has no `matrices`.
    """
    if config.algorithm is OptimizerAlgorithm.MUON and not matrices:
        raise ValueError("algorithm=muon needs the axes of the matrices that it trains")
    if config.layer_decay != 1 and layers_above is None:
        raise ValueError(f"layer_decay={config.layer_decay} needs the height of every parameter")
    partly_frozen = {path: number for path, number in num_frozen_entries.items() if number}
    if layers_above is not None:
        layers_above = {
            path: above[partly_frozen[path] :] if path in partly_frozen else above  # type: ignore[index]
            for path, above in layers_above.items()
        }

    def rate(step: int | Int[Array, ""], hyper: Hyperparameters) -> Float[Array, ""]:
        return learning_rate(config.schedule, steps, step, hyper)

    jax.eval_shape(rate, 0, hyperparameters(config))  # refuses a wrong schedule before anything is compiled
    factors = [] if rate_factors is None else [_scale_each(rate_factors)]

    def rule(step: int | Int[Array, ""], hyper: Hyperparameters) -> optax.GradientTransformation:
        def scale(_: Any) -> Float[Array, ""]:
            # Not the rule's own count, which does not advance in a skipped step.
            return rate(step, hyper)

        adam = hyper.get("beta1"), hyper.get("beta2"), hyper.get("epsilon")
        match config.algorithm:
            case OptimizerAlgorithm.ADAM:
                descent = optax.chain(optax.scale_by_adam(*adam), *factors, optax.scale_by_learning_rate(scale))
            case OptimizerAlgorithm.ADAMW:
                descent = optax.chain(
                    optax.scale_by_adam(*adam),
                    *factors,
                    optax.add_decayed_weights(hyper.get("weight_decay", 0.0), _decay_mask),
                    optax.scale_by_learning_rate(scale),
                )
            case OptimizerAlgorithm.MUON:
                descent = optax.chain(
                    _muon_or_adam(adam, matrices or {}),
                    optax.add_decayed_weights(hyper.get("weight_decay", 0.0), _decay_mask),
                    optax.scale_by_learning_rate(scale),
                )
            case OptimizerAlgorithm.SGD:
                descent = optax.sgd(scale, momentum=hyper.get("beta1"))
        return optax.chain(*([optax.clip_by_global_norm(hyper["clip_norm"])] if "clip_norm" in hyper else []), descent)

    def update(
        gradients: PyTree, state: PyTree, params: PyTree, step: int | Int[Array, ""], hyper: Hyperparameters
    ) -> tuple[PyTree, PyTree]:
        # Moments stay float32 for narrower parameters: 0.999 in bfloat16 is 1, and they would not change.
        updates, after = rule(step, hyper).update(cast_to_accumulation_dtype(gradients), state, params)
        if layers_above is not None and "layer_decay" in hyper:
            # After the rule: its updates are proportional to the learning rate, weight decay included.
            updates = {path: hyper["layer_decay"] ** layers_above[path] * leaf for path, leaf in updates.items()}
        return updates, after

    def init(params: PyTree) -> PyTree:
        return rule(0, hyperparameters(config)).init(cast_to_accumulation_dtype(params))

    def is_trainable(path: str) -> bool:
        return config.is_trainable(path) and num_frozen_entries.get(path, 0) is not None

    return Optimizer(init, update, rate, is_trainable, partly_frozen)


def _muon_or_adam(
    adam: tuple[Number | None, ...], matrices: Mapping[str, MuonDimensionNumbers]
) -> optax.GradientTransformation:
    """Orthogonalize the momentum of matrices, times 0.2 sqrt(max(inputs, outputs)), and scale all others by Adam."""

    def axes_by_path(updates: Mapping[str, Any]) -> dict[str, Any]:
        # Of the parameters that Adam trains, a placeholder without leaves stands here.
        return {path: matrices.get(path, update) for path, update in updates.items()}

    def match_adam(updates: Mapping[str, Any], params: Any) -> dict[str, Any]:
        scaled = dict(updates)
        for path in matrices.keys() & updates.keys():
            sides = (math.prod(updates[path].shape[axis] for axis in axes) for axes in matrices[path])
            scaled[path] = 0.2 * math.sqrt(max(sides)) * updates[path]
        return scaled

    muon = optax.chain(scale_by_muon(beta=adam[0], weight_dimension_numbers=axes_by_path), optax.stateless(match_adam))
    rules = {"muon": muon, "adam": optax.scale_by_adam(*adam)}
    return optax.partition(rules, lambda params: {path: "muon" if path in matrices else "adam" for path in params})


def _scale_each(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiply the update of each parameter by its factor."""
    return optax.stateless(lambda updates, params: {path: factors[path] * update for path, update in updates.items()})


def _decay_mask(params: dict[str, jax.Array]) -> dict[str, bool]:
    # By name, since stacked biases have as many dimensions as a matrix.
    return {path: path.rsplit("/", 1)[-1] not in ("bias", "scale", "content", "position", "sinks") for path in params}


def matching_paths(paths: Collection[str], patterns: Sequence[str]) -> list[str]:
    """Return the paths that match one of the patterns."""
    return [path for path in paths if matches_any_pattern(path, patterns)]


def check_trainable_patterns(
    config: OptimizerConfig,
    objective: Objective,
    paths: Collection[str],
    num_frozen_entries: Mapping[str, int | None] = MappingProxyType({}),
) -> None:
    """Check the patterns of trained and frozen parameters.

    Args:
        config: The optimizer's config.
        objective: The objective that it optimizes.
        paths: The paths of all parameters.
        num_frozen_entries: What `frozen_layers` freezes (`count_frozen_entries`).

    Raises:
        UserError: If a pattern matches no parameter, nothing is left to train, or a matrix would be trained that has a
            LoRA update.
    """
    folders = sorted({*paths, *(f"{path.split('/')[0]}/*" for path in paths if "/" in path)})
    for name, patterns in (("trainable", config.trainable), ("frozen", config.frozen)):
        for pattern in patterns:
            if not matching_paths(paths, [pattern]):
                near = suggest_nearest(pattern, folders)
                raise UserError(f"config.optimizer.{name}: {pattern!r} matches no parameter of this model; {near}")
    own = matching_paths(paths, objective.trainable)
    trained = [path for path in own if config.is_trainable(path)]
    trained = [path for path in trained if num_frozen_entries.get(path, 0) is not None]
    if own and not trained:
        layers = f" and frozen_layers={config.frozen_layers}" if config.frozen_layers else ""
        raise UserError(
            f"config.optimizer.trainable={config.trainable} without frozen={config.frozen}{layers} leaves the "
            f"objective {objective.name!r} nothing to train: it trains {', '.join(objective.trainable)}"
        )
    for path in trained:
        if has_lora(path, paths):
            raise UserError(
                f"config.model.lora puts a low rank beside {path}, which this run trains itself: say "
                "config.optimizer.trainable='*/lora/*' (and a new head's parameters), or config.model.lora.rank=0"
            )


def count_layers_above(model: Model, front: Sequence[str]) -> dict[str, np.ndarray]:
    """Count the layers above each parameter.

    In a stack of L blocks, block l (l = 1, ..., L) has L - l above it. Parameters before the first block have L (that
    of the deepest stack); all others, after the last block, 0.

    Args:
        model: The model.
        front: Patterns of the parameters before the first block.

    Returns:
        For each path an array that broadcasts against the parameter.

    Raises:
        UserError: If the model has no stacked layers.
    """
    shapes, axes = _shapes_by_path(model), _axes_by_path(model)
    stacks = _stacks_of_layers(model)
    if not stacks:
        raise UserError("config.optimizer.layer_decay needs a model of stacked layers, and this one has none: say 1")
    layers_above: dict[str, np.ndarray] = {}
    for paths in stacks.values():
        inner = _layers_per_entry(paths, shapes, axes) - 1
        for path in paths:
            numbers = np.arange(shapes[path][0]) * (inner + 1) + inner
            if axes[path][1:2] == (LAYERS,):
                numbers = numbers[:, None] - inner + np.arange(inner)
            above = shapes[path][0] * (inner + 1) - 1 - numbers
            layers_above[path] = above.reshape(above.shape + (1,) * (len(shapes[path]) - above.ndim))
    highest = max(above.max() + 1 for above in layers_above.values())
    first = set(matching_paths(shapes, front))
    return {path: layers_above.get(path, np.asarray(highest if path in first else 0)) for path in shapes}


def count_frozen_entries(model: Model, front: Sequence[str], frozen_layers: int) -> dict[str, int | None]:
    """Count the first entries of each parameter that are frozen with the first layers of every stack.

    Args:
        model: The model.
        front: Patterns of the parameters before the first block.
        frozen_layers: The number of layers.

    Returns:
        For each path the number of entries along its first axis, that of layers; None for a parameter that is frozen
        whole. Those of which nothing is frozen are left out.

    Raises:
        UserError: If the model has no stacked layers, a stack has fewer, or its layers are stored in groups of which
            one would be frozen in part.
    """
    if not frozen_layers:
        return {}
    shapes, axes, stacks = _shapes_by_path(model), _axes_by_path(model), _stacks_of_layers(model)
    key = f"config.optimizer.frozen_layers={frozen_layers}"
    if not stacks:
        raise UserError(
            f"{key} needs a model of stacked layers, and this one has none: say config.optimizer.frozen with the paths "
            "of its parts"
        )
    frozen: dict[str, int | None] = dict.fromkeys(matching_paths(shapes, front))
    for name, paths in stacks.items():
        size, entries = _layers_per_entry(paths, shapes, axes), shapes[paths[0]][0]
        if frozen_layers > entries * size:
            raise UserError(f"{key} is more than the {entries * size} layers of {name}: say at most so many")
        if frozen_layers % size:
            raise UserError(f"{key} divides the layers of {name}, which are stored in groups of {size}: say a multiple")
        number = frozen_layers // size
        frozen |= dict.fromkeys(paths, None if number == entries else number)
    return frozen


def _shapes_by_path(model: Model) -> dict[str, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in leaves_by_path(model.functional.shapes()).items()}


def _stacks_of_layers(model: Model) -> dict[str, list[str]]:
    """Return the paths of the parameters of each stack of layers, by its name."""
    axes = _axes_by_path(model)
    stacks: dict[str, list[str]] = {}
    for path in axes:
        stacks.setdefault(path.split("/")[0], []).append(path)
    # Per-layer vectors that another module reads are not a stack of layers.
    return {name: paths for name, paths in stacks.items() if all(axes[path][:1] == (LAYERS,) for path in paths)}


def _layers_per_entry(
    paths: Sequence[str], shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[str | None, ...]]
) -> int:
    """Return how many blocks form one entry of a stack; if several, all but the last have an inner layer axis."""
    return max((shapes[path][1] for path in paths if axes[path][1:2] == (LAYERS,)), default=0) + 1


# Logical axes that grow with the width of a Transformer; those of one group are one side of a matrix.
_WIDTH_AXES = (frozenset({"embed"}), frozenset({"feed_forward"}), frozenset({"heads", "groups", "head_dim"}))
# Matrices from the width to a number of features that does not grow. Their products sum over the width as the logits
# do, which the model divides itself.
_WIDTH_TO_FEATURES = ("*/router/kernel", "*/noise/kernel", "*/shared_gate/kernel", f"*/{LORA_NAME}/down")


def _axes_by_path(model: Model) -> dict[str, tuple[str | None, ...]]:
    """Return the logical axes of each parameter."""
    return leaves_by_path(model.functional.axes(), lambda leaf: isinstance(leaf, tuple))


def _width_sides(names: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Return the sides of an array that grow with the width, in their order, each as the numbers of its axes."""
    sides = (tuple(axis for axis, name in enumerate(names) if name in group) for group in _WIDTH_AXES)
    return sorted(side for side in sides if side)


def width_rate_factors(model: Model) -> dict[str, float] | None:
    """Return the factor on Adam's learning rate for each parameter in the maximal update parametrization.

    It is 1 / m for hidden matrices, both sides of which grow with the width, and for those that choose experts or begin
    a low-rank update, whose inputs grow; and 1 for vectors, tables and the matrix of the logits (Yang et al. 2022,
    table 8).

    Args:
        model: The model, whose `width_ratio` is m.

    Returns:
        The factors by path; None if m is 1.
    """
    if model.width_ratio == 1:
        return None
    axes = _axes_by_path(model)
    scaled = {
        path
        for path, names in axes.items()
        if len(_width_sides(names)) > 1 or matches_any_pattern(path, _WIDTH_TO_FEATURES)
    }
    return {path: 1 / model.width_ratio if path in scaled else 1.0 for path in axes}


def hidden_matrices(model: Model) -> dict[str, MuonDimensionNumbers]:
    """Return the axes of the inputs and outputs of each hidden matrix: one both of whose sides grow with the width.

    These are the matrices of attention, of feed-forward networks and of experts; tables of embeddings, the matrix of
    the logits, biases, norms and the matrices of recurrent cells are none. Heads are part of one side.

    Raises:
        UserError: If the model has none.
    """
    sides_by_path = {path: _width_sides(names) for path, names in _axes_by_path(model).items()}
    matrices = {path: MuonDimensionNumbers(*sides) for path, sides in sides_by_path.items() if len(sides) == 2}
    if not matrices:
        raise UserError(
            "config.optimizer.algorithm=muon is for the matrices of attention and feed-forward networks, and this "
            "model has none: say adamw"
        )
    return matrices


def describe_trainable(optimizer: Optimizer, objective: Objective, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Describe what an objective trains, if it is not everything.

    Args:
        optimizer: The optimizer.
        objective: The objective.
        shapes: The shape of each parameter by path.
    """
    trained = [path for path in matching_paths(shapes, objective.trainable) if optimizer.is_trainable(path)]
    if len(trained) == len(shapes) and not optimizer.num_frozen_entries:
        return []

    def count_trained(path: str) -> int:
        shape, frozen = shapes[path], optimizer.num_frozen_entries.get(path, 0)
        return math.prod((shape[0] - frozen, *shape[1:]) if frozen else shape)

    num_trained = sum(map(count_trained, trained))
    num_parameters = sum(map(math.prod, shapes.values()))
    return [
        f"{objective.name} trains {num_trained:,} of {num_parameters:,} parameters, "
        f"in {len(trained)} of {len(shapes)} arrays" + _describe_frozen_layers(optimizer, shapes, trained)
    ]


def _describe_frozen_layers(
    optimizer: Optimizer, shapes: Mapping[str, tuple[int, ...]], trained: Collection[str]
) -> str:
    """Return what `frozen_layers` freezes, as "; frozen: embedding and the first 1 of 2 layers of decoder"."""
    if not optimizer.num_frozen_entries:
        return ""
    stacks = {
        path.partition("/")[0]: f"the first {count} of {shapes[path][0]} layers of {path.partition('/')[0]}"
        for path, count in optimizer.num_frozen_entries.items()
    }
    frozen_modules = {path.partition("/")[0] for path in shapes if path not in trained} - stacks.keys()
    return f"; frozen: {' and '.join([*sorted(frozen_modules), *stacks.values()])}"
