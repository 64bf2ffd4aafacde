"""What is measured of layers of each kind, and the command that prints it."""

import numpy as np
import pytest

from launch import benchmark_layers, cli
from transformer.benchmarks.gradient_by_distance import gradient_norms_by_distance
from transformer.benchmarks.layer_costs import LayerCost, crossover_length, growth_exponent, measure_layer_costs
from transformer.benchmarks.layer_types import LAYER_TYPES


def costs(**seconds_by_kind: list[float]) -> list[LayerCost]:
    return [
        LayerCost(kind, n, 8, seconds, round(1e6 * seconds))
        for kind, values in seconds_by_kind.items()
        for n, seconds in zip((100, 200, 400), values, strict=True)
    ]


def test_a_crossing_lies_where_two_lines_of_logs_meet() -> None:
    # n^2 / 1000 against 0.3 n: they meet at n = 300.
    both = costs(attention=[n**2 / 1000 for n in (100, 200, 400)], lstm=[0.3 * n for n in (100, 200, 400)])
    assert crossover_length(both, "attention", "lstm") == pytest.approx(300)
    assert crossover_length(both, "lstm", "attention") is None
    assert growth_exponent(both, "attention", "seconds") == pytest.approx(2)
    assert growth_exponent(both, "lstm", "temp_bytes") == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_every_kind_is_timed_and_the_dense_map_is_what_grows() -> None:
    found = {(cost.layer_type, cost.length): cost for n in (32, 128) for cost in measure_layer_costs(n, 4, repeats=1)}
    assert {kind for kind, _ in found} == set(LAYER_TYPES)
    assert all(cost.seconds > 0 for cost in found.values())
    assert found["attention", 128].temp_bytes > 4 * 128**2  # the map in float32
    assert found["attention", 128].temp_bytes / found["attention", 32].temp_bytes > 6
    assert found["lstm", 128].temp_bytes / found["lstm", 32].temp_bytes < 6


@pytest.mark.slow
def test_a_gradient_shrinks_by_the_radius_of_a_vanilla_networks_matrix() -> None:
    """With inputs so small that tanh is straight, d h_n / d h_1 is r^(n - 1) times an orthogonal matrix.

    The matrix that reads the inputs is not orthogonal, which the mean over seeds evens out.
    """
    distances = [1, 9, 17]
    found = gradient_norms_by_distance(distances, 8, seeds=64, scale=1e-6)
    for radius in (0.9, 1.1):
        norms = np.array(found[f"vanilla x {radius}"])
        np.testing.assert_allclose(norms / norms[0], [radius ** (each - 1) for each in distances], rtol=0.2)
    # Attention at first reads all positions alike: each has one n-th of the output, without a product of many factors.
    attention = np.array(found["attention"])
    np.testing.assert_allclose(attention / attention[0], [2 / (each + 1) for each in distances], rtol=1e-3)


@pytest.mark.slow
def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sequence_lengths=8,16", "--width=4", "--repeats=1", "--distances=1,3", "--num_seeds=1"]
    assert cli.run(benchmark_layers.COMMAND, benchmark_layers.main, words) == 0
    printed = capsys.readouterr().out
    for name in LAYER_TYPES:
        assert printed.count(f"\n{name} ") >= 3
    assert "self-attention takes longer than the LSTM at d=4: " in printed


@pytest.mark.parametrize(
    "words", [["--sequence_lengths=8,x"], ["--distances=0,1"], ["--sequence_lengths=8,8"], ["--num_seeds=0"]]
)
def test_wrong_numbers_are_refused_before_anything_is_measured(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(benchmark_layers.COMMAND, benchmark_layers.main, words) == 2
    assert words[0] in capsys.readouterr().err
