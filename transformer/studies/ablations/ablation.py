"""The specification of an ablation: arms that differ in a few keys, the seeds they share, and how they are compared.

A config file defines `get_ablation(ablation)` in addition to `get_config()`; it is called with `build_ablation` and
returns the ablation.
"""

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from transformer.config import (
    Config,
    PositiveFloat,
    PositiveInt,
    Seed,
    TupleLimits,
    UserError,
    from_config,
    suggest_nearest,
)
from transformer.overrides import config_keys_overlap

Overrides = Mapping[str, Any]  # dotted key without "config." -> value; a mapping replaces a whole group


class Direction(enum.Enum):
    """Whether a metric is minimized, as a loss is, or maximized, as an accuracy is."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> float:
        """The sign that makes the metric a cost, of which less is better."""
        return 1.0 if self is Direction.MINIMIZE else -1.0

    def is_better(self, value: float, reference: float) -> bool:
        """Return whether a value of the metric is better than another."""
        return self.sign * value < self.sign * reference

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values of the metric."""
        return min(values, key=lambda value: self.sign * value)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of some values of the metric."""
        return max(values, key=lambda value: self.sign * value)

    def rank(self, values: Mapping[str, float]) -> list[str]:
        """Return the names of some values of the metric, the best first."""
        return sorted(values, key=lambda name: self.sign * values[name])


class PredictedDirection(enum.Enum):
    """How an arm is expected to differ from the reference; similar is neither better nor worse by `at_most`."""

    BETTER = "better"
    WORSE = "worse"
    SIMILAR = "similar"


@dataclasses.dataclass(frozen=True)
class Prediction(Config, path="prediction"):
    """What is expected of an arm, written down before its runs: the direction and the size of its difference.

    Attributes:
        arm: The arm, which is compared with the reference.
        direction: Whether it is better, worse or similar.
        task: The task; None for the mean over all tasks.
        at_least: The smallest expected size, in units of `reported_metric`.
        at_most: The largest expected size; of similar arms by default `smallest_effect_of_interest`.
        more_than_on: Another task. The sizes are then those by which the difference exceeds the one on that task.
    """

    arm: str
    direction: PredictedDirection
    task: str | None = None
    at_least: PositiveFloat | None = None
    at_most: PositiveFloat | None = None
    more_than_on: str | None = None

    def _check(self) -> None:
        if self.direction is PredictedDirection.SIMILAR and (
            self.at_least is not None or self.more_than_on is not None
        ):
            key = "at_least" if self.at_least is not None else "more_than_on"
            raise UserError(f"prediction.direction='similar' excludes {key}: say at_most, or better or worse")
        if self.at_least is not None and self.at_most is not None and self.at_least >= self.at_most:
            raise UserError(
                f"prediction.at_least={self.at_least:g} must be smaller than prediction.at_most={self.at_most:g}"
            )
        if self.more_than_on is not None and self.task is None:
            raise UserError(f"prediction.more_than_on={self.more_than_on!r} compares two tasks: name the other as task")
        if self.more_than_on is not None and self.more_than_on == self.task:
            raise UserError(f"prediction.more_than_on={self.more_than_on!r} is its own task: name another")


@dataclasses.dataclass(frozen=True)
class DepthSweep(Config, path="stack"):
    """A stack of layers whose gradients at initialization are measured at several depths.

    Attributes:
        depths: The depths.
        depth_keys: The config keys that are set to each depth.
        overrides: Overrides that make the stack's config from the study's base config.
        seeds: The seeds; norms are averaged over them.
    """

    depths: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=1, distinct=True)]
    depth_keys: Annotated[tuple[str, ...], TupleLimits(min_length=1)]
    overrides: Overrides = dataclasses.field(default_factory=dict)
    seeds: Annotated[tuple[Seed, ...], TupleLimits(min_length=1, distinct=True)] = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Ablation(Config, path="ablation"):
    """The specification of an ablation: a question, its arms, and how they are compared.

    Every arm is trained on every task with every seed and every combination of the tuned values. For each arm and task
    the values with the best mean `selection_metric` are selected, of those with which at least half of the seeds
    learned. At these values each arm is compared with the reference by the `reported_metric` metric.

    Attributes:
        question: The question, in one sentence.
        arms: Config overrides by arm.
        reference: The arm that the others are compared with.
        tuning_grid: The values to try, by config key.
        selection_metric: The metric, as "split/name", that selects among the tuned values.
        reported_metric: The metric, as "split/name", of the verdict.
        direction: Whether both metrics are minimized or maximized.
        seeds: The seeds of every arm.
        tasks: Config overrides by task.
        target: A value of `selection_metric`; the steps to reach it are reported.
        learned_threshold: A finished run with a worse `selection_metric` has not learned: it is stuck.
        smallest_effect_of_interest: The smallest difference that matters, in units of `reported_metric`.
        plotted_metrics: Further metrics to plot.
        initial_gradients: Depth sweeps of gradients at initialization, by name.
        predictions: What is expected of the arms; the report says of each whether it came out.
        known_before: What was known of the outcome when the study was planned, such as earlier runs with its seeds.
    """

    question: str
    arms: Mapping[str, Overrides]
    reference: str
    tuning_grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    selection_metric: str = "validation/loss"
    reported_metric: str = "test/loss"
    direction: Direction = Direction.MINIMIZE
    seeds: Annotated[tuple[Seed, ...], TupleLimits(min_length=1, distinct=True)] = (1, 2, 3, 4, 5)
    tasks: Mapping[str, Overrides] = dataclasses.field(default_factory=lambda: {"": {}})
    target: float | None = None
    learned_threshold: float | None = None
    smallest_effect_of_interest: PositiveFloat | None = None
    plotted_metrics: tuple[str, ...] = ()
    initial_gradients: Mapping[str, DepthSweep] = dataclasses.field(default_factory=dict)
    predictions: tuple[Prediction, ...] = ()
    known_before: str = ""

    def _check(self) -> None:
        if not self.question.strip():
            raise UserError("ablation.question is empty: say in one sentence what the study asks")
        if len(self.arms) < 2:
            raise UserError(f"ablation.arms has {len(self.arms)} of them: an ablation compares two arms or more")
        if self.reference not in self.arms:
            raise UserError(
                f"ablation.reference={self.reference!r} is no arm: {suggest_nearest(self.reference, self.arms)}"
            )
        if not self.tasks:
            raise UserError("ablation.tasks is empty: leave it out, or name a set of overrides for each task")
        for name in self.metrics:
            split, slash, metric = name.partition("/")
            if not (slash and split and metric) or any(map(str.isspace, name)):
                raise UserError(
                    f"ablation: metric {name!r} is not written as split/name: say for example 'validation/loss'"
                )
        self._check_tuning_grid()
        self._check_owners()
        self._check_predictions()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that the study reads, each once: those that decide, the training loss and those plotted."""
        return tuple(dict.fromkeys((self.selection_metric, self.reported_metric, "train/loss", *self.plotted_metrics)))

    @property
    def curves(self) -> tuple[str, ...]:
        """The metrics whose curves over training are kept."""
        return tuple(dict.fromkeys((self.selection_metric, "train/loss", *self.plotted_metrics)))

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of the tuned values, the last key fastest; one empty one if nothing is tuned."""
        for values in itertools.product(*self.tuning_grid.values()):
            yield dict(zip(self.tuning_grid, values, strict=True))

    def keys_by_owner(self) -> list[tuple[str, Collection[str]]]:
        """Return the config keys that the study sets, each group with a name of who sets it: an arm, a task ..."""
        owners = (*_label_overrides("arm", self.arms), *_label_overrides("task", self.tasks))
        return [("ablation.seeds", ("seed",)), ("tuning_grid", self.tuning_grid), *owners]

    def _check_tuning_grid(self) -> None:
        for key, values in self.tuning_grid.items():
            if not values:
                raise UserError(f"ablation.tuning_grid[{key!r}] is empty: give the values to try, or leave the key out")
            for value in values:
                # 1 and True are one to ==, but not to a config.
                if sum(type(value) is type(candidate) and value == candidate for candidate in values) > 1:
                    raise UserError(f"ablation.tuning_grid[{key!r}] has {value!r} twice: every value is tried once")

    def _check_predictions(self) -> None:
        predicted: set[tuple[str, str | None, str | None]] = set()
        for number, prediction in enumerate(self.predictions):
            path = f"ablation.predictions[{number}]"
            if prediction.arm not in self.arms:
                raise UserError(
                    f"{path}.arm={prediction.arm!r} is no arm: {suggest_nearest(prediction.arm, self.arms)}"
                )
            if prediction.arm == self.reference:
                raise UserError(f"{path}.arm={prediction.arm!r} is the reference, which differs from itself in nothing")
            for key, task in (("task", prediction.task), ("more_than_on", prediction.more_than_on)):
                if task is not None and task not in self.tasks:
                    raise UserError(f"{path}.{key}={task!r} is no task: {suggest_nearest(task, self.tasks)}")
            similar = prediction.direction is PredictedDirection.SIMILAR
            if similar and prediction.at_most is None and self.smallest_effect_of_interest is None:
                raise UserError(f"{path} says similar and not how much: give at_most or smallest_effect_of_interest")
            subject = (prediction.arm, prediction.task, prediction.more_than_on)
            if subject in predicted:
                raise UserError(
                    f"{path} is the second prediction of arm {prediction.arm!r} for one task: let one say it"
                )
            predicted.add(subject)

    def _check_owners(self) -> None:
        """Check that each key is set by only one of the seeds, the tuned values, an arm or a task."""
        arms, tasks = _label_overrides("arm", self.arms), _label_overrides("task", self.tasks)
        for owner, keys in (*arms, *tasks, ("tuning_grid", self.tuning_grid)):
            for key in keys:
                if key == "seed":
                    raise UserError(f"{owner} sets seed: every arm is trained with all of ablation.seeds={self.seeds}")
        for owner, keys in (*arms, *tasks):
            for key, other_key in _overlapping_keys(keys, self.tuning_grid):
                raise UserError(
                    f"{owner} sets {key} and tuning_grid tries values of {other_key}: let one of them say it"
                )
        for (arm, keys), (task, task_keys) in itertools.product(arms, tasks):
            for key, other_key in _overlapping_keys(keys, task_keys):
                raise UserError(f"{arm} sets {key} and {task} sets {other_key}: let one of them say it")


def build_ablation(**values: Any) -> Ablation:
    """Build an `Ablation` from plain values; config files call it as `ablation(...)` in `get_ablation`.

    Args:
        **values: The fields of `Ablation`. Lists may stand for tuples, dicts for depth sweeps, ConfigDicts for dicts,
            and the value of an enum for its member.

    Returns:
        The ablation.

    Raises:
        UserError: If a field is unknown, missing or invalid.

    Example:
        ```python
        from transformer.studies.ablations.ablation import build_ablation

        def get_ablation(ablation):
            return ablation(
                question="Does pre-norm train better than post-norm?",
                arms={"pre": {"model.norm_placement": "pre"}, "post": {"model.norm_placement": "post"}},
                reference="post",
            )

        get_ablation(build_ablation).reference  # "post"
        ```
    """
    plain = {name: _to_plain(value) for name, value in values.items()}
    for number, prediction in enumerate(_get_sequence(plain, "predictions")):
        if not isinstance(prediction, Mapping | Prediction):
            raise UserError(
                f"ablation.predictions[{number}]={prediction!r} must be a dict, such as "
                "{'arm': 'pre', 'direction': 'better', 'task': 'phrases', 'at_least': 0.1}"
            )
    for name in ("arms", "tasks"):
        for key, overrides in _get_mapping(plain, name).items():
            if not isinstance(key, str) or not isinstance(overrides, Mapping):
                raise UserError(f"ablation.{name}[{key!r}]={overrides!r} must be a dict of overrides by dotted key")
    for key, candidates in _get_mapping(plain, "tuning_grid").items():
        if not isinstance(candidates, (list, tuple)):
            raise UserError(f"ablation.tuning_grid[{key!r}]={candidates!r} must be a tuple of the values to try")
        plain["tuning_grid"] = {**plain["tuning_grid"], key: tuple(candidates)}
    stacks = _get_mapping(plain, "initial_gradients")
    if stacks:
        plain["initial_gradients"] = {name: _parse_depth_sweep(name, stack) for name, stack in stacks.items()}
    return from_config(Ablation, plain, "ablation")


def replace_seeds(spec: Ablation, text: str) -> Ablation:
    """Replace the seeds of a study by those of a flag, such as "1,2,3".

    Raises:
        UserError: If the text is not a list of whole numbers, or a seed is missing or repeated.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UserError(f"--seeds={text!r} lacks a seed: write whole numbers, as --seeds=1,2,3")
    try:
        seeds = tuple(int(word) for word in words)
    except ValueError:
        raise UserError(f"--seeds={text!r} is no list of whole numbers: write them as --seeds=1,2,3") from None
    return dataclasses.replace(spec, seeds=seeds)


def _overlapping_keys(keys: Iterable[str], other_keys: Collection[str]) -> Iterator[tuple[str, str]]:
    return ((key, other_key) for key in keys for other_key in other_keys if config_keys_overlap(key, other_key))


def _label_overrides(kind: str, groups: Mapping[str, Overrides]) -> list[tuple[str, Overrides]]:
    return [(f"{kind} {name!r}", overrides) for name, overrides in groups.items()]


def _get_mapping(values: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
    mapping = values.get(name, {})
    if not isinstance(mapping, Mapping):
        raise UserError(f"ablation.{name}={mapping!r} must be a dict")
    return mapping


def _get_sequence(values: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    sequence = values.get(name, ())
    if not isinstance(sequence, tuple):
        raise UserError(f"ablation.{name}={sequence!r} must be a list")
    return sequence


def _parse_depth_sweep(name: Any, values: Any) -> DepthSweep:
    path = f"ablation.initial_gradients[{name!r}]"
    if not isinstance(values, Mapping):
        raise UserError(f"{path}={values!r} must be a dict with depths and depth_keys")
    try:
        return from_config(DepthSweep, values, "stack")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _to_plain(value: Any) -> Any:
    """Convert every ConfigDict in a value to a dict, and lists to tuples."""
    if isinstance(value, ConfigDict):
        return _to_plain(value.to_dict())
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_to_plain(item) for item in value)
    return value
