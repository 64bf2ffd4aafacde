"""Training: state, step, loop and writers."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.training.config import ExperimentConfig, apply_overrides, resolve_config
    from transformer.training.driver import train
    from transformer.training.huggingface_conversion import (
        FineTuningOptions,
        export_to_huggingface,
        import_from_huggingface,
    )
    from transformer.training.learning_rate import LearningRateSchedule
    from transformer.training.optimizer import OptimizerConfig
    from transformer.training.state import TrainState
    from transformer.training.writers.writer import Writer
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ExperimentConfig",
    "FineTuningOptions",
    "LearningRateSchedule",
    "OptimizerConfig",
    "TrainState",
    "Writer",
    "apply_overrides",
    "export_to_huggingface",
    "import_from_huggingface",
    "resolve_config",
    "train",
]
