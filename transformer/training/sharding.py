"""Where arrays lie: a mesh over all devices, the state by its logical axes, batches divided by rows."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.axes import DATA_PARALLEL, Rules, resolve
from transformer.models.contract import Model
from transformer.training.state import TrainState


def make_mesh(devices: int | None = None) -> Mesh:
    """A mesh with the one axis "data" over the first `devices` devices, or all."""
    chosen = jax.devices()[:devices]
    return jax.make_mesh((len(chosen),), ("data",), axis_types=(AxisType.Auto,), devices=chosen)


def state_shardings(model: Model, abstract: TrainState, mesh: Mesh, rules: Rules = DATA_PARALLEL) -> TrainState:
    """The sharding of every leaf of the state.

    Parameters lie as the rules say, and so do their averages and the optimiser's moments, which are dicts keyed by
    the parameter's path; all else is whole on every device.
    """
    axes = model.axes()
    params = jax.tree.map(lambda names: resolve(names, rules), axes.params, is_leaf=_is_names)
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): spec
        for path, spec in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_spec)
    }

    def of_dict_by_path(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", ""), PartitionSpec()))

    shardings = jax.tree_util.tree_map_with_path(of_dict_by_path, abstract)
    placed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), params, is_leaf=_is_spec)
    return shardings._replace(variables=shardings.variables._replace(params=placed))


def shard_batch(batch: Any, mesh: Mesh) -> Any:
    """Host arrays as global arrays whose rows are divided over the mesh."""
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return jax.tree.map(lambda array: jax.device_put(np.asarray(array), rows), batch)


def _is_names(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, PartitionSpec)
