"""Checks of a task and a model for meshes that divide positions over devices."""

from typing import Any

from transformer.attention.backends import Variant, unsupported
from transformer.attention.spec import Backend
from transformer.axes import Placement, SequenceParallel
from transformer.config import UserError
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.interface import Interface


def check_divided_positions(model: Any, interface: Interface, placement: Placement) -> None:
    """Refuse, before anything is traced, a task or a model whose positions the mesh cannot divide.

    Errors: UserError naming the keys that can change it.
    """
    parts = placement.parts("length")
    if parts == 1:
        return
    for name, given in interface.inputs.items():
        if given.positions is not None and given.positions % parts:
            raise UserError(
                f"config.sharding.sequence={parts} does not divide the {given.positions} positions of the task's "
                f"{name}: give config.task a length that is a multiple of {parts}, or another sequence"
            )
    if placement.attention is SequenceParallel.RING and isinstance(model, TransformerConfig):
        _check_ring(model, parts)


def _check_ring(model: TransformerConfig, parts: int) -> None:
    """Refuse attention that ring attention does not support."""
    if model.attention_dropout:
        raise UserError(
            f"config.model.attention_dropout={model.attention_dropout} drops weights, which a ring never has: say "
            "config.sharding.attention=gather, or 0"
        )
    spec = model.spec(model.positions.within_attention)
    why = unsupported(Backend.BLOCKWISE, Variant(spec.score, position=spec.position))
    if spec.backend not in (Backend.AUTO, Backend.BLOCKWISE):
        why = f"config.model.backend={spec.backend.value} is another"
    if why is not None:
        raise UserError(
            f"config.sharding.sequence={parts} with attention=ring runs in blocks, and {why}: say "
            "config.sharding.attention=gather, or change the model's attention"
        )
