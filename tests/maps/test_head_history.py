"""Heads that were planted: each is named by what it does, from the step at which it began; no other is."""

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.report.head_history import (
    change_points,
    describe_role,
    find_site_roles,
    last_step_roles,
)
from transformer.maps.role_rules import Role, chance_scores
from transformer.maps.store import MapStore, Statistics
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

STEPS = tuple(range(50, 1001, 50))
PERIOD, LENGTHS = 7, (14, 12, 14)
NAMES = ("first_token", "previous_token", "diagonal", "induction")
TOKENS = Axis("tokens")
LABELS = AxisLabels(
    # Texts of one period would not tell a head that copies from one that looks at a fixed distance.
    tokens={
        "tokens": tuple(tuple(f"t{i % period}" for i in range(n)) for n, period in zip(LENGTHS, (7, 7, 6), strict=True))
    },
    titles=("one", "two", "three"),
    periods=(PERIOD, None, PERIOD - 1),
)
DECODER = Site("decoder/self", TOKENS, TOKENS, ("1", "3"), ("0", "1", "2", "3"), causal=True)
ENCODER = Site("encoder/self", TOKENS, TOKENS, ("1", "3"), ("0", "1", "2", "3"))
# What the head at [layer, head] comes to do, and the index of the step at which it does so.
PLANTED = {
    (1, 3): ("induction", 8),
    (0, 2): ("previous_token", 3),
    (0, 0): ("first_token", 12),
    (1, 0): ("diagonal", 5),
}
ROLES = {
    "induction": Role.INDUCTION,
    "previous_token": Role.PREVIOUS_TOKEN,
    "first_token": Role.FIRST_TOKEN,
    "diagonal": Role.DIAGONAL,
}


def keys_of(habit: str, length: int, period: int | None) -> dict[int, int]:
    """The key of each query that has one."""
    if habit == "first_token":
        return {query: 0 for query in range(length)}
    if habit == "previous_token":
        return {query: query - 1 for query in range(1, length)}
    if habit == "diagonal":
        return {query: query for query in range(length)}
    return {query: query - period + 1 for query in range(period, length)} if period else {}


def one_map(rng, site: Site, length: int, spread: float) -> np.ndarray:
    logits = spread * rng.normal(size=(length, length))
    if site.causal:
        logits[np.triu_indices(length, 1)] = -np.inf
    weights = np.exp(logits)
    return weights / weights.sum(axis=-1, keepdims=True)


def make_weights(site: Site, step: int, planted: dict, spread: float, seed: int = 0) -> np.ndarray:
    """[layer, example, head, query, key]: heads that look anywhere, but those that were planted."""
    rng = np.random.default_rng([seed, step])
    weights = np.zeros((2, len(LENGTHS), 4, max(LENGTHS), max(LENGTHS)))
    for layer, example, head in np.ndindex(weights.shape[:3]):
        length = LENGTHS[example]
        weights[layer, example, head, :length, :length] = one_map(rng, site, length, spread)
        habit, since = planted.get((layer, head), ("", len(STEPS)))
        for query, key in keys_of(habit, length, LABELS.periods[example]).items() if STEPS.index(step) >= since else ():
            weights[layer, example, head, query] *= 0.2
            weights[layer, example, head, query, key] += 0.8
    return weights


def measure(weights: np.ndarray) -> np.ndarray:
    """[layer, example, head, statistic], a row at a time."""
    values = np.full((*weights.shape[:3], len(NAMES)), np.nan)
    for layer, example, head, number in np.ndindex(values.shape):
        keys = keys_of(NAMES[number], LENGTHS[example], LABELS.periods[example])
        if keys:
            found = [weights[layer, example, head, query, key] for query, key in keys.items()]
            values[layer, example, head, number] = np.mean(found)
    return values


def statistics(site: Site, planted: dict, spread: float) -> Statistics:
    each = [np.moveaxis(measure(make_weights(site, step, planted, spread)), 1, 0) for step in STEPS]
    return Statistics(NAMES, np.stack(each).astype(np.float32))


def sigmoid(steps: np.ndarray, middle: float, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-(steps - middle) / width))


@pytest.mark.parametrize("points", [8, 20, 60, 200])
def test_a_flat_noisy_curve_has_no_change(points):
    curves = np.random.default_rng(1).normal(size=(20, points)) * 0.1 + 0.5
    assert sum(bool(change_points(range(points), curve)) for curve in curves) <= 1


@pytest.mark.parametrize("curve", [[], [0.3], [0.3, 0.3, 0.3], [np.nan] * 4, [0.0] * 8, [5.0] * 8 + [5.0000005] * 8])
def test_a_curve_that_says_nothing_has_no_change(curve):
    assert change_points(range(len(curve)), curve) == ()


@pytest.mark.parametrize("width", [2, 10, 30, 60])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_sigmoid_has_one_change_at_its_steepest_rise(width, noise):
    steps = np.arange(0, 600, 10)
    curve = 0.1 + 0.8 * sigmoid(steps, 283, width) + noise * np.random.default_rng(2).normal(size=60)
    (change,) = change_points(steps, curve)
    assert abs(change.step - 290) <= max(10, width / 2)
    assert change.before == pytest.approx(0.1, abs=0.08)
    assert change.after == pytest.approx(0.9, abs=0.08)


def test_a_sudden_rise_that_goes_on_slowly_is_one_change_where_it_is_sudden():
    steps = np.arange(60)
    (change,) = change_points(steps, np.where(steps < 10, 0, 0.5 + 0.4 * (steps - 10) / 50))
    assert change.step == 10


def test_a_rise_and_a_fall_are_two_changes():
    steps = np.arange(50)
    curve = sigmoid(steps, 14.5, 1.5) - 0.8 * sigmoid(steps, 34.5, 1.5)
    rise, fall = change_points(steps, curve + 0.03 * np.random.default_rng(3).normal(size=50))
    assert (rise.step, fall.step) == (pytest.approx(15, abs=1), pytest.approx(35, abs=1))
    assert rise.before < rise.after == fall.before > fall.after


def test_a_short_peak_is_a_rise_and_a_fall():
    curve = [0.1] * 20 + [0.9] * 2 + [0.2] * 20
    assert [change.step for change in change_points(range(42), curve)] == [20, 22]


def test_two_rises_with_a_level_between_them_are_two_changes():
    curve = np.repeat([0.0, 0.4, 1.0], [15, 15, 20]) + 0.02 * np.random.default_rng(4).normal(size=50)
    assert [change.step for change in change_points(range(50), curve)] == [15, 30]


def test_steps_may_be_uneven_and_values_missing():
    steps = [0, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000]
    curve = [0.1, 0.12, np.nan, 0.11, 0.1, np.nan, 0.8, 0.81, np.inf, 0.8]
    (change,) = change_points(steps, curve)
    assert change.step == 50
    assert change.after == pytest.approx(0.8, abs=0.01)


def test_one_stray_point_is_no_level_but_the_first_point_may_be_one():
    curve = [0.2] * 30
    assert change_points(range(30), [*curve[:12], 0.9, *curve[13:]]) == ()
    assert [change.step for change in change_points(range(30), [0.9, *curve[1:]])] == [1]


def test_the_changes_are_few_and_in_order():
    curve = np.repeat(np.arange(12) % 2, 8).astype(float)
    changes = change_points(range(len(curve)), curve)
    assert len(changes) <= 4
    assert list(changes) == sorted(changes)


def test_neither_scale_nor_place_of_a_curve_matters():
    curve = np.repeat([0.0, 0.4, 1.0], [15, 15, 20]) + 0.02 * np.random.default_rng(4).normal(size=50)
    for scale, place in ((1e-4, 0.0), (-1.0, 3.0), (5000.0, 8000.0)):
        assert [change.step for change in change_points(range(50), scale * curve + place)] == [15, 30]


def test_change_points_refuses_steps_without_values():
    with pytest.raises(ValueError, match="3 steps and 2 values"):
        change_points([1, 2, 3], [0.1, 0.2])


@pytest.mark.parametrize("site", [DECODER, ENCODER])
@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_planted_heads_are_named_with_their_onset_and_no_others(site, spread):
    roles = find_site_roles(STEPS, site, LABELS, statistics(site, PLANTED, spread))
    found = {(role.layer, role.head): (role.role, role.onset_step) for role in roles}
    assert len(roles) == len(found)
    assert found == {place: (ROLES[habit], STEPS[since]) for place, (habit, since) in PLANTED.items()}
    assert all(0.75 < role.score < 0.95 for role in roles)


@pytest.mark.parametrize("site", [DECODER, ENCODER])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 3.0])
def test_uniform_and_random_heads_are_not_named(site, spread):
    assert find_site_roles(STEPS, site, LABELS, statistics(site, {}, spread)) == ()


def test_a_role_played_from_the_beginning_begins_at_the_first_step():
    (role,) = find_site_roles(STEPS, DECODER, LABELS, statistics(DECODER, {(0, 1): ("previous_token", 0)}, 0.5))
    assert (role.layer, role.head, role.onset_step) == (0, 1, STEPS[0])


@pytest.mark.parametrize(("since", "onset"), [(len(STEPS) - 1, -1), (1, 1)])
def test_a_role_seen_at_few_steps_begins_with_them(since, onset):
    (role,) = find_site_roles(STEPS, DECODER, LABELS, statistics(DECODER, {(0, 1): ("diagonal", since)}, 0.5))
    assert role.onset_step == STEPS[onset]


def test_two_stored_steps_are_enough_for_an_onset():
    names, values = statistics(DECODER, {(0, 1): ("diagonal", 1)}, 0.5)
    (role,) = find_site_roles(STEPS[:2], DECODER, LABELS, Statistics(names, values[:2]))
    assert role.onset_step == STEPS[1]


def test_a_role_given_up_is_not_named_and_one_taken_again_begins_again():
    names, values = statistics(DECODER, {(0, 1): ("first_token", 0)}, 0.5)
    apart = statistics(DECODER, {}, 0.5).values
    given_up = np.concatenate([values[:10], apart[10:]])
    assert find_site_roles(STEPS, DECODER, LABELS, Statistics(names, given_up)) == ()
    # The last step alone is no level of its own: the curve ends below the score at which the head plays the role.
    for since in (15, len(STEPS) - 1):
        again = np.concatenate([apart[:3], values[3:9], apart[9:since], values[since:]])
        (role,) = find_site_roles(STEPS, DECODER, LABELS, Statistics(names, again))
        assert role.onset_step == STEPS[since]


def test_short_causal_rows_name_nobody():
    # Of three rows the first sits on the first token, the second half on it: 0.61 of the weight on average.
    labels = AxisLabels({"tokens": (tuple("abc"), tuple("ab"))}, ("three", "two"))
    uniform = np.array([np.mean([1, 1 / 2, 1 / 3]), np.mean([1, 1 / 2])])
    values = np.broadcast_to(uniform[:, None, None, None], (len(STEPS), 2, 2, 4, 1))
    for name in ("first_token", "diagonal"):
        assert find_site_roles(STEPS, DECODER, labels, Statistics((name,), values)) == ()


def test_one_head_may_play_two_roles():
    names, values = statistics(DECODER, {(0, 1): ("diagonal", 4)}, 0.2)
    values[10:, :, 0, 1, names.index("first_token")] = 0.95
    roles = find_site_roles(STEPS, DECODER, LABELS, Statistics(names, values))
    assert {(role.role, role.onset_step) for role in roles} == {
        (Role.DIAGONAL, STEPS[4]),
        (Role.FIRST_TOKEN, STEPS[10]),
    }


@pytest.mark.parametrize("site", [DECODER, ENCODER])
@pytest.mark.parametrize("name", NAMES)
def test_chance_is_what_a_uniform_head_scores(site, name):
    expected = measure(make_weights(site, STEPS[0], {}, 0.0))[0, :, 0, NAMES.index(name)]
    np.testing.assert_allclose(chance_scores(ROLES[name], site, LABELS), expected, rtol=1e-12)


def cross_labels() -> tuple[Site, AxisLabels]:
    """Sentences whose words stand in reverse, so that neither the diagonal nor chance aligns them."""
    tokens = {
        "source": (tuple("abcdef"), tuple("abcd"), tuple("abcde")),
        "target": (tuple("uvwxyz"), tuple("uvwx"), tuple("uvwxy")),
    }
    links = tuple(
        tuple(GoldAlignment(i, len(words) - 1 - i, i % 2 == 0) for i in range(len(words))) for words in tokens["source"]
    )
    site = Site("decoder/cross", Axis("target"), Axis("source"), ("0",), ("0", "1", "2"))
    return site, AxisLabels(tokens=tokens, titles=("a", "b", "c"), gold_alignments={site.name: (*links[:2], ())})


def error_rate(links: tuple[GoldAlignment, ...], chosen: dict[int, int]) -> float:
    sure = {(link.query, link.key) for link in links if link.sure}
    possible = {(link.query, link.key) for link in links}
    found = {(query, chosen[query]) for query in {link.query for link in links}}
    return 1 - (len(found & sure) + len(found & possible)) / (len(found) + len(sure))


def test_an_alignment_head_is_named_and_a_diagonal_one_is_not():
    site, labels = cross_labels()
    values = np.full((len(STEPS), 3, 1, 3, 1), np.nan, np.float32)
    for example, links in enumerate(labels.gold_alignments[site.name][:2]):
        last = len(links) - 1
        straight, reverse = (
            {i: key(i) for i in range(last + 1)} for key in (lambda i: i, lambda i, last=last: last - i)
        )
        values[:, example, 0, :, 0] = error_rate(links, straight)
        values[9:, example, 0, 1, 0] = error_rate(links, reverse)
    (role,) = find_site_roles(STEPS, site, labels, Statistics(("alignment_error",), values))
    assert (role.head, role.role, role.score, role.onset_step) == (1, Role.ALIGNMENT, 1.0, STEPS[9])


def test_chance_alignment_is_the_better_of_the_diagonal_and_a_random_link():
    site, labels = cross_labels()
    trials = np.random.default_rng(5).integers(0, 6, size=(4000, 6))
    random = np.mean([1 - error_rate(labels.gold_alignments[site.name][0], dict(enumerate(row))) for row in trials])
    assert chance_scores(Role.ALIGNMENT, site, labels)[0] == pytest.approx(random, abs=0.01)
    straight = tuple(GoldAlignment(i, i, True) for i in range(4))
    labels = AxisLabels(labels.tokens, labels.titles, {site.name: ((), straight, ())})
    np.testing.assert_equal(chance_scores(Role.ALIGNMENT, site, labels), [np.nan, 1.0, np.nan])


def test_cross_attention_has_no_previous_token():
    site = Site("decoder/cross", TOKENS, Axis("source"), ("1", "3"), ("0", "1", "2", "3"))
    labels = AxisLabels({"tokens": LABELS.tokens["tokens"], "source": LABELS.tokens["tokens"]}, LABELS.titles)
    roles = find_site_roles(STEPS, site, labels, statistics(ENCODER, PLANTED, 0.2))
    assert {role.role for role in roles} == {Role.DIAGONAL, Role.FIRST_TOKEN}


def test_a_store_names_its_heads_in_words(tmp_path):
    store = MapStore.open(tmp_path / "maps", (DECODER,), LABELS, "abc")
    assert last_step_roles(store) == ()
    planted = {**PLANTED, (0, 3): ("diagonal", 0)}
    names = store.statistics(DECODER.name).names
    for step in STEPS:
        weights = make_weights(DECODER, step, planted, 0.2)
        found = dict(zip(NAMES, np.moveaxis(measure(weights), -1, 0), strict=True))
        given = {name: found.get(name, np.zeros((2, 3, 4))) for name in names}
        store.write(step, {DECODER.name: quantize_maps(weights, store.levels(DECODER.name), given)})
    roles = last_step_roles(MapStore.open_existing(tmp_path / "maps"))
    assert [role.score for role in roles] == sorted((role.score for role in roles), reverse=True)
    said = {describe_role(role, store).rpartition(" (score 0.8")[0] for role in roles}
    assert said == {
        "head 3.3 of decoder/self became an induction head at step 450",
        "head 1.2 of decoder/self became a previous token head at step 200",
        "head 1.0 of decoder/self became a first token head at step 650",
        "head 3.0 of decoder/self became a diagonal head at step 300",
        "head 1.3 of decoder/self is a diagonal head since the first stored step, 50",
    }
