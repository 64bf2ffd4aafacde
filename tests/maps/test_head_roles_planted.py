"""Heads with weights set by hand, on texts of one period, of several and of none.

A head of a fixed distance on texts of one period reads what followed the same token before, and an induction head reads
at a fixed distance: there it cannot be told which of them it is, and must not be said.
"""

from collections.abc import Callable

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.maps.head_roles import (
    RoleAssessment,
    SimplerRule,
    SimplerRuleKind,
    WholeRows,
    classify_heads,
    heads_with_role,
)
from transformer.maps.role_rules import Role
from transformer.tasks.axis_labels import AxisLabels

LENGTH = 48
AXIS = Axis("text")
SITE = Site("decoder/self", AXIS, AXIS, ("0",), ("0",), causal=True)
STRENGTH = 0.97
DISTANCES = range(1, 41)

Text = tuple[str, ...]
Habit = Callable[[Text, int], list[int]]


def repeated(seed: int, period: int) -> Text:
    """Tokens that repeat, all different within a period."""
    words = np.random.default_rng(seed).permutation(200)[:period]
    return tuple(f"w{word}" for word in np.resize(words, LENGTH))


def without_period(seed: int) -> Text:
    """Tokens of a small vocabulary at random, some more frequent than others."""
    chance = 1 / np.arange(1, 13)
    return tuple(f"w{word}" for word in np.random.default_rng(seed).choice(12, LENGTH, p=chance / chance.sum()))


def labels_of(texts: list[tuple[Text, int | None]]) -> AxisLabels:
    return AxisLabels(
        {"text": tuple(text for text, _ in texts)},
        tuple(str(number) for number in range(len(texts))),
        periods=tuple(period for _, period in texts),
    )


PROBES = {
    "one period": labels_of([(repeated(seed, 12), 12) for seed in range(4)]),
    "one period, unknown": labels_of([(repeated(seed, 12), None) for seed in range(4)]),
    "several periods": labels_of([(repeated(seed, period), period) for seed, period in enumerate((9, 12, 14, 17))]),
    "no period": labels_of([(without_period(seed), None) for seed in range(4)]),
    "text and one repeat": labels_of([*((without_period(seed), None) for seed in range(3)), (repeated(9, 24), 24)]),
}


def at(distance: int) -> Habit:
    return lambda text, query: [query - distance]


def same(text: Text, query: int) -> list[int]:
    return [key for key in range(query) if text[key] == text[query]]


def induction(text: Text, query: int) -> list[int]:
    return [key + 1 for key in same(text, query)]


def last(habit: Habit) -> Habit:
    """The last key alone of a habit."""
    return lambda text, query: habit(text, query)[-1:]


def by_position(seed: int) -> Habit:
    """One key of every row, the same in all texts."""
    keys = [np.random.default_rng((seed, query)).integers(query + 1) for query in range(LENGTH)]
    return lambda text, query: [int(keys[query])]


def planted(habit: Habit, labels: AxisLabels) -> WholeRows:
    """Nearly all of each row's weight on the habit's keys, the rest and rows without any spread evenly."""
    texts = labels.tokens["text"]
    weights = np.zeros((len(texts), 1, 1, LENGTH, LENGTH))
    for example, text in enumerate(texts):
        for query in range(LENGTH):
            keys = [key for key in habit(text, query) if key >= 0]
            weights[example, 0, 0, query, : query + 1] = (1 - STRENGTH if keys else 1) / (query + 1)
            for key in keys:
                weights[example, 0, 0, query, key] += STRENGTH / len(keys)
    return WholeRows(tuple(range(LENGTH)), weights)


def reading_of(habit: Habit, labels: AxisLabels) -> RoleAssessment:
    (reading,) = classify_heads(planted(habit, labels), SITE, labels)
    return reading


HEADS: dict[str, tuple[Habit, Role | None, int]] = {
    **{f"{far} back": (at(far), Role.PREVIOUS_TOKEN if far == 1 else Role.DISTANCE, -far) for far in DISTANCES},
    **{f"position {seed}": (by_position(seed), None, 0) for seed in range(5)},
    "induction": (induction, Role.INDUCTION, 0),
    "last induction": (last(induction), Role.INDUCTION, 0),
    "same token": (same, Role.SAME_TOKEN, 0),
    "last same token": (last(same), Role.SAME_TOKEN, 0),
}


@pytest.mark.parametrize("probe", PROBES)
def test_no_planted_head_is_called_what_it_is_not(probe: str) -> None:
    wrong = []
    for name, (habit, role, distance) in HEADS.items():
        reading = reading_of(habit, PROBES[probe])
        band = reading.evidence[0].band
        is_right = reading.role is role and (band.first if band else distance) == distance
        right = is_right or (role is None and reading.role is Role.POSITION)
        if not (right or reading.ambiguous_with):
            wrong.append((name, reading))
    assert wrong == []
    assert len(HEADS) * len(PROBES) >= 200


@pytest.mark.parametrize("probe", ["several periods", "no period", "text and one repeat"])
def test_where_texts_tell_heads_apart_they_are_named(probe: str) -> None:
    """A text of one period leaves one distance open, and its multiples; others leave none."""
    ambiguous_with = [name for name, (habit, *_) in HEADS.items() if reading_of(habit, PROBES[probe]).ambiguous_with]
    assert ambiguous_with == []


def test_what_cannot_be_told_is_named_with_what_it_may_be() -> None:
    labels = PROBES["one period"]
    for habit in (at(11), last(induction)):
        reading = reading_of(habit, labels)
        assert (reading.evidence[0].role, reading.plays) == (Role.INDUCTION, False)
        assert set(reading.ambiguous_with) == {
            SimplerRule(SimplerRuleKind.DISTANCE, -11),
            SimplerRule(SimplerRuleKind.POSITION),
        }
        assert reading.evidence[0].weight > 0.9
        assert heads_with_role(Role.INDUCTION, planted(habit, labels), SITE, labels) == set()
    varied = PROBES["several periods"]
    assert heads_with_role(Role.INDUCTION, planted(induction, varied), SITE, varied) == {(0, 0)}
    assert heads_with_role(Role.INDUCTION, planted(at(11), varied), SITE, varied) == set()


def test_on_one_text_marks_are_told_from_one_place() -> None:
    """A head that rests on the only comma may rest on its place."""
    text = tuple(f"w{number}" if number != 5 else "," for number in range(LENGTH))
    one = labels_of([(text, None)])
    reading = reading_of(lambda text, query: [5] if query >= 5 else [], one)
    assert (reading.evidence[0].role, reading.plays, reading.ambiguous_with) == (
        Role.PUNCTUATION,
        False,
        (SimplerRule(SimplerRuleKind.FIXED_POSITION, 5),),
    )
    moved = labels_of([(text, None), ((*text[1:10], *text[:1], *text[10:]), None)])
    reading = reading_of(lambda text, query: [key for key in range(query + 1) if text[key] == ","], moved)
    assert (reading.role, reading.ambiguous_with) == (Role.PUNCTUATION, ())
