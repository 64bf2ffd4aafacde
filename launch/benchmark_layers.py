"""Compare recurrent, convolutional and self-attention layers: cost and gradient reach."""

import dataclasses
import sys

from launch.cli import run
from launch.command import Arguments, Command, flag
from launch.flag_parsing import parse_integers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkLayersArguments(Arguments):
    """The arguments of `benchmark_layers`."""

    sequence_lengths: str = flag("sequence lengths, separated by commas", "250,500,1000,2000,4000")
    width: int = flag("features of a layer", 256)
    batch_size: int = flag("sequences in the batch", 1)
    repeats: int = flag("measurements of each", 5)
    distances: str = flag("distances of the gradients, separated by commas", "1,10,50,100,200")
    num_seeds: int = flag("initializations to average the gradients over", 16)


COMMAND = Command(
    name="benchmark_layers",
    description=(
        "Compare recurrent, convolutional and self-attention layers (Vaswani et al. 2017, table 1): FLOPs, sequential "
        "operations, maximum path length, and the measured time and memory of a gradient on this machine; then how "
        "much of the gradient reaches the first input over a distance."
    ),
    example="--sequence_lengths=250,1000,4000 --width=256",
    arguments=BenchmarkLayersArguments,
)


def main(arguments: BenchmarkLayersArguments) -> None:
    """Measure and print both tables."""
    from transformer.benchmarks.gradient_by_distance import gradient_norms_by_distance
    from transformer.benchmarks.layer_costs import crossover_length, growth_exponent, measure_layer_costs
    from transformer.benchmarks.layer_types import LAYER_TYPES
    from transformer.config import UserError

    counts = {
        "width": arguments.width,
        "batch_size": arguments.batch_size,
        "repeats": arguments.repeats,
        "num_seeds": arguments.num_seeds,
    }
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"--{name}={value} must be at least 1")
    lengths = _parse_distinct_integers(arguments.sequence_lengths, "--sequence_lengths")
    distances = _parse_distinct_integers(arguments.distances, "--distances")
    d = arguments.width
    print(f"{'kind':<12}{'n':>7}{'FLOPs':>12}{'steps':>7}{'path':>7}{'ms':>10}{'temp MB':>11}")
    costs = []
    for n in lengths:
        for cost in measure_layer_costs(n, d, rows=arguments.batch_size, repeats=arguments.repeats):
            kind = LAYER_TYPES[cost.layer_type]
            print(
                f"{cost.layer_type:<12}{n:>7}{arguments.batch_size * kind.count_flops(n, d):>12.2e}"
                f"{kind.count_sequential_steps(n):>7}{kind.max_path_length(n):>7}"
                f"{1e3 * cost.seconds:>10.1f}{cost.temp_bytes / 1e6:>11.1f}",
                flush=True,
            )
            costs.append(cost)
    if len(lengths) > 1:
        print(f"\nfrom n={lengths[-2]} to n={lengths[-1]}")
        for name in LAYER_TYPES:
            time, memory = growth_exponent(costs, name, "seconds"), growth_exponent(costs, name, "temp_bytes")
            print(f"{name:<12}time grows as n^{time:.2f}, memory as n^{memory:.2f}")
        crossover = crossover_length(costs, "attention", "lstm")
        crossing = "at no measured length" if crossover is None else f"from about n={crossover:.0f}"
        print(f"self-attention takes longer than the LSTM at d={d}: {crossing}")
    print("\ngradient of the last output with respect to the first input, relative to the first distance")
    print(f"{'kind':<14}" + "".join(f"{distance:>10}" for distance in distances))
    for name, norms in gradient_norms_by_distance(distances, d, seeds=arguments.num_seeds).items():
        print(f"{name:<14}" + "".join(f"{norm / norms[0]:>10.1e}" for norm in norms), flush=True)


def _parse_distinct_integers(text: str, flag: str) -> list[int]:
    from transformer.config import UserError

    numbers = parse_integers(text, flag)
    if len(set(numbers)) < len(numbers):
        raise UserError(f"{flag}={text} must be different numbers, joined by commas: 250,1000")
    return sorted(numbers)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
