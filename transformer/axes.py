"""Axes: the letters in array names, the logical axes of parameters, and the rules that place them on a mesh.

Shape letters, used in names such as `weights_BxHxQxK` and in jaxtyping: B batch, R row (example x beam),
Q query length, K key length, S source length, T target length, H heads, D head depth, E model width,
F feed-forward width, L layers, V vocabulary, G key and value heads.
"""

from collections.abc import Mapping

from jax.sharding import PartitionSpec

LOGICAL_AXES = frozenset(
    {"batch", "embed", "features", "feed_forward", "head_depth", "heads", "layers", "positions", "vocabulary"}
)

# Where each logical axis lies: the name of a mesh axis, or None for "whole on every device".
Rules = Mapping[str, str | None]

# Data parallel: the batch is divided, every parameter is whole on every device.
DATA_PARALLEL: Rules = {name: "data" if name == "batch" else None for name in sorted(LOGICAL_AXES)}


def resolve(axes: tuple[str | None, ...], rules: Rules) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions carry the logical names `axes`.

    Errors: ValueError for a name that is no logical axis or has no rule (JAX itself would silently
    replicate it), and for two dimensions that land on one mesh axis.
    """
    for name in axes:
        if name is not None and (name not in LOGICAL_AXES or name not in rules):
            raise ValueError(f"logical axis {name!r} in {axes} has no rule; known axes: {sorted(LOGICAL_AXES)}")
    placed = [None if name is None else rules[name] for name in axes]
    used = [name for name in placed if name is not None]
    if len(set(used)) != len(used):
        raise ValueError(f"the rules put two dimensions of {axes} on one mesh axis: {placed}")
    return PartitionSpec(*placed)
