"""Headwise: attention research in JAX, one loop for every model, with per-head maps from every run."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from transformer import (
        attention,
        config,
        data,
        decoding,
        huggingface,
        interpret,
        layers,
        logical_axes,
        maps,
        models,
        studies,
        tasks,
        training,
    )
    from transformer.interpret.load import LoadedModel
    from transformer.runs.run_directory import RunDirectory
    from transformer.training.config import ExperimentConfig

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """Import a part of the library, such as transformer.maps, when it is first used, since most parts need jax."""
        if name == "__version__":
            from transformer.system.command_invocation import headwise_version

            return headwise_version()
        from transformer.system.lazy_names import import_submodule

        return import_submodule(__name__, name)

    def __dir__() -> list[str]:
        """Return the public names."""
        return sorted(__all__)


__all__ = [
    "__version__",
    "attention",
    "config",
    "data",
    "decoding",
    "huggingface",
    "interpret",
    "layers",
    "load",
    "logical_axes",
    "maps",
    "models",
    "studies",
    "tasks",
    "train",
    "training",
]


def load(
    source: str | Path, *, step: int | None = None, trust: Collection[str] = (), dtype: str | None = None
) -> "LoadedModel":
    """Load a model to look at its attention.

    Args:
        source: A run directory, or a model folder in Hugging Face format. Nothing is downloaded, and no code of the
            folder is run.
        step: The step of a run's checkpoint; by default the newest valid one.
        trust: Dotted paths of your own modules that the run's config may name.
        dtype: The type in which a published model is stored and computes: "float32", "bfloat16" or "float16".

    Raises:
        UserError: If `source` is neither, or its model cannot be read.

    Example:
        ```python
        import transformer

        model = transformer.load("gpt2-folder")
        model.show_attention("my sentence")  # the page of what every head attends to
        model.run_with_maps("my sentence")  # named arrays
        ```
    """
    from transformer.interpret.load import load

    return load(source, step=step, trust=trust, dtype=dtype)


def train(config: "ConfigDict | Mapping[str, Any] | ExperimentConfig", workdir: str | Path) -> "RunDirectory":
    """Train a run in its directory, or resume it, until all steps and evaluations are done.

    The command `launch.train` does the same, and also handles stop signals and joins several processes.
    `transformer.training.train` takes more arguments, such as a writer.

    Args:
        config: The config as a `ConfigDict`, such as that of a config file, as nested mappings, or resolved.
        workdir: The run directory. If it holds the run already, the run is resumed from its newest valid checkpoint.

    Returns:
        The run directory.

    Raises:
        UserError: If config, data, directory or device memory do not allow the run.
        RunFailed: If training diverges, or a state or checkpoint is not valid.

    Example:
        ```python
        import transformer

        config = {
            "name": "small",
            "steps": 2,
            "checkpoint_every": 2,
            "log_every": 1,
            "task": {"name": "language_modeling", "dataset": "repeated", "context_length": 16, "probe_length": 8},
            "model": {"family": "decoder", "layers": 1, "width": 16, "heads": 2, "feed_forward": 16},
            "optimizer": {"learning_rate": 1e-3},
        }
        run = transformer.train(config, "runs/small")
        run.metrics_file  # runs/small/metrics.jsonl
        ```
    """
    from ml_collections import ConfigDict

    from transformer.storage.paths import parse_path
    from transformer.training.config import ExperimentConfig, resolve_config
    from transformer.training.driver import train

    if isinstance(config, ConfigDict):
        config = config.to_dict()
    experiment = config if isinstance(config, ExperimentConfig) else resolve_config(config)
    return train(experiment, parse_path(str(workdir)))
