"""What a stack of blocks shows and adds by its name: its sites, their maps, the losses that balance its experts."""

import jax.numpy as jnp

from transformer.attention.capture import Capture, Captured, capture_at
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.layers.block_aux import BlockAux, BlockCapture
from transformer.layers.experts import ExpertsConfig
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.contract import AuxiliaryLoss


def asked_of(stack: str, capture: Capture | None) -> BlockCapture:
    """What a request asks of the sites of the stack of this name."""
    return BlockCapture(*(capture_at(f"{stack}/{site}", capture) for site in ("self", "cross", "experts")))


def sites_of(
    stack: str,
    config: TransformerConfig,
    layers: int,
    query: Axis,
    key: Axis,
    *,
    causal: bool = False,
    memory: Axis | None = None,
) -> tuple[Site, ...]:
    """The sites of a stack of so many layers, whose self-attention is of `query` over `key`."""
    heads, numbers = tuple(map(str, range(config.heads))), tuple(map(str, range(layers)))
    sites = [Site(f"{stack}/self", query, key, numbers, heads, causal=causal)]
    if memory is not None:
        sites.append(Site(f"{stack}/cross", query, memory, numbers, heads))
    if of_experts := config.experts.layers(layers):
        experts = Axis("experts", AxisKind.EXPERTS, size=config.experts.count)
        sites.append(Site(f"{stack}/experts", query, experts, tuple(map(str, of_experts)), heads=("0",)))
    return tuple(sites)


def maps_of(stack: str, aux: BlockAux) -> dict[str, Captured]:
    """The maps that were asked for of the stack of this name, by site."""
    sites = {f"{stack}/self": aux.attention, f"{stack}/cross": aux.cross, f"{stack}/experts": aux.experts}
    return {site: captured for site, captured in sites.items() if captured is not None}


def losses_of(stack: str, aux: BlockAux, config: ExpertsConfig) -> dict[str, AuxiliaryLoss]:
    """The losses that balance the experts of the stack of this name: sums over its layers, means over batches.

    A coefficient of variation is no sum over positions: micro-batches count by their real positions.
    """
    if aux.balance is None:
        return {}
    positions = aux.balance.positions[0]
    return {
        f"{stack}/{name}": AuxiliaryLoss(positions * jnp.sum(unevenness_L), positions, weight)
        for name, unevenness_L, weight in (
            ("importance", aux.balance.importance, config.importance),
            ("load", aux.balance.load, config.load),
        )
    }
