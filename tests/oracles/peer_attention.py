"""Attention as peers define it, in NumPy float64, one query and key at a time; and how a call is held against it.

A rule says whether query i of head h of example b sees key j, and what becomes of its scaled score: plain numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

Arrays = dict[str, Any]
Sees = Callable[[int, int, int, int], bool]
Logit = Callable[[float, int, int, int, int, Arrays], float]


class Rule(NamedTuple):
    """What a peer's call means: who sees whom, what a score becomes, the scale, and arrays that have a gradient.

    `sinks`: whether the array "sinks" has a logit for each head that takes part in the softmax, without a value.
    """

    sees: Sees = lambda b, h, i, j: True
    logit: Logit | None = None
    scale: float | None = None
    sinks: bool = False


def seen_keys(rule: Rule, arrays: Arrays) -> np.ndarray:
    """Which keys each query sees, `B H Q K`."""
    batch, queries, heads, _ = arrays["q"].shape
    shape = (batch, heads, queries, arrays["k"].shape[1])
    return np.array([rule.sees(*place) for place in np.ndindex(shape)]).reshape(shape)


def attention(rule: Rule, arrays: Arrays, visible: np.ndarray) -> np.ndarray:
    """The output, `B Q H D`; a query that sees nothing gets 0."""
    q, k, v = (arrays[name] for name in "qkv")
    serves = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, serves, axis=2) for x in (k, v))
    logits = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[3] ** -0.5 if rule.scale is None else rule.scale)
    if rule.logit is not None:
        changed = [rule.logit(float(logits[place]), *place, arrays) for place in np.ndindex(logits.shape)]
        logits = np.array(changed).reshape(logits.shape)
    powers = np.where(visible, np.exp(logits), 0)
    total = powers.sum(axis=-1)
    if rule.sinks:
        total = total + np.exp(arrays["sinks"])[:, None]
    return np.einsum("bhij,bjhd->bihd", powers / np.where(total > 0, total, 1)[..., None], v)


def check(call: Callable[[Arrays], jax.Array], rule: Rule, arrays: Arrays, seed: int = 0) -> None:
    """Hold the output of `call(arrays)` and its gradients against the rule and differences of its output."""
    random = np.random.default_rng(seed)
    output, pull_back = jax.vjp(call, jax.device_put(arrays))
    wide = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    visible = seen_keys(rule, wide)
    answer = attention(rule, wide, visible)
    np.testing.assert_allclose(np.asarray(output, np.float64), answer, rtol=0, atol=3e-6)
    cotangent = random.normal(size=answer.shape)
    (gradients,) = pull_back(jax.device_put(cotangent.astype(np.float32)))
    for name, x in wide.items():
        direction = random.normal(size=x.shape)
        ahead, behind = (attention(rule, wide | {name: x + step * direction}, visible) for step in (1e-5, -1e-5))
        slope = np.sum(cotangent * (ahead - behind)) / 2e-5
        gradient = np.asarray(gradients[name], np.float64)
        reach = 1 + np.sqrt(np.sum(gradient**2))
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=0, atol=2e-5 * reach, err_msg=name)


def random_arrays(
    batch: int, queries: int, keys: int, heads: int, groups: int, depth: int, value_depth: int, seed: int = 0
) -> Arrays:
    """Queries, keys and values of these sizes, in float32."""
    normal = np.random.default_rng(seed).normal
    shapes = {
        "q": (batch, queries, heads, depth),
        "k": (batch, keys, groups, depth),
        "v": (batch, keys, groups, value_depth),
    }
    return {name: normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
