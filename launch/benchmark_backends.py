"""Time the attention backends."""

import dataclasses
import sys
from typing import Literal

from launch.cli import run
from launch.command import Arguments, Command, flag
from launch.flag_parsing import parse_integers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkBackendsArguments(Arguments):
    """The arguments of `benchmark_backends`."""

    sequence_lengths: str = flag("sequence lengths, separated by commas", "256,1024,4096")
    batch_size: int = flag("examples in the batch", 1)
    num_heads: int = flag("attention heads", 8)
    head_dim: int = flag("features of a head", 64)
    dtype: Literal["float32", "bfloat16", "float16"] = flag("the dtype of the arrays", "float32")
    causal: bool = flag("apply a causal mask", True)
    repeats: int = flag("measurements of each", 5)


COMMAND = Command(
    name="benchmark_backends",
    description=(
        "Time one self-attention, forward and backward, on every backend that supports it on this machine, on the same "
        "arrays, with and without capturing the statistics of all heads."
    ),
    example="--sequence_lengths=512,2048 --dtype=bfloat16",
    arguments=BenchmarkBackendsArguments,
)


def main(arguments: BenchmarkBackendsArguments) -> None:
    """Measure and print a table with a row for each length and backend."""
    from transformer.benchmarks.attention_backends import time_backends
    from transformer.config import UserError

    count_arguments = {
        "batch_size": arguments.batch_size,
        "num_heads": arguments.num_heads,
        "head_dim": arguments.head_dim,
        "repeats": arguments.repeats,
    }
    for name, value in count_arguments.items():
        if value < 1:
            raise UserError(f"--{name}={value} must be at least 1")
    lengths = parse_integers(arguments.sequence_lengths, "--sequence_lengths")
    print(f"{'length':>8}  {'backend':<12}{'ms':>10}{'vs auto':>12}{'capture adds':>16}")
    for length in lengths:
        timings = time_backends(length=length, dtype=arguments.dtype, causal=arguments.causal, **count_arguments)
        for backend, seconds in timings.plain.items():
            name = f"{backend.value}{' (auto)' if backend is timings.auto else ''}"
            share = timings.captured[backend] / seconds - 1
            print(
                f"{length:>8}  {name:<16}{seconds * 1e3:>6.1f}{seconds / timings.plain[timings.auto]:>12.2f}"
                f"{100 * share:>15.0f}%",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
