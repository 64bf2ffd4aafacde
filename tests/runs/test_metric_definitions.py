"""The definition of a metric is found by its name; a name that is written differently has none."""

import pytest

from transformer.runs.metric_definitions import METRICS, MetricDefinition, find_definition


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("loss", "loss"),
        ("tokens_per_second", "NAME_per_second"),
        ("steps_per_second", "steps_per_second"),  # its own before the pattern's
        ("critic/gradient_norm", "OBJECTIVE/gradient_norm"),
        ("auxiliary/decoder/load", "auxiliary/SITE/load"),
        ("importance_cv/decoder/experts/12", "importance_cv/SITE/N"),
        ("bleu/length_5_8", "bleu/GROUP"),
        ("cloze_accuracy_4", "cloze_accuracy_N"),
    ],
)
def test_a_metric_is_found(name: str, definition: str) -> None:
    metric = find_definition(name)
    assert metric is not None
    assert metric.name == definition


@pytest.mark.parametrize("name", ["losses", "Loss", "a/b/loss", "cloze_accuracy_few", "bleu/", "accuracy/color"])
def test_another_name_has_no_definition(name: str) -> None:
    assert find_definition(name) is None


def test_definitions_of_ones_own_are_found() -> None:
    own = MetricDefinition("success/N", "", "Share of walks")
    assert find_definition("success/3", [own]) == own


def test_every_definition_has_a_name_of_its_own_and_a_meaning() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    assert all(each.meaning and not each.meaning.endswith(".") for each in METRICS)
