"""What kind of attention is computed: one choice from each family of variants, and the parameters of the choices."""

import dataclasses
import enum
from typing import NamedTuple

from transformer.attention.argument_checks import check_member, check_positive
from transformer.attention.normalizers import Normalizer, Reweighting
from transformer.attention.positions import SCHEMES, AttentionPosition, PositionScheme
from transformer.attention.rng import check_dropout_rate
from transformer.attention.scores import SCORES, Score, ScoreFunction


class AttentionParameters(NamedTuple):
    """The trained parts of an attention: of its score, and of its relative positions."""

    score: ScoreFunction | None = None
    position: PositionScheme | None = None


class Backend(enum.Enum):
    """The program that computes it.

    einsum: the reference, every weight in memory. blockwise: memory linear in the length, any platform. xla, cudnn:
    `jax.nn.dot_product_attention`. splash: JAX's kernel for TPUs. auto: the fastest of these that is exact for the
    request.
    """

    AUTO = "auto"
    EINSUM = "einsum"
    BLOCKWISE = "blockwise"
    XLA = "xla"
    CUDNN = "cudnn"
    SPLASH = "splash"


_CHOICES: dict[str, type[enum.Enum]] = {
    "score": Score,
    "normalizer": Normalizer,
    "reweighting": Reweighting,
    "position": AttentionPosition,
    "backend": Backend,
}


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Score x normalizer x re-weighting x position x backend; which keys are seen is the mask's to say.

    `scale` replaces 1 / sqrt(D) of scaled_dot. `temperature` divides all logits: softmax(logits / temperature).
    `dropout`: in training each weight is zeroed with this probability and scaled by 1 / (1 - dropout) otherwise, after
    the normalizer and the re-weighting (as in the published code of Vaswani et al. 2017 and Devlin et al. 2019).

    Raises:
        TypeError: For what is no member of its enum, such as a string.
        ValueError: For a scale or temperature that is not finite and above 0, a scale without scaled_dot, or a dropout
            that is not at least 0 and below 1.
    """

    score: Score = Score.SCALED_DOT
    normalizer: Normalizer = Normalizer.SOFTMAX
    reweighting: Reweighting = Reweighting.NONE
    position: AttentionPosition = AttentionPosition.NONE
    backend: Backend = Backend.AUTO
    scale: float | None = None
    temperature: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_member(name, getattr(self, name), choices)
        check_scale(self.scale, self.score)
        check_positive("temperature", self.temperature)
        check_dropout_rate("dropout", self.dropout)


def why_incompatible(kind: Score, position: AttentionPosition) -> str | None:
    """Why this score has no such positions; None when the two have a meaning together."""
    why = SCHEMES[position].why_incompatible(SCORES[kind])
    return None if why is None else f"position={position.value} {why.format(kind.value)}"


def check_scale(scale: float | None, kind: Score) -> None:
    """Refuse a scale of a score that has none, and one that is not finite and above 0.

    Raises:
        ValueError: That names the scale and the score.
    """
    if scale is None:
        return
    check_positive("scale", scale)
    if not SCORES[kind].scaled:
        raise ValueError(f"scale={scale} belongs to score=scaled_dot alone; score is {kind.value}")
