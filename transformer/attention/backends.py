"""Which program computes which attention: what each takes, and the choice among them.

A combination is score x normaliser x re-weighting x position x facts of the mask (a bias, and dropout). What each
backend takes is declared once, in `BACKENDS`; the choice, the errors and the published table are read from there.
"""

import dataclasses
import itertools
import logging
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.division import Division
from transformer.attention.masks import FACTS, NEEDS, Mask, lacking
from transformer.attention.normalisers import SAMPLERS, Normaliser, Reweighting
from transformer.attention.parameters import PRODUCTS, Score, unrelated
from transformer.attention.positions import BIASES, ROTARIES, Position
from transformer.attention.spec import AttentionSpec, Backend
from transformer.axes import DividedAttention

_logger = logging.getLogger(__name__)

# A dense map of this size and less is faster whole than in blocks, on CPU as on accelerators.
DENSE_LOGITS = 2**25


@dataclasses.dataclass(frozen=True)
class Combination:
    """What is asked of a backend, whatever the arrays. `facts`: of the mask, "bias", and "dropout" of the weights."""

    score: Score = Score.SCALED_DOT
    normaliser: Normaliser = Normaliser.SOFTMAX
    reweighting: Reweighting = Reweighting.NONE
    position: Position = Position.NONE
    facts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: AttentionSpec, mask: Mask, *, bias: bool, train: bool = False) -> "Combination":
        """The combination of a call; weights are dropped in training alone."""
        beside = {"bias": bias, "dropout": train and spec.dropout > 0}
        facts = mask.facts() | {name for name, present in beside.items() if present}
        return cls(spec.score, spec.normaliser, spec.reweighting, spec.position, facts)

    def __str__(self) -> str:
        named = [f"score={self.score.value}", f"normaliser={self.normaliser.value}"]
        if self.reweighting is not Reweighting.NONE:
            named.append(f"reweighting={self.reweighting.value}")
        named.append(f"position={self.position.value}")
        return " x ".join([*named, "mask=" + ("+".join(sorted(self.facts)) or "none")])


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """What a backend's limits depend on beside the combination: the sizes are those that one device computes.

    `devices`: those that the program may span without a placement that says how. `crosses`: how the keys of other
    devices are reached, where positions are divided.
    """

    platform: str
    dtype: str
    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    devices: int = 1
    crosses: DividedAttention | None = None


@dataclasses.dataclass(frozen=True)
class Takes:
    """All that a backend takes: the combination must lie within every set."""

    scores: frozenset[Score]
    normalisers: frozenset[Normaliser]
    reweightings: frozenset[Reweighting]
    positions: frozenset[Position]
    facts: frozenset[str]


# Facts of a call that are none of its mask's.
BESIDE_THE_MASK = ("bias", "dropout")
_EVERY_FACT = frozenset({*FACTS, *BESIDE_THE_MASK})
# No program but einsum has the weights themselves, which are what is dropped.
_WHOLE_WEIGHTS = _EVERY_FACT - {"dropout"}
_SOFTMAX = frozenset({Normaliser.SOFTMAX})
_PLAIN = frozenset({Reweighting.NONE})
_TURNED = frozenset({Position.NONE}) | ROTARIES

# In order of preference where several would do and none is named.
BACKENDS: dict[Backend, Takes] = {
    Backend.CUDNN: Takes(
        PRODUCTS, _SOFTMAX, _PLAIN, _TURNED, frozenset({"causal", "window", "query_lengths", "key_lengths"})
    ),
    Backend.SPLASH: Takes(
        PRODUCTS, _SOFTMAX, _PLAIN, _TURNED, frozenset({"causal", "window", "query_lengths", "key_lengths", "segments"})
    ),
    Backend.EINSUM: Takes(
        frozenset(Score), frozenset(Normaliser), frozenset(Reweighting), frozenset(Position), _EVERY_FACT
    ),
    Backend.BLOCKWISE: Takes(PRODUCTS, _SOFTMAX, _PLAIN, _TURNED | BIASES, _WHOLE_WEIGHTS),
    Backend.XLA: Takes(PRODUCTS, _SOFTMAX, _PLAIN, _TURNED | BIASES, _WHOLE_WEIGHTS),
}


def meaningless(combination: Combination) -> str | None:
    """Why no program could compute this combination; None when it means something."""
    score, position, facts = combination.score, combination.position, combination.facts
    why = unrelated(score, position)
    if why is not None:
        return why
    if combination.reweighting is Reweighting.GAUSSIAN:
        if combination.normaliser in SAMPLERS:
            return f"reweighting=gaussian weighs keys, of which normaliser={combination.normaliser.value} leaves one"
        if not {"window", "centre"} <= facts:
            return "reweighting=gaussian needs mask.window and mask.centre (masks.local_predictive)"
    return lacking(facts)


def nearest_meaning(combination: Combination) -> Combination:
    """The combination that means something with the fewest parts changed."""
    needed = {NEEDS[fact] for fact in combination.facts & NEEDS.keys()}
    repairs: tuple[dict[str, Any], ...] = (
        {"position": Position.NONE},
        {"reweighting": Reweighting.NONE},
        {"facts": combination.facts | needed},
    )
    for count in range(len(repairs) + 1):
        for chosen in itertools.combinations(repairs, count):
            changed = combination
            for repair in chosen:
                changed = dataclasses.replace(changed, **repair)
            if meaningless(changed) is None:
                return changed
    raise AssertionError(f"{combination}: without position and re-weighting every combination has a meaning")


def unsupported(backend: Backend, combination: Combination) -> str | None:
    """What of the combination the backend does not take; None when it is exact for all of it."""
    nonsense = meaningless(combination)
    if nonsense is not None:
        return nonsense
    takes = BACKENDS[backend]
    missing = [
        f"{name}={value.value}"
        for name, value, known in (
            ("score", combination.score, takes.scores),
            ("normaliser", combination.normaliser, takes.normalisers),
            ("reweighting", combination.reweighting, takes.reweightings),
            ("position", combination.position, takes.positions),
        )
        if value not in known
    ]
    missing += [fact if fact in BESIDE_THE_MASK else f"mask.{fact}" for fact in sorted(combination.facts - takes.facts)]
    if not missing and _window_alone(backend, combination):
        missing.append("mask.window without mask.causal")
    return f"backend={backend.value} does not take {', '.join(missing)}" if missing else None


def _window_alone(backend: Backend, combination: Combination) -> bool:
    """Whether this is the one pair of facts of which cuDNN takes the first with the second alone."""
    return backend is Backend.CUDNN and "window" in combination.facts and "causal" not in combination.facts


def interpreted(backend: Backend, at: Circumstances) -> bool:
    """Whether the kernel is run without its machine: right, slow, for tests alone."""
    return backend is Backend.SPLASH and at.platform != "tpu"


def unfit(backend: Backend, at: Circumstances) -> str | None:
    """Which limit of the backend the arrays or the machine exceed; None when it runs there."""
    if at.crosses is DividedAttention.RING and backend is not Backend.BLOCKWISE:
        return f"backend={backend.value} does not take positions divided with attention=ring"
    if at.crosses is not None and backend is Backend.CUDNN:
        return "backend=cudnn does not take divided positions"
    match backend:
        case Backend.EINSUM | Backend.BLOCKWISE:
            return None
        case Backend.XLA:
            if at.dtype == "float64":
                return "backend=xla computes in float32, not float64"
        case Backend.CUDNN:
            if at.platform not in ("gpu", "cuda"):
                return f"backend=cudnn needs an NVIDIA GPU; the platform is {at.platform}"
            if at.dtype not in ("bfloat16", "float16"):
                return f"backend=cudnn takes bfloat16 and float16, not {at.dtype}"
            if at.depth % 8 or at.depth > 128:
                return f"backend=cudnn takes head depths to 128 that are multiples of 8, not {at.depth}"
        case Backend.SPLASH:
            if at.dtype not in ("bfloat16", "float32"):
                return f"backend=splash takes bfloat16 and float32, not {at.dtype}"
            if at.queries % 128 or at.keys % 128:
                return f"backend=splash takes lengths that are multiples of 128, not {at.queries} and {at.keys}"
    if backend is not Backend.SPLASH and at.depth != at.value_depth:
        return f"backend={backend.value} takes values of the keys' depth, {at.depth}, not {at.value_depth}"
    return None


def choose(spec: AttentionSpec, combination: Combination, at: Circumstances) -> Backend:
    """The backend that the spec names, or for auto the fastest that is exact for the request.

    Auto takes the platform's own kernel where it runs (splash only where each device is known to run its own: it does
    not divide itself over a mesh), else the dense map where that is small, else blocks. A ring runs in blocks.

    Errors: ValueError that names what the backend does not take and the nearest request that it would.
    """
    nonsense = meaningless(combination)
    if nonsense is not None:
        raise ValueError(f"{combination} has no meaning: {nonsense}; nearest: {nearest_meaning(combination)}")
    if at.crosses is DividedAttention.RING:
        why = unsupported(Backend.BLOCKWISE, combination)
        if why is not None:
            raise ValueError(
                f"{combination}: positions are divided with attention=ring, which runs in blocks, and {why}; "
                "attention=gather computes it as it stands"
            )
    if spec.backend is not Backend.AUTO:
        why = unsupported(spec.backend, combination) or unfit(spec.backend, at)
        if why is not None:
            able = [other.value for other in BACKENDS if not (unsupported(other, combination) or unfit(other, at))]
            raise ValueError(f"{combination}: {why}; {_nearest(spec.backend, combination, able)}")
        return spec.backend
    small = at.batch * at.heads * at.queries * at.keys <= DENSE_LOGITS
    for backend in BACKENDS:
        if unsupported(backend, combination) or unfit(backend, at):
            continue
        if interpreted(backend, at) or (backend is Backend.SPLASH and at.devices > 1):
            continue
        if backend is Backend.EINSUM and not small and not unsupported(Backend.BLOCKWISE, combination):
            continue
        return backend
    raise AssertionError(f"{combination}: einsum takes every combination that has a meaning")


def _nearest(backend: Backend, combination: Combination, able: list[str]) -> str:
    """What would be right: the same with as little changed as possible on this backend, or another backend."""
    changed = nearest(backend, combination)
    others = f"backend={' or '.join(able)} computes it as it stands"
    return f"{others}; nearest here: {changed}" if changed is not None and changed != combination else others


def nearest(backend: Backend, combination: Combination) -> Combination | None:
    """The combination that the backend takes with the fewest parts changed."""
    takes = BACKENDS[backend]
    changed = dataclasses.replace(
        combination,
        score=combination.score if combination.score in takes.scores else Score.SCALED_DOT,
        normaliser=combination.normaliser if combination.normaliser in takes.normalisers else Normaliser.SOFTMAX,
        reweighting=combination.reweighting if combination.reweighting in takes.reweightings else Reweighting.NONE,
        position=combination.position if combination.position in takes.positions else Position.NONE,
        facts=combination.facts & takes.facts,
    )
    if _window_alone(backend, changed):
        changed = dataclasses.replace(changed, facts=changed.facts - {"window"})
    return changed if unsupported(backend, changed) is None else None


def circumstances(q: jax.Array, k: jax.Array, v: jax.Array, division: Division | None = None) -> Circumstances:
    """Those of a call: the platform that is compiled for, which a mesh in context may name, else the one here."""
    batch, heads, length = (1 if division is None else division.parts(name) for name in ("batch", "heads", "length"))
    crosses = None if division is None else division.crosses
    dtype = jnp.result_type(q, k, v)
    mesh = jax.sharding.get_abstract_mesh()
    target = mesh.abstract_device
    return Circumstances(
        platform=jax.default_backend() if target is None else target.platform,
        dtype=dtype.name,
        batch=q.shape[0] // batch,
        heads=q.shape[2] // heads,
        queries=q.shape[1] // length,
        keys=k.shape[1] // (length if crosses is DividedAttention.RING else 1),
        depth=q.shape[3],
        value_depth=v.shape[3],
        devices=1 if division is not None else jax.device_count() if mesh.empty else mesh.size,
        crosses=crosses,
    )


def log_choice(backend: Backend, combination: Combination, at: Circumstances) -> None:
    """Say which backend a traced attention got; once a trace, never while it runs."""
    _logger.info(
        "attention: backend=%s for %s, %s [B %d, H %d, Q %d, K %d, D %d] on %s",
        *(backend.value, combination, at.dtype, at.batch, at.heads, at.queries, at.keys, at.depth, at.platform),
    )
