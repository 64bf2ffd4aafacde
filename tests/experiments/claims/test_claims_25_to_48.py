"""Claims C-25 to C-48: wrong figures change their verdicts, and figures with closed forms equal them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from experiments.claims.catalog import claims_by_module
from experiments.claims.claim import Records, Verdict
from experiments.claims.evidence import RESULTS, read_figures, read_record
from experiments.claims.exhibits import Table

FAILS, HOLDS, NOT_TESTABLE = Verdict.FAILS, Verdict.HOLDS, Verdict.NOT_TESTABLE
CONDITIONAL = Verdict.CONDITIONAL
MODULES = {claim.number: module for module, claim in claims_by_module().items() if claim.number >= 25}


def figures_of(number: int) -> Any:
    """Return a copy of the recorded figures of a claim."""
    claim = claims_by_module()[MODULES[number]]
    if isinstance(claim.evidence, Records):
        return copy.deepcopy(dict(read_figures(claim.evidence)))
    return copy.deepcopy(dict(read_record(RESULTS / f"{MODULES[number]}.json").figures))


def judge(number: int, figures: Any) -> Verdict:
    return claims_by_module()[MODULES[number]].judge(figures).verdict


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    """Return a mutation that replaces what is at the path."""

    def mutate(figures: Any) -> None:
        for key in path[:-1]:
            figures = figures[key]
        figures[path[-1]] = value

    return mutate


def flatten_curves(figures: Any) -> None:
    for curve in figures["curves"].values():
        curve["weights"][-1] = curve["weights"][0]


def reverse_sizes(figures: Any) -> None:
    figures["losses"].reverse()


def swap_models(figures: Any) -> None:
    for row in figures["copy"]:
        row["model"] = {"turing": "controller_only", "controller_only": "turing"}[row["model"]]


def raise_every_difference(figures: Any) -> None:
    for row in figures["rows"]:
        row["interval"] = [0.5, 1.5]


def add_loop(figures: Any) -> None:
    figures["rows"][0]["loops"] = 1


def forget_new_tasks(figures: Any) -> None:
    for curves in figures["tasks"].values():
        curves["new"] = [curves["new"][0]] * len(curves["new"])


def stop_moving(figures: Any) -> None:
    figures["trained"]["changes"] = [[0.0] * len(row) for row in figures["trained"]["changes"]]


def leak_without_attention(figures: Any) -> None:
    name = next(name for name in figures["maps"] if name.endswith("without attention"))
    figures["maps"][name][0][1] = 1e-9


def favor_decoders(figures: Any) -> None:
    for point in figures["decoder"]:
        point["test"] -= 2


def favor_lstms(figures: Any) -> None:
    for point in figures["LSTM"]:
        point["test"] -= 2


def shrink_hulls(figures: Any) -> None:
    figures["rows"]["random order"][-1]["area"] = 0.9


# Of each claim: what is done to its figures, and the verdict that they then have.
WRONG_FIGURES = [
    (25, put("by_distance", "self-attention", -1, value=1e-6), FAILS),
    (25, put("by_depth", "neither", -1, value=1.0), HOLDS),
    (26, put("flops", "LSTM", value=12_000_000_000), HOLDS),
    (27, add_loop, FAILS),
    (28, put("accuracies", "encoder without positions", value=[0.9, 0.9, 0.9]), FAILS),
    (28, put("accuracies", "causal decoder without positions", value=[0.5, 0.5, 0.5]), HOLDS),
    (29, put("recall", "LSTM", value=[1.0, 1.0, 1.0]), FAILS),
    (30, flatten_curves, FAILS),
    (31, put("tasks", 3, "interval", value=[-0.1, 0.1]), FAILS),
    (31, put("reversal", "post", "count", value=3), FAILS),
    (32, put("noun", value=[0.2, 0.2, 0.2]), FAILS),
    (33, put("gradients", "hard", value=0.1), FAILS),
    (34, put("flops", "window of 10", -1, value=10**9), FAILS),
    (34, put("gradients", "local-p without its Gaussian", "center", value=1.0), HOLDS),
    (35, swap_models, FAILS),
    (36, shrink_hulls, FAILS),
    (37, put("interval", value=[-0.1, 0.3]), FAILS),
    (38, raise_every_difference, HOLDS),
    (39, reverse_sizes, FAILS),
    (40, forget_new_tasks, FAILS),
    (41, put("rows", 2, "block", value="another.Block"), FAILS),
    (41, put("equal_parameters", value=False), FAILS),
    (42, favor_decoders, FAILS),
    (42, favor_lstms, CONDITIONAL),
    (43, put("reach", "decoder", 0, 5, value=1), FAILS),
    (44, put("interval", value=[0.1, 0.2]), FAILS),
    (44, put("interval", value=[-0.01, 0.02]), HOLDS),
    (45, put("shift", "relative", value=0.3), FAILS),
    (45, put("graph", "renumbered", value=0.3), FAILS),
    (46, stop_moving, FAILS),
    (47, leak_without_attention, FAILS),
    (48, put("dollars", "1", value=3_768_321), FAILS),
]


def test_every_claim_has_a_wrong_record():
    assert {number for number, _, _ in WRONG_FIGURES} == set(MODULES) == set(range(25, 49))


@pytest.mark.parametrize(
    ("number", "mutate", "expected"),
    WRONG_FIGURES,
    ids=[f"C-{number}-{position}" for position, (number, _, _) in enumerate(WRONG_FIGURES)],
)
def test_wrong_figures_change_the_verdict(number: int, mutate: Callable[[Any], None], expected: Verdict):
    figures = figures_of(number)
    recorded = judge(number, figures)
    mutate(figures)
    assert judge(number, figures) is expected
    if (number, expected) != (42, CONDITIONAL):
        assert recorded is not expected


@pytest.mark.parametrize("number", sorted(MODULES))
def test_exhibits_are_drawn_from_the_figures(number: int):
    exhibits = claims_by_module()[MODULES[number]].exhibits(figures_of(number))
    assert exhibits
    for exhibit in exhibits:
        if isinstance(exhibit, Table):
            assert exhibit.rows
            assert {len(row) for row in exhibit.rows} == {len(exhibit.columns)}


def test_products_of_cells_equal_their_closed_forms():
    figures = figures_of(26)
    n, d = figures["length"], figures["width"]
    # A product with the input and one with the state, a gate.
    assert figures["flops"] == {name: gates * 4 * n * d * d for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))}


def test_bytes_of_caches_equal_their_closed_forms():
    size, lengths, layers, width = figures_of(29)["bytes"], (64, 256, 1024, 4096), 2, 64
    assert size["attention"] == [layers * 2 * n * width * 4 for n in lengths]  # keys and values in float32
    assert size["LSTM"] == [layers * 2 * width * 4] * len(lengths)  # hidden state and cell


def test_flops_of_a_decoded_token_equal_their_closed_forms():
    flops, lengths, half_width, width, vocabulary = figures_of(34)["flops"], (64, 256, 1024, 4096), 10, 64, 8
    # Four projections, two matrices of a feed-forward network that is as wide, and the output. Then two products a key,
    # of the prompt's one token and those decoded.
    matrices = 2 * (4 + 2) * width**2 + 2 * width * vocabulary
    assert flops["global"] == [matrices + 4 * (n + 1) * width for n in lengths]
    assert flops["window of 10"] == [matrices + 4 * (half_width + 1) * width] * len(lengths)


def test_reading_one_key_saves_the_weighted_sum():
    figures = figures_of(33)
    scores = 2 * figures["keys"] * figures["width"]
    assert figures["flops"] == {"soft": 2 * scores, "hard": scores}


def test_attention_computes_all_pairs_and_an_lstm_one_step_a_position():
    for row in figures_of(27)["rows"]:
        attention = row["layer"] == "self-attention"
        assert row["products"] == (row["length"] ** 2 if attention else 0)
        assert row["steps"] == (0 if attention else row["length"])


@pytest.mark.parametrize("number", [26, 48])
def test_quick_measurements_give_the_recorded_figures(number: int):
    evidence = claims_by_module()[MODULES[number]].evidence
    assert not isinstance(evidence, Records)
    assert dict(evidence.measure()) == figures_of(number)
