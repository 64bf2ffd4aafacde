"""Sinks: where a run's numbers, samples and maps go."""

from transformer.training.sinks.console import Console
from transformer.training.sinks.contract import Sink, Sinks
from transformer.training.sinks.heads import HeadsFile
from transformer.training.sinks.jsonl import MetricsFile
from transformer.training.sinks.log import Log
from transformer.training.sinks.samples import SamplesFile
from transformer.training.sinks.tensorboard import TensorBoard

__all__ = [
    "Console",
    "HeadsFile",
    "Log",
    "MetricsFile",
    "SamplesFile",
    "Sink",
    "Sinks",
    "TensorBoard",
]
