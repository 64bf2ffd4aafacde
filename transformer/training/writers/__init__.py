"""Sinks: where a run's numbers, samples and maps go."""

from transformer.training.writers.console import Console, Log
from transformer.training.writers.contract import Sink, Sinks
from transformer.training.writers.jsonl import HeadsFile, MetricsFile, SamplesFile
from transformer.training.writers.tensorboard import TensorBoard

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
