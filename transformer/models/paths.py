"""The parameters of a model, or the leaves of any tree, by their paths."""

import fnmatch
from collections.abc import Callable, Iterable
from typing import Any

import jax

from transformer.models.contract import PyTree


def by_path(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """The leaves of a tree by their path, names joined with "/"; `is_leaf` as in `jax.tree`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path matches one of the patterns, those of fnmatch."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
