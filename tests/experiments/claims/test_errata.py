"""The errata of the lectures: all 44, each with what shows the right fact, and the facts that no other test holds."""

import ast
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.claims.catalog import claims
from experiments.claims.errata import ERRATA, Erratum
from experiments.neural_turing_machine.memory import WriteParameters, shift_weightings, write_slots
from tests.markdown import ROOT, anchors
from transformer.attention.positions import sinusoidal_positions
from transformer.layers.transformer_block import NormPlacement
from transformer.models import registry
from transformer.models.published_sizes import PUBLISHED_SIZES
from transformer.tasks.classification_metrics import pearson_correlation, spearman_correlation


def test_errata_are_numbered_from_1_to_44() -> None:
    assert [erratum.number for erratum in ERRATA] == list(range(1, 45))


@functools.cache
def names_of_tests(path: str) -> set[str]:
    """The names of the tests of a file."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def missing(reference: str) -> bool:
    """Whether what an erratum names as showing it is not there."""
    path, _, test = reference.partition("::")
    page, _, anchor = reference.partition("#")
    if test:
        return test not in names_of_tests(path)
    if page.endswith(".md"):
        return not (ROOT / page).is_file() or anchor not in anchors((ROOT / page).read_text(encoding="utf-8"))
    return reference not in {claim.name for claim in claims()}


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.name)
def test_what_shows_an_erratum_is_there(erratum: Erratum) -> None:
    assert [reference for reference in erratum.shown_by if missing(reference)] == []
    assert set(erratum.lectures) <= {"S0", "S1", "S2", "S3", "S4"}
    assert erratum.shown_by or erratum.number == 44  # a fact of the source alone


def test_what_is_not_there_is_found() -> None:
    assert missing("C-99")
    assert missing("tests/test_links.py::test_gone")
    assert missing("tests/gone.py::test_x")
    assert missing("docs/claims.md#gone")
    assert missing("docs/gone.md#a")


def test_frequencies_of_positions_are_geometric_and_no_position_comes_twice() -> None:
    encodings = np.asarray(sinusoidal_positions(jnp.arange(2000), 128), np.float64)
    # At position 1 the angles are the frequencies.
    frequencies = np.arctan2(encodings[1, 0::2], encodings[1, 1::2])
    ratios = frequencies[1:] / frequencies[:-1]
    np.testing.assert_allclose(ratios, 10000 ** (-2 / 128), rtol=1e-5)
    assert frequencies[0] == pytest.approx(1)
    # Equal ratios, not the equal differences of a harmonic series.
    assert np.ptp(np.diff(frequencies)) > 0.1
    products = encodings @ encodings.T
    squared = np.diag(products)[:, None] + np.diag(products) - 2 * products
    assert np.sqrt(squared[np.triu_indices(2000, 1)].min()) == pytest.approx(1.95, abs=0.01)


def test_a_memory_of_four_slots_forgets_the_first_of_five_vectors() -> None:
    vectors = np.eye(5, dtype=np.float32)
    memory, weights = np.zeros((1, 4, 5), np.float32), np.eye(4, dtype=np.float32)[None, None, 0]
    one_step = np.array([[[0.0, 0.0, 1.0]]], np.float32)
    for number, vector in enumerate(vectors):
        if number == 4:
            np.testing.assert_allclose(memory[0], vectors[:4], atol=1e-6)  # as many as there are slots
        change = WriteParameters(np.ones((1, 1, 5), np.float32), vector[None, None])
        memory = np.asarray(write_slots(memory, weights, change))
        weights = np.asarray(shift_weightings(weights, one_step))
    np.testing.assert_allclose(memory[0], vectors[[4, 1, 2, 3]], atol=1e-6)


def test_a_reversed_source_begins_near_its_translation_at_the_same_mean_distance() -> None:
    """Steps between reading word i of a source of n words and writing word i of the translation."""
    n = 30
    read, written = np.arange(n), n + np.arange(n)
    distances, reversed_distances = written - read, written - read[::-1]
    assert set(distances) == {n}
    assert reversed_distances.mean() == distances.mean()
    assert (reversed_distances[0], reversed_distances[-1]) == (1, 2 * n - 1)


# CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE of Radford et al. 2018, table 5.
GPT = {
    "full": (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0),
    "without auxiliary loss": (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
}
# MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE of Devlin et al. 2019, table 1.
GPT_IN_BERTS_TABLE = (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0)


def test_gpts_averages_are_of_different_columns() -> None:
    full, without = GPT.values()
    assert np.mean(full) == pytest.approx(74.7, abs=0.06)
    assert np.mean(without) == pytest.approx(75.0, abs=0.06)
    assert [one > other for one, other in zip(full, without, strict=True)] == [False] * 4 + [True] * 4
    assert np.mean(GPT_IN_BERTS_TABLE) == pytest.approx(75.1, abs=0.06)
    # With MNLI once, as in the other table, it would be lower.
    matched, mismatched, *others = GPT_IN_BERTS_TABLE
    assert np.mean([(matched + mismatched) / 2, *others]) == pytest.approx(74.3, abs=0.06)


def test_pearson_and_spearman_of_one_answer_differ() -> None:
    labels = np.arange(6.0)
    answers = np.exp(labels)
    assert spearman_correlation(answers, labels) == pytest.approx(stats.spearmanr(answers, labels).statistic) == 1
    assert pearson_correlation(answers, labels) == pytest.approx(stats.pearsonr(answers, labels).statistic)
    assert pearson_correlation(answers, labels) < 0.9


def decoder_parameters(layers: int, width: int, vocabulary: int, positions: int, *, final_norm: bool) -> int:
    """Parameters of a decoder with biases and two norms a layer: 12 d^2 + 13 d each."""
    tables = (vocabulary + positions) * width
    return layers * (12 * width**2 + 13 * width) + tables + 2 * width * final_norm


def test_ratios_of_gpts_sizes() -> None:
    gpt1 = decoder_parameters(12, 768, 40_478, 512, final_norm=False)
    gpt2 = decoder_parameters(48, 1600, 50_257, 1024, final_norm=True)
    gpt3 = decoder_parameters(96, 12_288, 50_257, 2048, final_norm=True)
    assert (round(gpt1 / 1e6, 1), round(gpt2 / 1e6, 1), round(gpt3 / 1e9, 1)) == (116.5, 1557.6, 174.6)
    assert (round(gpt2 / gpt1, 1), round(gpt3 / gpt1), round(gpt3 / gpt2)) == (13.4, 1498, 112)


@pytest.mark.parametrize(
    ("name", "layers", "heads", "placement"),
    [
        ("megatron-lm-8.3b", 72, 24, NormPlacement.PRE),
        ("gpt1", 12, 12, NormPlacement.POST),
        ("gpt2", 12, 12, NormPlacement.PRE),
        ("gpt3-175b", 96, 96, NormPlacement.PRE),
    ],
)
def test_what_a_published_size_fixes(name: str, layers: int, heads: int, placement: NormPlacement) -> None:
    config = registry.model_config({"size": name})
    assert (config.layers, config.heads, config.norm_placement) == (layers, heads, placement)
    # A decoder alone: nothing to attend to but itself.
    assert PUBLISHED_SIZES[name].family == "decoder"


def test_robertas_tokens_are_those_of_half_a_million_steps() -> None:
    tokens = PUBLISHED_SIZES["roberta-large"].training_tokens
    assert tokens == pytest.approx(500_000 * 8_000 * 512, rel=0.03)
    assert tokens == pytest.approx(5 * 100_000 * 8_000 * 512, rel=0.03)  # the run of one day, five times


def test_gpt3_saw_less_than_its_mix_holds() -> None:
    """Brown et al. 2020, table 2.2: billions of tokens, and epochs of each part when 300 billion are seen."""
    billions = {"Common Crawl": 410, "WebText2": 19, "Books1": 12, "Books2": 55, "Wikipedia": 3}
    shares = {"Common Crawl": 0.60, "WebText2": 0.22, "Books1": 0.08, "Books2": 0.08, "Wikipedia": 0.03}
    epochs = {"Common Crawl": 0.44, "WebText2": 2.9, "Books1": 1.9, "Books2": 0.43, "Wikipedia": 3.4}
    assert sum(billions.values()) == 499
    training_tokens = PUBLISHED_SIZES["gpt3-175b"].training_tokens
    assert training_tokens == 300e9 < 499e9
    for part, share in shares.items():
        assert math.isclose(share * training_tokens / 1e9 / billions[part], epochs[part], rel_tol=0.2)
