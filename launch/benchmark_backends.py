"""Time the attention backends."""

import sys

from launch.cli import run
from launch.command import Arguments, Command, Flag
from launch.flag_parsing import parse_integers

COMMAND = Command(
    name="benchmark_backends",
    description=(
        "Time one self-attention, forward and backward, on every backend that supports it on this machine, on the same "
        "arrays, with and without capturing the statistics of all heads."
    ),
    example="--sequence_lengths=512,2048 --dtype=bfloat16",
    flags=(
        Flag("sequence_lengths", "sequence lengths, separated by commas", default="256,1024,4096"),
        Flag("batch_size", "examples in the batch", default=1, value_type=int),
        Flag("num_heads", "attention heads", default=8, value_type=int),
        Flag("head_dim", "features of a head", default=64, value_type=int),
        Flag("dtype", "the dtype of the arrays", default="float32", choices=("float32", "bfloat16", "float16")),
        Flag("causal", "apply a causal mask", default=True, value_type=bool),
        Flag("repeats", "measurements of each", default=5, value_type=int),
    ),
)


def main(arguments: Arguments) -> None:
    """Measure and print a table with a row for each length and backend."""
    from transformer.benchmarks.attention_backends import time_backends
    from transformer.config import UserError

    count_arguments = {name: getattr(arguments, name) for name in ("batch_size", "num_heads", "head_dim", "repeats")}
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
