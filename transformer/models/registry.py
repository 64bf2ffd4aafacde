"""The model families by name, each with its config and its builder."""

from collections.abc import Mapping
from typing import Any

from transformer.config import choice, from_config
from transformer.models import decoder, encoder, encoder_decoder
from transformer.models.contract import Interface, Model, Precision

FAMILIES = {
    "encoder_decoder": (encoder_decoder.EncoderDecoderConfig, encoder_decoder.build),
    "decoder": (decoder.DecoderConfig, decoder.build),
    "encoder": (encoder.EncoderConfig, encoder.build),
}


def model_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the family that `values["family"]` names.

    Errors: UserError for an unknown family or key.
    """
    config_class, _ = choice(values.get("family", ""), FAMILIES, "config.model.family")
    return from_config(config_class, {k: v for k, v in values.items() if k != "family"}, "config.model")


def build(config: Any, interface: Interface, precision: Precision) -> Model:
    """The model of a family's config for a task's interface."""
    for config_class, builder in FAMILIES.values():
        if isinstance(config, config_class):
            return builder(config, interface, precision)
    raise TypeError(f"{type(config).__name__} is no model family's config; known: {', '.join(FAMILIES)}")


def name_of(config: Any) -> str:
    """The name under which a config's family is known."""
    return next(name for name, (config_class, _) in FAMILIES.items() if isinstance(config, config_class))
