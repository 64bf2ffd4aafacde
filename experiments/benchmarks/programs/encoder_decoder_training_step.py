"""Training steps of an encoder-decoder Transformer on random pairs, timed one by one.

`python -m experiments.benchmarks.programs.encoder_decoder_training_step SETTINGS`; like decoder_training_step it
needs little.
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.programs.decoder_training_step import measure
from experiments.benchmarks.programs.program_main import program_main
from experiments.benchmarks.programs.random_tokens import RandomTranslation
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model


def build_encoder_decoder(settings: Mapping[str, Any]) -> tuple[Model, RandomTranslation]:
    """An encoder-decoder of these sizes, arranged as Vaswani et al. (2017), without dropout, and its task."""
    sizes = {name: settings[name] for name in ("width", "heads", "feed_forward")}
    layers = {"encoder_layers": settings["layers"], "decoder_layers": settings["layers"]}
    config = registry.model_config(
        {"family": "encoder_decoder", "max_length": settings["context"], "dropout": 0.0, **sizes, **layers}
        | settings.get("model", {})
    )
    task = RandomTranslation(settings["rows"], settings["context"], settings["vocabulary"])
    return registry.build(config, task.interface, Precision(compute=settings["dtype"])), task


if __name__ == "__main__":
    program_main(lambda settings: measure(settings, build_encoder_decoder))
