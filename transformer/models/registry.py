"""The model families by name, each with its config and its builder."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer.config import UserError, choice, from_config
from transformer.models import decoder, encoder, encoder_decoder
from transformer.models.contract import Interface, Model, Need, Precision
from transformer.models.sizes import fill


class Family(NamedTuple):
    """A family's config, its builder, and the one thing that it predicts."""

    config: type
    build: Callable[[Any, Interface, Precision], Model]
    serves: Need


FAMILIES: Mapping[str, Family] = {
    "encoder_decoder": Family(encoder_decoder.EncoderDecoderConfig, encoder_decoder.build, Need.TRANSLATION),
    "decoder": Family(decoder.DecoderConfig, decoder.build, Need.CONTINUATION),
    "encoder": Family(encoder.EncoderConfig, encoder.build, Need.FILLING),
}


def model_schema(values: Mapping[str, Any]) -> type:
    """The config dataclass of the family that a model section chooses, by its `family` or its `size`.

    Errors: UserError for an unknown family or size, and for a key that contradicts the size.
    """
    return choice(fill(values).get("family", ""), FAMILIES, "config.model.family").config


def model_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the family that `values["family"]` names.

    `values["size"]`, where it is not None, names a published model (transformer.models.sizes), which says whatever
    `values` does not, the family too.

    Errors: UserError for an unknown family, size or key, and for a key that contradicts the size.
    """
    values = fill(values)
    return from_config(model_schema(values), {k: v for k, v in values.items() if k != "family"}, "config.model")


def build(config: Any, interface: Interface, precision: Precision) -> Model:
    """The model of a family's config for a task's interface.

    Errors: UserError for a family that does not predict what the task needs, and whatever the family refuses.
    """
    name = name_of(config)
    if interface.need not in (None, FAMILIES[name].serves):
        fitting = [other for other, family in FAMILIES.items() if family.serves is interface.need]
        raise UserError(
            f"config.model.family={name} predicts {FAMILIES[name].serves.value}, but the task needs "
            f"{interface.need.value}: say {' or '.join(fitting)}"
        )
    return FAMILIES[name].build(config, interface, precision)


def name_of(config: Any) -> str:
    """The name under which a config's family is known."""
    for name, family in FAMILIES.items():
        if isinstance(config, family.config):
            return name
    raise TypeError(f"{type(config).__name__} is no model family's config; known: {', '.join(FAMILIES)}")
