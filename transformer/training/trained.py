"""Which parameters a run trains, by patterns of their paths, and which of them more slowly, by their height."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from transformer.config import UserError, nearest
from transformer.layers.lora import has_low_rank
from transformer.models.contract import Model
from transformer.models.paths import by_path, matches
from transformer.tasks.contract import Objective
from transformer.training.optimizer import OptimizerConfig

LAYERS = "layers"


def matching(paths: Collection[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match one of the patterns."""
    return [path for path in paths if matches(path, patterns)]


def check_patterns(config: OptimizerConfig, objective: Objective, paths: Collection[str]) -> None:
    """Refuse patterns that do nothing, and a run that trains what LoRA stands beside.

    Errors: UserError naming the key, the pattern and what the model has.
    """
    folders = sorted({*paths, *(f"{path.split('/')[0]}/*" for path in paths if "/" in path)})
    for name, patterns in (("trains", config.trains), ("frozen", config.frozen)):
        for pattern in patterns:
            if not matching(paths, [pattern]):
                near = nearest(pattern, folders)
                raise UserError(f"config.optimizer.{name}: {pattern!r} matches no parameter of this model; {near}")
    own = matching(paths, objective.trains)
    trained = [path for path in own if config.chooses(path)]
    if own and not trained:
        raise UserError(
            f"config.optimizer.trains={config.trains} without frozen={config.frozen} leaves the objective "
            f"{objective.name!r} nothing to train: it trains {', '.join(objective.trains)}"
        )
    for path in trained:
        if has_low_rank(path, paths):
            raise UserError(
                f"config.model.lora puts a low rank beside {path}, which this run trains itself: say "
                "config.optimizer.trains='*/lora/*' (and a new head's parameters), or config.model.lora.rank=0"
            )


def heights(model: Model, front: Sequence[str]) -> dict[str, np.ndarray]:
    """How many layers stand above each parameter, as an array that broadcasts against it.

    Of a stack of L blocks the l-th (l = 1, ..., L) has L - l above it. Parameters of `front`, before the first block,
    have L, those of the highest stack where there are several; all others, behind the last block, 0.

    Errors: UserError for a model without stacked layers.
    """
    shapes = {path: leaf.shape for path, leaf in by_path(model.functional.shapes()).items()}
    axes = by_path(model.functional.axes(), lambda leaf: isinstance(leaf, tuple))
    stacks: dict[str, list[str]] = {}
    for path in shapes:
        stacks.setdefault(path.split("/")[0], []).append(path)
    # A vector for each layer, that something else reads, is no stack of layers.
    stacks = {name: paths for name, paths in stacks.items() if all(axes[path][:1] == (LAYERS,) for path in paths)}
    if not stacks:
        raise UserError("config.optimizer.layer_decay needs a model of stacked layers, and this one has none: say 1")
    found: dict[str, np.ndarray] = {}
    for paths in stacks.values():
        # Blocks that are one entry of a stack together: all but the last have an axis of their own.
        inner = max((shapes[path][1] for path in paths if axes[path][1:2] == (LAYERS,)), default=0)
        for path in paths:
            numbers = np.arange(shapes[path][0]) * (inner + 1) + inner
            if axes[path][1:2] == (LAYERS,):
                numbers = numbers[:, None] - inner + np.arange(inner)
            above = shapes[path][0] * (inner + 1) - 1 - numbers
            found[path] = above.reshape(above.shape + (1,) * (len(shapes[path]) - above.ndim))
    highest = max(above.max() + 1 for above in found.values())
    first = set(matching(shapes, front))
    return {path: found.get(path, np.asarray(highest if path in first else 0)) for path in shapes}


def lines_of(config: OptimizerConfig, objective: Objective, sizes: Mapping[str, int]) -> list[str]:
    """What a run says of what it trains, where that is not all of it."""
    trained = [path for path in matching(sizes, objective.trains) if config.chooses(path)]
    if len(trained) == len(sizes):
        return []
    numbers, whole = sum(sizes[path] for path in trained), sum(sizes.values())
    return [f"{objective.name} trains {len(trained)} of {len(sizes)} parameters, {numbers:,} of {whole:,} numbers"]
