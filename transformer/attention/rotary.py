"""Rotary positions: frequencies, how longer contexts scale them, and the rotation of features."""

import dataclasses
import enum
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.attention.argument_checks import check_positive


class RotaryScalingKind(enum.Enum):
    """How rotary frequencies f_i = base^(-2i / D) change for contexts longer than those of pre-training.

    With factor s, the context L of pre-training and the wavelength w_i = 2 pi / f_i:

    Attributes:
        NONE: Not at all.
        LINEAR: f_i / s: positions are interpolated (Chen et al. 2023, equation 4).
        DYNAMIC: For a text of n > L positions, the base becomes base (s n / L - s + 1)^(D / (D - 2)): the NTK-aware
            rule, as transformers has it.
        LLAMA3: f_i / s where w_i is above L / `low_frequency_factor`, f_i where it is below L /
            `high_frequency_factor`, and between them a mixture that is linear in L / w_i (Llama 3.1's code).
        YARN: f_i / s where a feature turns fewer than `beta_slow` times in L positions, f_i where more than
            `beta_fast` times, between them a mixture that is linear in i; queries and keys are multiplied by
            `attention_factor` (Peng et al. 2023, section 3.4).
        LONGROPE: f_i / `short_factors`_i in texts of up to L positions, f_i / `long_factors`_i in longer ones; queries
            and keys are multiplied by `attention_factor` (Ding et al. 2024, section 3.3).
    """

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies of a short text differ from those of a long one."""
        return self in (RotaryScalingKind.DYNAMIC, RotaryScalingKind.LONGROPE)


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """The scaling of rotary frequencies; each field is read by the kinds that name it.

    Attributes:
        kind: How the frequencies change.
        factor: s, how much longer the context is than that of pre-training.
        original_max_length: L, the positions of pre-training.
        low_frequency_factor: L over the shortest wavelength that LLAMA3 divides by s.
        high_frequency_factor: L over the longest wavelength that LLAMA3 keeps.
        beta_fast: YARN keeps what turns more often in L positions.
        beta_slow: YARN divides by s what turns less often.
        truncate: Whether YARN's two bounds are whole features.
        attention_factor: Factor on queries and keys; None means 0.1 ln(s) + 1 for YARN and, for LONGROPE,
            sqrt(1 + ln(s) / ln(L)).
        short_factors: LONGROPE's divisor of each frequency in texts of up to L positions.
        long_factors: The same in longer texts.

    Raises:
        ValueError: If a number is out of range, or if a kind lacks a field that it reads.
    """

    kind: RotaryScalingKind = RotaryScalingKind.NONE
    factor: float = 1.0
    original_max_length: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("factor", "low_frequency_factor", "high_frequency_factor", "beta_fast", "beta_slow"):
            check_positive(name, getattr(self, name))
        for name in ("attention_factor", "short_factors", "long_factors"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.kind not in (RotaryScalingKind.NONE, RotaryScalingKind.LINEAR) and self.original_max_length < 2:
            raise ValueError(
                f"original_max_length={self.original_max_length} must be 2 or more for kind={self.kind.value}: say how "
                "many positions pre-training had"
            )
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor={self.high_frequency_factor} must be above low_frequency_factor="
                f"{self.low_frequency_factor}"
            )

    def check_features(self, width: int) -> None:
        """Check that LONGROPE has a divisor for each frequency of so many rotating features, and DYNAMIC two of them.

        Raises:
            ValueError: If it has not.
        """
        if self.kind is RotaryScalingKind.DYNAMIC and width < 4:
            raise ValueError(f"kind=dynamic needs 4 or more features that rotate, not {width}")
        if self.kind is not RotaryScalingKind.LONGROPE:
            return
        for name in ("short_factors", "long_factors"):
            if len(getattr(self, name)) != width // 2:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} numbers; {width} features that rotate need {width // 2}"
                )

    @property
    def magnitude(self) -> float:
        """The factor on rotated queries and keys."""
        match self.kind:
            case RotaryScalingKind.YARN:
                usual = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
            case RotaryScalingKind.LONGROPE:
                long = self.factor > 1
                usual = math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_length)) if long else 1.0
            case _:
                return 1.0
        return usual if self.attention_factor is None else self.attention_factor

    def scaled_frequencies(
        self, width: int, base: float, length: Int[Array, ""] | int
    ) -> Float[np.ndarray, " F"] | Float[Array, " F"]:
        """Compute the frequencies.

        Args:
            width: D, the number of features that rotate.
            base: Base of the frequencies.
            length: n, one more than the greatest position.

        Returns:
            The D / 2 frequencies, in float64 on the host unless they depend on the length.
        """
        # In float64 on the host: float32 powers would shift the slowest waves.
        exponents = np.arange(0, width, 2) / width
        frequencies = base**-exponents
        match self.kind:
            case RotaryScalingKind.NONE:
                return frequencies
            case RotaryScalingKind.LINEAR:
                return frequencies / self.factor
            case RotaryScalingKind.DYNAMIC:
                longer = jnp.maximum(length, self.original_max_length) / self.original_max_length
                return (base * (self.factor * longer - self.factor + 1) ** (width / (width - 2))) ** -exponents
            case RotaryScalingKind.LLAMA3:
                turns = self.original_max_length * frequencies / (2 * math.pi)
                low, high = self.low_frequency_factor, self.high_frequency_factor
                unscaled_share = np.clip((turns - low) / (high - low), 0, 1)
                return frequencies * (unscaled_share + (1 - unscaled_share) / self.factor)
            case RotaryScalingKind.YARN:
                first, last = (
                    width * math.log(self.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(base))
                    for turns in (self.beta_fast, self.beta_slow)
                )
                if self.truncate:
                    first, last = math.floor(first), math.ceil(last)
                first, last = max(first, 0), min(last, width - 1)
                last = last if last != first else last + 0.001  # as in the authors' code
                unscaled_share = 1 - np.clip((np.arange(width // 2) - first) / (last - first), 0, 1)
                return frequencies * (unscaled_share + (1 - unscaled_share) / self.factor)
            case RotaryScalingKind.LONGROPE:
                short, long = (frequencies / np.asarray(factors) for factors in (self.short_factors, self.long_factors))
                return jnp.where(length > self.original_max_length, long, short)


NO_SCALING = RotaryScaling()


def rotated_features(depth: int, fraction: float) -> int:
    """The number of features of a head that rotate, the first ones."""
    return round(depth * fraction)


def apply_rotary(
    x_BxNxHxD: Float[Array, "B N H D"],
    positions: Int[Array, "#B N"],
    *,
    base: float = 10000.0,
    halves: bool = False,
    fraction: float = 1.0,
    scaling: RotaryScaling = NO_SCALING,
    text_length: int | None = None,
) -> Float[Array, "B N H D"]:
    """Rotate each pair of features by its position times its frequency (Su et al. 2021, section 3.2.2, equation 15).

    (x_2i, x_2i+1) -> R(p base^(-2i / D)) (x_2i, x_2i+1). The product of a rotated query and a rotated key depends on
    their positions only through the difference.

    Args:
        x_BxNxHxD: Queries or keys.
        positions: The position p of each.
        base: Base of the frequencies.
        halves: Whether to pair (x_i, x_(i + D/2)) instead of neighbors.
        fraction: The part of the features that rotate, the first ones; D above is then their number.
        scaling: How the frequencies are scaled for longer contexts.
        text_length: The positions of the whole text, on which some scalings depend; None means those given here.

    Returns:
        The rotated vectors, in the input's type.

    Raises:
        ValueError: If the number of features that rotate is odd.
    """
    width = rotated_features(x_BxNxHxD.shape[-1], fraction)
    if width % 2:
        part = "head depth" if fraction == 1 else f"fraction={fraction} of head depth {x_BxNxHxD.shape[-1]},"
        raise ValueError(f"{part} {width} is odd; rotary positions turn pairs of features")
    wide = jnp.promote_types(x_BxNxHxD.dtype, jnp.float32)
    reach = jnp.max(positions) + 1 if text_length is None and scaling.kind.depends_on_length else 0
    length = reach if text_length is None else text_length
    sines, cosines = (
        wave[:, :, None] for wave in waves(positions, scaling.scaled_frequencies(width, base, length), wide)
    )
    if (magnitude := scaling.magnitude) != 1:
        sines, cosines = magnitude * sines, magnitude * cosines
    x = x_BxNxHxD[..., :width].astype(wide)
    first, second = jnp.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    joined = jnp.concatenate(turned, axis=-1) if halves else jnp.stack(turned, axis=-1).reshape(x.shape)
    joined = joined.astype(x_BxNxHxD.dtype)
    return joined if width == x_BxNxHxD.shape[-1] else jnp.concatenate([joined, x_BxNxHxD[..., width:]], axis=-1)


def sinusoids(positions: Int[Array, "*shape"], width: int, base: float, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Compute the sines and cosines of p base^(-2i / width) for i from 0 to width / 2 - 1.

    Args:
        positions: Positions p.
        width: Twice the number of frequencies.
        base: Base of the frequencies.
        dtype: Type of the result.

    Returns:
        The sines and the cosines, [*shape, width / 2] each.
    """
    return waves(positions, NO_SCALING.scaled_frequencies(width, base, 0), dtype)


def waves(
    positions: Int[Array, "*shape"], frequencies: Float[np.ndarray, " F"] | Float[Array, " F"], dtype: jnp.dtype
) -> tuple[Float[Array, "*shape F"], Float[Array, "*shape F"]]:
    """Compute the sines and cosines of each position times each frequency, in `dtype`."""
    broadcast_frequencies = jax.lax.broadcast_to_rank(jnp.asarray(frequencies, dtype), positions.ndim + 1)
    angles = positions[..., None].astype(dtype) * broadcast_frequencies
    return jnp.sin(angles), jnp.cos(angles)
