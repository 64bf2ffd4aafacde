"""The choice of the attention backend: which combinations and sizes each backend supports.

A variant is score x normalizer x reweighting x position x mask features (a bias and dropout among them). What each
backend supports is declared once, in `BACKENDS`; the choice, the errors and the published table are read from it.
"""

import contextlib
import contextvars
import dataclasses
import itertools
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.attention.attention_spec import (
    AttentionParameters,
    AttentionSpec,
    Backend,
    incompatible_reason,
    resolve_logit_modification,
)
from transformer.attention.logit_modification import Softcap
from transformer.attention.masks import MASK_FIELDS, REQUIRED_FIELD, Mask, missing_field
from transformer.attention.normalizers import SAMPLING_NORMALIZERS, Normalizer, Reweighting
from transformer.attention.positions import SCHEMES, AttentionPosition
from transformer.attention.scores import SCORES, Score, ScoreKind, score_class, score_name
from transformer.attention.sharded_attention import AttentionSharding
from transformer.logical_axes import SequenceParallel, is_vmapped, target_device, target_platform

_logger = logging.getLogger(__name__)

# A dense map of this size and less is faster whole than in blocks, on CPU as on accelerators.
MAX_DENSE_LOGITS = 2**25


@dataclasses.dataclass(frozen=True)
class AttentionVariant:
    """The combination of attention features that a backend must support, whatever the arrays' sizes.

    Attributes:
        score: The score function.
        normalizer: The normalizer.
        reweighting: The reweighting.
        position: The position scheme.
        features: Names of the mask's fields that are set, and those of `NON_MASK_FEATURES` that are used.
    """

    score: ScoreKind = AttentionSpec.score
    normalizer: Normalizer = AttentionSpec.normalizer
    reweighting: Reweighting = AttentionSpec.reweighting
    position: AttentionPosition = AttentionSpec.position
    features: frozenset[str] = frozenset()

    @classmethod
    def from_call(
        cls,
        spec: AttentionSpec,
        mask: Mask,
        params: AttentionParameters,
        *,
        bias: bool,
        train: bool = False,
    ) -> "AttentionVariant":
        """The variant of a call to `attend`; dropout counts in training only."""
        modification = resolve_logit_modification(spec, params)
        softcap = isinstance(modification, Softcap)
        non_mask_features = {
            "bias": bias,
            "dropout": train and spec.dropout > 0,
            "softcap": softcap,
            "logit_modification": modification is not None and not softcap,
            "sinks": params.sinks_H is not None,
        }
        features = mask.present_fields() | {name for name, present in non_mask_features.items() if present}
        return cls(spec.score, spec.normalizer, spec.reweighting, spec.position, features)

    def __str__(self) -> str:
        parts = [f"score={score_name(self.score)}", f"normalizer={self.normalizer.value}"]
        if self.reweighting is not Reweighting.NONE:
            parts.append(f"reweighting={self.reweighting.value}")
        parts.append(f"position={self.position.value}")
        return " x ".join([*parts, "mask=" + ("+".join(sorted(self.features)) or "none")])


@dataclasses.dataclass(frozen=True)
class CallShape:
    """The sizes, dtype and platform on which a backend's limits depend. Sizes are those of one device.

    Attributes:
        platform: The platform that is compiled for, such as "cpu", "gpu" or "tpu".
        dtype: The common dtype of q, k and v.
        batch: Examples.
        heads: Query heads.
        queries: Number of queries.
        keys: Number of keys.
        depth: Features of a query head.
        value_depth: Features of a value head.
        num_devices: Devices that the compiler may spread the program over where no placement says how.
        sequence_parallel: How keys on other devices are reached where positions are sharded; None where they are not.
        vmapped: Whether the call is in vmapped training. Sizes are then those of one run.
    """

    platform: str
    dtype: str
    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    num_devices: int = 1
    sequence_parallel: SequenceParallel | None = None
    vmapped: bool = False

    @classmethod
    def from_arrays(
        cls, q: jax.Array, k: jax.Array, v: jax.Array, shards: AttentionSharding | None = None
    ) -> "CallShape":
        """The shape of a call, for the platform that is compiled for, which a mesh in context may set."""
        batch, heads, length = (
            1 if shards is None else shards.num_shards(name) for name in ("batch", "heads", "length")
        )
        crosses = None if shards is None else shards.sequence_parallel
        mesh = jax.sharding.get_abstract_mesh()
        return cls(
            platform=target_platform(),
            dtype=jnp.result_type(q, k, v).name,
            batch=q.shape[0] // batch,
            heads=q.shape[2] // heads,
            queries=q.shape[1] // length,
            keys=k.shape[1] // (length if crosses is SequenceParallel.RING else 1),
            depth=q.shape[3],
            value_depth=v.shape[3],
            num_devices=1 if shards is not None else jax.device_count() if mesh.empty else mesh.size,
            sequence_parallel=crosses,
            vmapped=is_vmapped(),
        )


@dataclasses.dataclass(frozen=True)
class BackendSupport:
    """Everything that a backend supports: each feature of a variant must be in the set of its kind.

    Attributes:
        scores: Score functions.
        normalizers: Normalizers.
        reweightings: Reweightings.
        positions: Position schemes.
        features: Fields of the mask, and those of `NON_MASK_FEATURES`.
    """

    scores: frozenset[Score]
    normalizers: frozenset[Normalizer]
    reweightings: frozenset[Reweighting]
    positions: frozenset[AttentionPosition]
    features: frozenset[str]

    def takes_score(self, score: ScoreKind) -> bool:
        """Whether the backend computes a score; of those of one's own, one that takes some takes all products."""
        return score in self.scores or (
            not isinstance(score, Score) and (score_class(score).is_product or self.scores == frozenset(Score))
        )


# Features of a call that are none of its mask's.
NON_MASK_FEATURES = ("bias", "dropout", "softcap", "logit_modification", "sinks")
_ALL_FEATURES = frozenset({*MASK_FIELDS, *NON_MASK_FEATURES})
# No program but einsum has the weights themselves, which are what is dropped.
_FEATURES_WITHOUT_DROPOUT = _ALL_FEATURES - {"dropout"}
_KERNEL_FEATURES = frozenset({"causal", "window", "query_lengths", "key_lengths"})
_SOFTMAX = frozenset({Normalizer.SOFTMAX})
_NO_REWEIGHTING = frozenset({Reweighting.NONE})
_PRODUCT_SCORES = frozenset(score for score, function in SCORES.items() if function.is_product)
# What turns queries and keys before a kernel sees them, and what a program in blocks can add to a block besides.
_BLOCKWISE_POSITIONS = frozenset(position for position, scheme in SCHEMES.items() if not scheme.uses_key_index)
_KERNEL_POSITIONS = frozenset(position for position in _BLOCKWISE_POSITIONS if not SCHEMES[position].adds_position_bias)

# In order of preference where several would do and none is named.
BACKENDS: dict[Backend, BackendSupport] = {
    Backend.CUDNN: BackendSupport(
        _PRODUCT_SCORES, _SOFTMAX, _NO_REWEIGHTING, _KERNEL_POSITIONS, _KERNEL_FEATURES | {"segments"}
    ),
    Backend.SPLASH: BackendSupport(
        _PRODUCT_SCORES, _SOFTMAX, _NO_REWEIGHTING, _KERNEL_POSITIONS, _KERNEL_FEATURES | {"segments", "softcap"}
    ),
    Backend.EINSUM: BackendSupport(
        frozenset(Score), frozenset(Normalizer), frozenset(Reweighting), frozenset(AttentionPosition), _ALL_FEATURES
    ),
    Backend.BLOCKWISE: BackendSupport(
        _PRODUCT_SCORES, _SOFTMAX, _NO_REWEIGHTING, _BLOCKWISE_POSITIONS, _FEATURES_WITHOUT_DROPOUT
    ),
    Backend.XLA: BackendSupport(
        _PRODUCT_SCORES,
        _SOFTMAX,
        _NO_REWEIGHTING,
        _BLOCKWISE_POSITIONS,
        _FEATURES_WITHOUT_DROPOUT - {"softcap", "logit_modification", "sinks"},
    ),
}


def invalid_reason(variant: AttentionVariant) -> str | None:
    """Say why no backend could compute this variant; None if it is valid."""
    score, position, features = variant.score, variant.position, variant.features
    why = incompatible_reason(score, position)
    if why is not None:
        return why
    if variant.reweighting is Reweighting.GAUSSIAN:
        if variant.normalizer in SAMPLING_NORMALIZERS:
            return f"reweighting=gaussian weighs keys, of which normalizer={variant.normalizer.value} leaves one"
        if not {"window", "center"} <= features:
            return "reweighting=gaussian needs mask.window and mask.center (masks.local_predictive)"
    if "sinks" in features and variant.normalizer is not Normalizer.SOFTMAX:
        return f"normalizer={variant.normalizer.value} has no sinks, which belong to normalizer=softmax"
    return missing_field(features)


def nearest_valid_variant(variant: AttentionVariant) -> AttentionVariant:
    """Find the valid variant with the fewest changes."""
    needed = {REQUIRED_FIELD[feature] for feature in variant.features & REQUIRED_FIELD.keys()}
    repairs: tuple[dict[str, Any], ...] = (
        {"position": AttentionPosition.NONE},
        {"reweighting": Reweighting.NONE},
        {"features": variant.features | needed},
        {"features": (variant.features | needed) - {"sinks"}},
    )
    for count in range(len(repairs) + 1):
        for subset in itertools.combinations(repairs, count):
            changed = variant
            for repair in subset:
                changed = dataclasses.replace(changed, **repair)
            if invalid_reason(changed) is None:
                return changed
    raise AssertionError(f"{variant}: without position and re-weighting every variant has a meaning")


def unsupported_reason(backend: Backend, variant: AttentionVariant) -> str | None:
    """Say which part of a variant a backend does not support; None if it computes the variant exactly."""
    nonsense = invalid_reason(variant)
    if nonsense is not None:
        return nonsense
    supported = BACKENDS[backend]
    missing = [] if supported.takes_score(variant.score) else [f"score={score_name(variant.score)}"]
    missing += [
        f"{name}={value.value}"
        for name, value, supported_values in (
            ("normalizer", variant.normalizer, supported.normalizers),
            ("reweighting", variant.reweighting, supported.reweightings),
            ("position", variant.position, supported.positions),
        )
        if value not in supported_values
    ]
    missing += [
        feature if feature in NON_MASK_FEATURES else f"mask.{feature}"
        for feature in sorted(variant.features - supported.features)
    ]
    if not missing and (excluded := _unsupported_window(backend, variant)):
        missing.append(excluded)
    return f"backend={backend.value} does not take {', '.join(missing)}" if missing else None


def _unsupported_window(backend: Backend, variant: AttentionVariant) -> str | None:
    """Say which window cuDNN does not take: one without causal."""
    if backend is not Backend.CUDNN or "window" not in variant.features or "causal" in variant.features:
        return None
    return "mask.window without mask.causal"


def uses_interpret_mode(backend: Backend, shape: CallShape) -> bool:
    """Whether the kernel is interpreted because its hardware is absent: exact but slow, for tests."""
    return backend is Backend.SPLASH and shape.platform != "tpu"


def limit_exceeded(backend: Backend, shape: CallShape, features: frozenset[str] = frozenset()) -> str | None:
    """Say which limit of a backend the arrays or the machine exceed; None if it runs.

    Args:
        backend: The backend.
        shape: The sizes, dtype and platform of the call.
        features: The variant's features, on which some limits depend.
    """
    if shape.sequence_parallel is SequenceParallel.RING and backend is not Backend.BLOCKWISE:
        return f"backend={backend.value} does not take positions divided with attention=ring"
    if shape.sequence_parallel is not None and backend is Backend.CUDNN:
        return "backend=cudnn does not take divided positions"
    match backend:
        case Backend.EINSUM | Backend.BLOCKWISE:
            return None
        case Backend.XLA:
            if shape.dtype == "float64":
                return "backend=xla computes in float32, not float64"
            if shape.dtype == "float16" and shape.platform == "cpu":
                return "backend=xla does not take float16 on a CPU, for which JAX cannot compile its products"
        case Backend.CUDNN:
            if shape.platform not in ("gpu", "cuda"):
                return f"backend=cudnn needs an NVIDIA GPU; the platform is {shape.platform}"
            if shape.dtype not in ("bfloat16", "float16"):
                return f"backend=cudnn takes bfloat16 and float16, not {shape.dtype}"
            if shape.depth % 8 or shape.depth > 128:
                return f"backend=cudnn takes head depths to 128 that are multiples of 8, not {shape.depth}"
            if "segments" in features and (why := _segments_limit_exceeded(shape)):
                return why
        case Backend.SPLASH:
            if shape.dtype not in ("bfloat16", "float32"):
                return f"backend=splash takes bfloat16 and float32, not {shape.dtype}"
            if shape.queries % 128 or shape.keys % 128:
                return f"backend=splash takes lengths that are multiples of 128, not {shape.queries} and {shape.keys}"
    if backend is not Backend.SPLASH and shape.depth != shape.value_depth:
        return f"backend={backend.value} takes values of the keys' depth, {shape.depth}, not {shape.value_depth}"
    return None


def _segments_limit_exceeded(shape: CallShape) -> str | None:
    """Say which limit of cuDNN's kernel for segments the arrays or the machine exceed."""
    if shape.queries != shape.keys:
        return f"backend=cudnn takes mask.segments of as many keys as queries, not {shape.queries} and {shape.keys}"
    if shape.vmapped:
        return "backend=cudnn does not take mask.segments in vmapped training"
    if _is_older_than_hopper(target_device()):
        return "backend=cudnn takes mask.segments on GPUs of compute capability 9.0 (Hopper) and later"
    return None


def _is_older_than_hopper(device: jax.Device) -> bool:
    return device.platform == "gpu" and float(getattr(device, "compute_capability", "9.0")) < 9


def choose_backend(spec: AttentionSpec, variant: AttentionVariant, shape: CallShape) -> Backend:
    """Choose the backend named in the spec, or for `auto` the fastest one that is exact for the call.

    `auto` takes the platform's own kernel where it runs (splash only where each device runs its own program, because it
    does not partition itself over a mesh), else einsum where the map is small, else blockwise. Ring attention is always
    blockwise.

    Args:
        spec: The spec, which may name a backend.
        variant: The features that the call uses.
        shape: The sizes, dtype and platform of the call.

    Returns:
        The backend, never `auto`.

    Raises:
        ValueError: If the variant is invalid, or if the named backend does not support it; says what is not supported
            and the nearest call that would be.
    """
    nonsense = invalid_reason(variant)
    if nonsense is not None:
        raise ValueError(f"{variant} has no meaning: {nonsense}; nearest: {nearest_valid_variant(variant)}")
    if shape.sequence_parallel is SequenceParallel.RING:
        why = unsupported_reason(Backend.BLOCKWISE, variant) or limit_exceeded(
            Backend.BLOCKWISE, shape, variant.features
        )
        if why is not None:
            raise ValueError(
                f"{variant}: positions are divided with attention=ring, which runs in blocks, and {why}; "
                "attention=gather computes it as it stands"
            )
    if spec.backend is not Backend.AUTO:
        why = unsupported_reason(spec.backend, variant) or limit_exceeded(spec.backend, shape, variant.features)
        if why is not None:
            able_backends = [
                alternative.value
                for alternative in BACKENDS
                if not (
                    unsupported_reason(alternative, variant) or limit_exceeded(alternative, shape, variant.features)
                )
            ]
            raise ValueError(f"{variant}: {why}; {_suggest_alternative(spec.backend, variant, able_backends)}")
        return spec.backend
    small = shape.batch * shape.heads * shape.queries * shape.keys <= MAX_DENSE_LOGITS
    for backend in BACKENDS:
        if unsupported_reason(backend, variant) or limit_exceeded(backend, shape, variant.features):
            continue
        if uses_interpret_mode(backend, shape) or (backend is Backend.SPLASH and shape.num_devices > 1):
            continue
        if backend is Backend.EINSUM and not small and not unsupported_reason(Backend.BLOCKWISE, variant):
            continue
        return backend
    raise AssertionError(f"{variant}: einsum takes every variant that has a meaning")


def _suggest_alternative(backend: Backend, variant: AttentionVariant, able_backends: list[str]) -> str:
    """Suggest the nearest variant that this backend supports, or another backend."""
    changed = nearest_supported_variant(backend, variant)
    alternatives = f"backend={' or '.join(able_backends)} computes it as it stands"
    return f"{alternatives}; nearest here: {changed}" if changed is not None and changed != variant else alternatives


def nearest_supported_variant(backend: Backend, variant: AttentionVariant) -> AttentionVariant | None:
    """Find the variant with the fewest changes that a backend supports; None if there is none."""
    supported = BACKENDS[backend]
    plain = AttentionVariant()
    changed = dataclasses.replace(
        variant,
        score=variant.score if supported.takes_score(variant.score) else plain.score,
        normalizer=variant.normalizer if variant.normalizer in supported.normalizers else plain.normalizer,
        reweighting=variant.reweighting if variant.reweighting in supported.reweightings else plain.reweighting,
        position=variant.position if variant.position in supported.positions else plain.position,
        features=variant.features & supported.features,
    )
    if _unsupported_window(backend, changed):
        changed = dataclasses.replace(changed, features=changed.features - {"window"})
    return changed if unsupported_reason(backend, changed) is None else None


class BackendChoice(NamedTuple):
    """The backend of one call to `attend`, with what it was chosen by."""

    backend: Backend
    variant: AttentionVariant
    shape: CallShape

    def reason_against(self, alternative: Backend) -> str | None:
        """Say why another backend does not compute the call; None if it could."""
        return unsupported_reason(alternative, self.variant) or limit_exceeded(
            alternative, self.shape, self.variant.features
        )


_recorded_choices: contextvars.ContextVar[list[BackendChoice] | None] = contextvars.ContextVar("backends", default=None)


@contextlib.contextmanager
def record_backend_choices() -> Iterator[list[BackendChoice]]:
    """Collect the choice of each call to `attend` that is traced inside the context."""
    choices: list[BackendChoice] = []
    token = _recorded_choices.set(choices)
    try:
        yield choices
    finally:
        _recorded_choices.reset(token)


def log_backend_choice(backend: Backend, variant: AttentionVariant, shape: CallShape) -> None:
    """Log and record which backend was chosen: once per trace, never at run time."""
    recorded = _recorded_choices.get()
    if recorded is not None:
        recorded.append(BackendChoice(backend, variant, shape))
    _logger.info(
        "attention: backend=%s for %s, %s [B %d, H %d, Q %d, K %d, D %d] on %s",
        *(
            backend.value,
            variant,
            shape.dtype,
            shape.batch,
            shape.heads,
            shape.queries,
            shape.keys,
            shape.depth,
            shape.platform,
        ),
    )
