"""LoRA: a trained low-rank update of a frozen matrix (Hu et al. 2022, Low-Rank Adaptation, section 4.1)."""

import dataclasses
import enum
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.attention.component import normal
from transformer.config import Config, NonNegativeInt, PositiveFloat, UserError
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.linear import Linear, product

# The name beneath a projection of what is beside its kernel.
LORA_NAME = "lora"


class LoraTarget(enum.Enum):
    """A map of a block that gets a low-rank update: one of attention's four, or all of the feed-forward network's."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "output"
    FEED_FORWARD = "feed_forward"


@dataclasses.dataclass(frozen=True)
class LoraConfig(Config, path="config.model.lora"):
    """The low-rank updates of a stack of blocks.

    Attributes:
        rank: r; 0 means no LoRA, and the other fields are ignored.
        alpha: The update is multiplied by alpha / r.
        targets: Which maps have an update. For a given number of parameters, queries and values are the best choice (Hu
            et al. 2022, table 5).

    Raises:
        UserError: If `targets` is empty although `rank` is above 0, or if a number is out of range.
    """

    rank: NonNegativeInt = 0
    alpha: PositiveFloat = 16.0
    targets: tuple[LoraTarget, ...] = (LoraTarget.QUERY, LoraTarget.VALUE)

    def _check(self) -> None:
        if self.rank and not self.targets:
            targets = ", ".join(target.value for target in LoraTarget)
            raise UserError(
                f"config.model.lora.targets is empty, so that rank={self.rank} is of nothing: say of {targets}"
            )

    @property
    def scale(self) -> float:
        """The factor alpha / r of the product of the two matrices."""
        return self.alpha / self.rank


class LowRankUpdate(Module):
    """The low-rank update (alpha / r) x A B of a linear map: A [inputs, r] is initially normal, B [r, outputs] zero.

    x W + (alpha / r) x A B = x (W + (alpha / r) A B): at first the update is zero. The paper multiplies from the left:
    its A is our A', its B our B'. A has standard deviation inputs^-1/2, so that x A has the scale of x. A and B are
    sharded as the axes of W are; r is not sharded.

    Args:
        linear: The map to update.
        config: The rank and alpha.
        builder: Makes the parameters.

    Raises:
        UserError: If the rank is above the smaller side of W.
    """

    def __init__(self, linear: Linear, config: LoraConfig, *, builder: ParameterBuilder):
        inputs, outputs, rank = linear.inputs, linear.outputs, (("features", config.rank),)
        self.contracted, self.scale = len(inputs), config.scale
        fan_in, fan_out = (int(np.prod([size for _, size in axes])) for axes in (inputs, outputs))
        if config.rank > min(fan_in, fan_out):
            raise UserError(
                f"config.model.lora.rank={config.rank} stands beside a map of {fan_in} to {fan_out} features, whose "
                f"rank is {min(fan_in, fan_out)} at most: say less"
            )
        self.down = builder.parameter(normal(fan_in**-0.5), *_shape_and_axes(inputs + rank))
        self.up = builder.parameter(jax.nn.initializers.zeros, *_shape_and_axes(rank + outputs))

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Compute what is added to the map of x."""
        low = product(x, jnp.asarray(self.down[...], x.dtype), self.contracted)
        return product(low * jnp.asarray(self.scale, x.dtype), jnp.asarray(self.up[...], x.dtype))

    def matrix(self) -> Float[Array, "..."]:
        """The update (alpha / r) A B, in the shape of W."""
        return self.scale * jnp.tensordot(self.down[...], self.up[...], axes=1)


def _shape_and_axes(axes: tuple[tuple[str, int], ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    return tuple(size for _, size in axes), tuple(name for name, _ in axes)


def add_lora[M: Module](block: M, config: LoraConfig, builder: ParameterBuilder) -> M:
    """Add the low-rank updates of the config to a block of a Transformer.

    Their keys are drawn after the block's, so that the block is initialized as it would be without them.

    Args:
        block: The block.
        config: The rank and targets.
        builder: Makes the parameters.

    Returns:
        The same block.
    """
    if config.rank:
        for linear in _target_layers(block, config.targets):
            linear.lora = LowRankUpdate(linear, config, builder=builder)
    return block


def _target_layers(block: Any, targets: Collection[LoraTarget]) -> Iterator[Linear]:
    """The maps to update, in an order that does not depend on that of `targets`."""
    attentions = [layer for layer in (block.attention, block.cross) if layer is not None]
    for projection in LoraTarget:
        if projection not in targets:
            continue
        if projection is LoraTarget.FEED_FORWARD:
            network = block.feed_forward
            yield from (layer for layer in (network.expand, network.gate, network.contract) if layer is not None)
        else:
            yield from (getattr(attention, projection.value) for attention in attentions)


def lora_paths(path: str) -> tuple[str, str]:
    """The paths of the matrices A and B that update the kernel at this path."""
    folder = path.rpartition("/")[0]
    return f"{folder}/{LORA_NAME}/down", f"{folder}/{LORA_NAME}/up"


def is_lora_path(path: str) -> bool:
    """Whether this is the path of one of the two matrices of a low-rank update."""
    return f"/{LORA_NAME}/" in path


def has_lora(path: str, paths: Collection[str]) -> bool:
    """Whether this is the path of a kernel with a low-rank update among a model's paths."""
    return path.endswith("/kernel") and lora_paths(path)[0] in paths


def merge_lora_params(params: Mapping[str, Any], config: LoraConfig) -> dict[str, Any]:
    """Merge the low-rank updates into the kernels: W + (alpha / r) A B.

    Args:
        params: Parameters, as NumPy or JAX arrays; stacked layers keep their leading axes.
        config: The rank and alpha.

    Returns:
        The parameters of the same model without LoRA.
    """
    merged = {
        name: merge_lora_params(value, config) if isinstance(value, Mapping) else value
        for name, value in params.items()
    }
    update = merged.pop(LORA_NAME, None)
    if update is not None:
        merged["kernel"] = add_low_rank_product(merged["kernel"], update["down"], update["up"], config.scale)
    return merged


def add_low_rank_product(kernel: Any, down: Any, up: Any, scale: float) -> Any:
    """Compute W + scale A B in the type of W, in float32 or wider inside.

    Args:
        kernel: W.
        down: A.
        up: B.
        scale: The factor.

    Returns:
        The merged matrix. Leading axes that all three share are those of stacked layers.
    """
    layers = down.ndim + up.ndim - 2 - kernel.ndim
    stacked, rank, wide = kernel.shape[:layers], down.shape[-1], np.promote_types(kernel.dtype, np.float32)
    a, b = down.astype(wide).reshape(*stacked, -1, rank), up.astype(wide).reshape(*stacked, rank, -1)
    return (kernel.astype(wide) + (scale * (a @ b)).reshape(kernel.shape)).astype(kernel.dtype)
