"""The configuration of attention: a choice of score, normalizer, reweighting, position scheme and backend."""

import dataclasses
import enum
from typing import NamedTuple

import jax

from transformer.attention.argument_checks import check_function, check_member, check_positive
from transformer.attention.inverted_dropout import check_dropout_rate
from transformer.attention.logit_modification import LogitModification
from transformer.attention.normalizers import Normalizer, Reweighting
from transformer.attention.positions import SCHEMES, AttentionPosition, PositionScheme
from transformer.attention.pytree_dataclass import is_pytree
from transformer.attention.scores import (
    DEFAULT_SCORE,
    ScoreFunction,
    ScoreKind,
    check_score_kind,
    score_class,
    score_name,
)


class AttentionParameters(NamedTuple):
    """The trained parameters of attention; None for a component that has none.

    Attributes:
        score: The score function with its parameters.
        position: The position scheme with its parameters.
        sinks_H: [H]. The logit of each head's sink, a key without a value that every query sees, for softmax alone:
            w_k = exp(s_k) / (exp(sink) + sum_j exp(s_j)), so that a head may look at nothing (OpenAI 2025, gpt-oss
            model card, section 2.2). A sink of 0 adds one to the denominator.
        logit_modification: A function of the scaled logits that has arrays, such as a `jax.tree_util.Partial`, in place
            of the spec's.
    """

    score: ScoreFunction | None = None
    position: PositionScheme | None = None
    sinks_H: jax.Array | None = None
    logit_modification: LogitModification | None = None


class Backend(enum.Enum):
    """The program that computes attention.

    Attributes:
        AUTO: The fastest of the others that is exact for the call.
        EINSUM: The reference, with all weights in memory.
        BLOCKWISE: Memory linear in the length, on any platform.
        XLA: `jax.nn.dot_product_attention` by XLA.
        CUDNN: `jax.nn.dot_product_attention` by cuDNN.
        SPLASH: JAX's splash attention kernel for TPUs.
    """

    AUTO = "auto"
    EINSUM = "einsum"
    BLOCKWISE = "blockwise"
    XLA = "xla"
    CUDNN = "cudnn"
    SPLASH = "splash"

    @classmethod
    def advise_on_unknown(cls, name: str) -> str:
        """Return which backends compute what another library calls `name`; "" for other names."""
        if "flash" in name.lower():
            return "flash attention is cudnn on NVIDIA GPUs and splash on TPUs, and auto chooses them there;"
        if name.lower() in ("sdpa", "triton", "pallas", "xformers", "memory_efficient", "mem_efficient"):
            return "auto chooses cudnn on NVIDIA GPUs and splash on TPUs where they are exact;"
        if name.lower() in ("eager", "math", "naive", "reference", "dense"):
            return "the reference with all weights in memory is einsum;"
        return ""


_CHOICES: dict[str, type[enum.Enum]] = {
    "normalizer": Normalizer,
    "reweighting": Reweighting,
    "position": AttentionPosition,
    "backend": Backend,
}


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """The configuration of attention: score x normalizer x reweighting x position x backend. Visibility is the mask's.

    Attributes:
        score: The score function: a member of `Score`, or a class of your own that derives from `ScoreFunction`.
        normalizer: How logits become weights.
        reweighting: What the weights are multiplied by after normalization.
        position: The position scheme inside attention.
        backend: The program that computes it.
        scale: Factor on the logits in place of 1 / sqrt(D), for scaled_dot only.
        temperature: Divides all logits: softmax(logits / temperature).
        logit_modification: A function of the scaled logits, such as `Softcap`; None changes nothing. One with arrays
            belongs to `AttentionParameters`.
        dropout: Probability of zeroing a weight in training; the others are scaled by 1 / (1 - dropout). It is applied
            after the normalizer and the reweighting (as in the published code of Vaswani et al. 2017 and Devlin et al.
            2019).

    Raises:
        TypeError: If a choice is not a member of its enum, such as a string, or if `logit_modification` is not a
            hashable function.
        ValueError: If `scale` or `temperature` is not finite and above 0, if `scale` is used without scaled_dot, or if
            `dropout` is not at least 0 and below 1.
    """

    score: ScoreKind = DEFAULT_SCORE
    normalizer: Normalizer = Normalizer.SOFTMAX
    reweighting: Reweighting = Reweighting.NONE
    position: AttentionPosition = AttentionPosition.NONE
    backend: Backend = Backend.AUTO
    scale: float | None = None
    temperature: float = 1.0
    logit_modification: LogitModification | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_score_kind("score", self.score)
        for name, choices in _CHOICES.items():
            check_member(name, getattr(self, name), choices)
        check_scale(self.scale, self.score)
        check_positive("temperature", self.temperature)
        check_logit_modification(self.logit_modification)
        if self.logit_modification is not None and is_pytree(self.logit_modification):
            raise TypeError(
                "logit_modification has arrays, which a spec cannot hold; "
                "give params=AttentionParameters(logit_modification=...)"
            )
        check_dropout_rate("dropout", self.dropout)


def incompatible_reason(kind: ScoreKind, position: AttentionPosition) -> str | None:
    """Say why this score cannot be combined with this position scheme; None if it can."""
    why = SCHEMES[position].incompatible_reason(score_class(kind))
    return None if why is None else f"position={position.value} {why.format(score_name(kind))}"


def check_logit_modification(modification: LogitModification | None, name: str = "logit_modification") -> None:
    """Check that a modification of the logits is a function, hashable or a pytree; None passes.

    Raises:
        TypeError: If it is not.
    """
    if modification is not None:
        check_function(name, modification, ("logits", "batch", "head", "query", "key"), "Softcap(50.0)")


def resolve_logit_modification(spec: AttentionSpec, params: AttentionParameters) -> LogitModification | None:
    """The modification of the logits, from the parameters where it has arrays, else from the spec.

    Raises:
        ValueError: If both have one.
    """
    if spec.logit_modification is not None and params.logit_modification is not None:
        raise ValueError(
            f"spec.logit_modification={spec.logit_modification} and params.logit_modification are two modifications of "
            "the same logits; give one function that does both"
        )
    return spec.logit_modification if params.logit_modification is None else params.logit_modification


def check_scale(scale: float | None, kind: ScoreKind) -> None:
    """Check that the score has a scale, and that it is finite and above 0; None passes.

    Raises:
        ValueError: If it is not; gives the scale and the score.
    """
    if scale is None:
        return
    check_positive("scale", scale)
    if not score_class(kind).takes_scale:
        raise ValueError(f"scale={scale} belongs to score=scaled_dot alone; score is {score_name(kind)}")
