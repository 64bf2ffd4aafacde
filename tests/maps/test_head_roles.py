"""Hand-made heads, each doing one thing: each is called by what it does, and heads that do nothing of it by nothing."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.maps.conftest import write_long_run, write_run
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.interpret.role_onset import name_role, parse_role
from transformer.maps.head_roles import (
    NEAR_UNIFORM,
    RoleAssessment,
    RoleEvidence,
    WholeRows,
    classify_heads,
    heads_with_role,
    score_role,
)
from transformer.maps.report.head_history import HeadRole, describe_role, last_step_roles
from transformer.maps.report.role_descriptions import ROLE_TEXTS, describe_all_roles, read_sample_rows, roles_data
from transformer.maps.role_rules import MIN_ROLE_SCORE, Band, Role, is_punctuation, is_special
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

TEXTS = (
    ["<s>", "the", "cat", "saw", "the", "dog", ",", "and", "the", "dog", "saw", "the", "cat", ".", "</s>"],
    ["<s>", "a", "dog", ",", "a", "wolf", ",", "and", "a", "dog", ",", "saw", "a", "cat", "."],
    ["<s>", "the", "dog", "and", "the", "cat", "saw", "a", "cat", "and", "the", "dog", "."],
)
AXIS = Axis("text")
CAUSAL = Site("decoder/self", AXIS, AXIS, ("0",), ("0",), causal=True)
BOTH_WAYS = Site("encoder/self", AXIS, AXIS, ("0",), ("0",))
LABELS = AxisLabels({"text": tuple(map(tuple, TEXTS))}, ("one", "two", "three"))


def keys_of(habit: str, words: list[str], query: int, seen: int) -> list[int]:
    """Where a head of a habit looks from a query, spelled out by hand."""
    if habit.startswith("by "):
        wanted = [query + int(habit[3:])]
    elif habit == "first":
        wanted = [0]
    elif habit == "third":
        wanted = [2]
    elif habit == "delimiters":
        wanted = [k for k, word in enumerate(words) if word in ("<s>", "</s>", ",", ".")]
    elif habit == "punctuation":
        wanted = [k for k, word in enumerate(words) if word in (",", ".")]
    elif habit == "same":
        wanted = [k for k, word in enumerate(words) if word == words[query] and k != query]
    elif habit == "behind the same":
        wanted = [k for k in range(1, query + 1) if words[k - 1] == words[query]]
    else:
        once = [k for k, word in enumerate(words) if sum(text.count(word) for text in TEXTS) == 1]
        wanted = [k for k in once if k != query]
    return [key for key in wanted if 0 <= key < seen]


def planted(habit: str, site: Site, strength: float, texts: tuple[list[str], ...] = TEXTS) -> WholeRows:
    """One head: `strength` of each row on the habit's keys, the rest spread over all that the row sees."""
    longest = max(map(len, texts))
    weights = np.zeros((len(texts), 1, 1, longest, longest))
    for example, words in enumerate(texts):
        for query in range(len(words)):
            seen = query + 1 if site.causal else len(words)
            keys = keys_of(habit, words, query, seen) if habit else []
            weights[example, 0, 0, query, :seen] = (1 - strength if keys else 1) / seen
            for key in keys:
                weights[example, 0, 0, query, key] += strength / len(keys)
    return WholeRows(tuple(range(longest)), weights)


def by_hand(habit: str, site: Site, rows: WholeRows) -> tuple[float, float]:
    """The share of weight on the habit's keys and that of an even head, added up one weight at a time."""
    shares, evens = [], []
    for example, words in enumerate(TEXTS):
        share, even = [], []
        for query in range(len(words)):
            seen = query + 1 if site.causal else len(words)
            keys = keys_of(habit, words, query, seen)
            if keys:
                share.append(math.fsum(rows.weights[example, 0, 0, query, key] for key in keys))
                even.append(len(keys) / seen)
        if share:
            shares.append(math.fsum(share) / len(share))
            evens.append(math.fsum(even) / len(even))
    return math.fsum(shares) / len(shares), math.fsum(evens) / len(evens)


def best(reading: RoleAssessment) -> RoleEvidence:
    """The first evidence; a head always has some where a row sees several keys."""
    return reading.evidence[0]


def only(readings: tuple[RoleAssessment, ...]) -> RoleAssessment:
    (reading,) = readings
    return reading


HABITS = {
    "by -1": (Role.PREVIOUS_TOKEN, -1),
    "by -3": (Role.DISTANCE, -3),
    "by 0": (Role.DIAGONAL, 0),
    "first": (Role.FIRST_TOKEN, 0),
    "delimiters": (Role.DELIMITER, 0),
    "punctuation": (Role.PUNCTUATION, 0),
    "same": (Role.SAME_TOKEN, 0),
    "behind the same": (Role.INDUCTION, 0),
    "third": (Role.SINGLE_KEY, 0),
    "rare": (Role.RARE_TOKEN, 0),
}
CASES = [(site, habit, *role) for site in (CAUSAL, BOTH_WAYS) for habit, role in HABITS.items()]
CASES += [(BOTH_WAYS, "by 1", Role.NEXT_TOKEN, 1), (BOTH_WAYS, "by 4", Role.DISTANCE, 4)]


@pytest.mark.parametrize(
    ("site", "habit", "role", "distance"), CASES, ids=[f"{site.name}-{habit}" for site, habit, *_ in CASES]
)
def test_a_head_is_called_by_what_it_does(site, habit, role, distance):
    rows = planted(habit, site, 0.85)
    reading = only(classify_heads(rows, site, LABELS))
    assert reading.role is role
    evidence = best(reading)
    assert evidence.band == (Band(distance, distance) if role is Role.DISTANCE else None)
    share, even = by_hand(habit, site, rows)
    assert evidence.weight == pytest.approx(share, abs=1e-9)
    assert evidence.uniform == pytest.approx(even, abs=1e-9)
    assert evidence.score == pytest.approx((share - even) / (1 - even), abs=1e-9)


@pytest.mark.parametrize("key", [0, 1])
def test_any_slot_can_be_the_one_place_of_a_head(key):
    axes = Axis("step", AxisKind.SLOTS, num_positions=6), Axis("slot", AxisKind.SLOTS, num_positions=10)
    weights = np.full((1, 1, 1, 6, 10), 0.02)
    weights[..., key] = 0.82
    labels = AxisLabels({}, ("an example",))
    site = Site("memory/read", *axes, layers=("0",), heads=("0",))
    reading = only(classify_heads(WholeRows(tuple(range(6)), weights), site, labels.with_axis_names((site,))))
    assert reading.role is Role.SINGLE_KEY
    assert (best(reading).weight, best(reading).uniform) == (pytest.approx(0.82), pytest.approx(0.1))


@pytest.mark.parametrize(("strength", "plays"), [(MIN_ROLE_SCORE - 0.02, False), (MIN_ROLE_SCORE + 0.02, True)])
def test_the_threshold_is_a_share_of_the_way_from_even_to_all(strength, plays):
    # What is spread evenly lies on the role's keys too: the strength of a planted habit is its score.
    reading = only(classify_heads(planted("by -1", BOTH_WAYS, strength), BOTH_WAYS, LABELS))
    scores = score_role(Role.PREVIOUS_TOKEN, planted("by -1", BOTH_WAYS, strength), BOTH_WAYS, LABELS)
    assert scores.scores_LxH.item() == pytest.approx(strength, abs=0.01)
    assert (reading.role is Role.PREVIOUS_TOKEN) == plays == scores.plays_LxH.item()


@pytest.mark.parametrize("site", [CAUSAL, BOTH_WAYS])
def test_an_even_head_has_no_role_and_a_random_one_neither(site):
    even = only(classify_heads(planted("", site, 0), site, LABELS))
    assert (even.plays, even.uniformity) == (False, pytest.approx(1))
    part = planted("", site, 0).weights * (np.arange(15) % 3 > 0)
    part /= np.maximum(part.sum(axis=-1, keepdims=True), 1e-12)
    fractions = [
        [
            sum(key % 3 > 0 for key in range(visible)) / visible
            for visible in (range(3, len(words) + 1) if site.causal else [len(words)])
        ]
        for words in TEXTS
    ]
    assert only(classify_heads(WholeRows(tuple(range(15)), part), site, LABELS)).uniformity == pytest.approx(
        np.mean([np.mean(fraction) for fraction in fractions])
    )
    assert all(one.score == pytest.approx(0, abs=1e-9) for one in even.evidence)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weights = planted("", site, 0).weights * np.exp(1.5 * rng.normal(size=(3, 1, 1, 15, 15)))
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)
        reading = only(classify_heads(WholeRows(tuple(range(15)), weights), site, LABELS))
        assert not reading.plays
        assert all(one.score < MIN_ROLE_SCORE for one in reading.evidence)
        assert reading.uniformity < NEAR_UNIFORM


def test_padding_says_nothing():
    rows = planted("by -1", BOTH_WAYS, 0.9)
    padded = np.full((3, 1, 1, 20, 20), 0.7)
    for example, words in enumerate(TEXTS):
        padded[example, ..., : len(words), : len(words)] = rows.weights[example, ..., : len(words), : len(words)]
    assert classify_heads(WholeRows(tuple(range(20)), padded), BOTH_WAYS, LABELS) == classify_heads(
        rows, BOTH_WAYS, LABELS
    )


def test_what_few_rows_could_show_is_not_judged():
    # Of five words only two rows reach three back, and one word stands twice.
    words = ["to", "be", "or", "to", "do"]
    labels = AxisLabels({"text": (tuple(words),)}, ("one",))
    for habit in ("by -3", "same"):
        rows = planted(habit, CAUSAL, 1.0, (words,))
        assert best(only(classify_heads(rows, CAUSAL, labels))).role not in (
            Role.DISTANCE,
            Role.SAME_TOKEN,
            Role.INDUCTION,
        )
    single = classify_heads(WholeRows((0,), np.ones((1, 1, 1, 1, 1))), CAUSAL, AxisLabels({"text": (("a",),)}, ("",)))
    assert single == (RoleAssessment(0, 0),)


def test_induction_is_judged_on_texts_that_repeat_where_there_are_any():
    # A symbol that stands twice within a period makes no other key the right one.
    symbols = ["t0", "t1", "t2", "t0", "t4", "t5", "t6"]
    texts = (symbols * 2, TEXTS[0])
    labels = AxisLabels({"text": tuple(map(tuple, texts))}, ("random", "words"), periods=(7, None))
    rows = planted("first", CAUSAL, 0.9, texts)
    rows.weights[0] = planted("by -6", CAUSAL, 0.9, texts).weights[0]
    rows.weights[0, ..., :7, :7] = planted("", CAUSAL, 0, texts).weights[0, ..., :7, :7]
    reading = only(classify_heads(rows, CAUSAL, labels))
    assert reading.role is Role.INDUCTION
    # From the seventh symbol on each row reads one key of the q + 1 that it sees.
    assert best(reading).uniform == pytest.approx(np.mean([1 / (q + 1) for q in range(7, 14)]))


def cross() -> tuple[Site, AxisLabels, np.ndarray]:
    """Two sentences whose words stand in reverse, and a head that follows them."""
    sides = {"source": (tuple("abcdef"), tuple("ghijk")), "target": (tuple("uvwxyz"), tuple("opqrs"))}
    links = tuple(tuple(GoldAlignment(i, len(s) - 1 - i, i % 2 == 0) for i in range(len(s))) for s in sides["source"])
    site = Site("decoder/cross", Axis("target"), Axis("source"), ("0",), ("0",))
    weights = np.zeros((2, 1, 1, 6, 6))
    for example, length in enumerate((6, 5)):
        weights[example, 0, 0, :length, :length] = 0.5 * np.eye(length)[::-1] + 0.5 / length
    return site, AxisLabels(sides, ("a", "b"), gold_alignments={site.name: links}), weights


def test_a_head_that_follows_the_links_aligns():
    site, labels, weights = cross()
    reading = only(classify_heads(WholeRows(tuple(range(6)), weights), site, labels))
    assert (reading.role, best(reading).weight, best(reading).rows) == (Role.ALIGNMENT, 1.0, 11)
    straight = only(classify_heads(WholeRows(tuple(range(6)), weights[..., ::-1, :]), site, labels))
    assert straight.role is not Role.ALIGNMENT
    # Nothing between two sequences is a previous token.
    roles = {one.role for each in (reading, straight) for one in each.evidence}
    assert roles.isdisjoint({Role.PREVIOUS_TOKEN, Role.DISTANCE, Role.RECENT_TOKENS, Role.INDUCTION})


@pytest.mark.parametrize("positions", [(0,), (0, 1, 2), (0, 5)])
def test_a_part_of_the_rows_says_nothing_of_alignment(positions):
    # As a run of a small budget stores them: the row of the first query alone, or some.
    site, labels, weights = cross()
    reading = only(classify_heads(WholeRows(positions, weights[..., list(positions), :]), site, labels))
    assert Role.ALIGNMENT not in {one.role for one in reading.evidence}


def test_a_head_that_follows_the_links_is_called_by_what_the_task_says_it_reads(tmp_path):
    site, labels, _ = cross()
    for linked, name, does, said in (
        (None, "alignment", "reads the {token} that belongs to it", "an alignment head"),
        ("the antecedent", "the antecedent", "reads the antecedent", "a head that reads the antecedent"),
    ):
        MapStore.open(tmp_path / str(linked), (site,), dataclasses.replace(labels, gold_key_description=linked), "abc")
        kept = MapStore.open_existing(tmp_path / str(linked)).labels
        words = describe_all_roles(kept)
        assert (words[Role.ALIGNMENT].name, words[Role.ALIGNMENT].does) == (name, does)
        assert {role: each for role, each in words.items() if role is not Role.ALIGNMENT}.items() <= ROLE_TEXTS.items()
        store = SimpleNamespace(steps=(1,), site=lambda _: site, labels=kept)
        assert f"became {said} at step 7" in describe_role(HeadRole(site.name, 0, 0, Role.ALIGNMENT, 1.0, 7), store)


def test_patches_and_slots_have_no_tokens_to_be_the_same():
    slots = Axis("slots", AxisKind.SLOTS, num_positions=9)
    site = Site("memory/self", slots, slots, ("0",), ("0",))
    labels = AxisLabels({"slots": (slots.names(),)}, ("one",))
    for habit, role in (("by 0", Role.DIAGONAL), ("by -1", None)):
        reading = only(classify_heads(planted(habit, site, 0.9, (list(slots.names()),)), site, labels))
        assert reading.role is role


def test_a_head_that_reads_the_patches_around_its_own_is_called_so():
    """Four by five patches behind a class token: a row's end and the next row's beginning do not touch."""
    patches = Axis("patches", AxisKind.GRID, shape=(4, 5), stride=8.0, num_leading_positions=1)
    site = Site("encoder/self", patches, patches, ("0",), ("0",))
    labels = AxisLabels({"patches": (patches.names(),)}, ("one",))
    places = np.indices((4, 5)).reshape(2, -1)
    steps = np.abs(places[:, :, None] - places[:, None]).max(axis=0)

    def reading_of(near_PxP: np.ndarray) -> RoleAssessment:
        weights = np.full((1, 1, 1, 21, 21), 0.1 / 21)
        weights[0, 0, 0, 0] = 1 / 21
        weights[0, 0, 0, 1:, 1:] += 0.9 * near_PxP / near_PxP.sum(axis=-1, keepdims=True)
        return only(classify_heads(WholeRows(tuple(range(21)), weights), site, labels))

    touching = steps <= 1
    reading = reading_of(touching)
    assert (reading.role, best(reading).band) == (Role.NEARBY, None)
    # The class token's own row has no patch around it, and counts on neither side.
    count = touching.sum(axis=-1)
    assert best(reading).weight == pytest.approx((0.9 + 0.1 * count / 21).mean())
    assert best(reading).uniform == pytest.approx((count / 21).mean())
    # In a ring of two patches' distance nothing touches; of one's own place alone less says more.
    assert reading_of(steps == 2).role is not Role.NEARBY
    assert reading_of(np.eye(20)).role is Role.DIAGONAL


@pytest.mark.parametrize("token", ["</s>", "<|endoftext|>", "[SEP]", ",", "▁-", "▁", " ", "", "\n", "…"])
def test_marks_are_special_tokens_punctuation_and_spaces(token):
    assert is_special(token) or is_punctuation(token)


@pytest.mark.parametrize("token", ["the", "▁a", "<0xE8>", "7", "$", "<", "don't"])
def test_text_is_no_mark(token):
    assert not is_special(token)
    assert not is_punctuation(token)


def test_the_page_says_what_the_maps_of_its_last_step_say(tmp_path):
    run = write_run(tmp_path, steps=(100, 1600))
    store = MapStore.open_existing(tmp_path / "maps")
    told = roles_data(store)
    assert told["step"] == 1600
    assert [kind["role"] for kind in told["kinds"]] == [role.value for role in ROLE_TEXTS]
    assert set(ROLE_TEXTS) == set(Role)
    roles, heads = list(ROLE_TEXTS), iter(told["heads"])
    for number, site in enumerate(run.sites):
        maps = np.moveaxis(run.maps[1600][site.name], 1, 0)
        for reading in classify_heads(WholeRows(tuple(range(20)), maps), site, run.labels):
            s, layer, head, plays, evidence, uniformity, simpler = next(heads)
            assert simpler == [[rule.value, number] for rule, number in reading.ambiguous_with]
            assert (s, layer, head, plays) == (number, reading.layer, reading.head, reading.plays)
            assert uniformity == pytest.approx(100 * reading.uniformity, abs=1)
            assert len(evidence) == len(reading.evidence) in (1, 2)
            for (role, band, share, even, score, rows), one in zip(evidence, reading.evidence, strict=True):
                assert (roles[role], rows, tuple(band)) == (one.role, one.rows, one.band or (0, 0))
                assert [share, even, score] == pytest.approx([100 * each for each in one[1:4]], abs=1)
    # Where the timelines judge a role by its statistics, a head that plays it here plays it there.
    known = {(role.site, role.layer, role.head, role.role): role.score for role in last_step_roles(store)}
    timed = [Role.PREVIOUS_TOKEN, Role.FIRST_TOKEN, Role.DIAGONAL]
    shares = {
        (run.sites[s].name, layer, head, roles[role]): share
        for s, layer, head, plays, [(role, _, share, *_), *_], *_ in told["heads"]
        if plays and roles[role] in timed and run.sites[s].name != "decoder/cross"
    }
    assert len(shares) >= 4
    assert shares == pytest.approx({place: 100 * known[place] for place in shares}, abs=1.5)


def test_of_maps_that_are_not_whole_the_whole_rows_are_read(tmp_path):
    run = write_long_run(tmp_path)
    store = MapStore.open_existing(tmp_path / "maps")
    rows = read_sample_rows(store, run.sites[0], 40)
    assert len(rows.positions) == 4
    np.testing.assert_allclose(
        rows.weights[0, 1, 2], run.maps[40]["decoder/self"][1, 0, 2, list(rows.positions)], atol=0.01
    )
    named = {(layer, head): evidence[0][0] for _, layer, head, _, evidence, *_ in roles_data(store)["heads"]}
    assert named[0, 0] == list(ROLE_TEXTS).index(Role.FIRST_TOKEN)


@pytest.mark.parametrize(("habit", "role"), [("by -1", Role.PREVIOUS_TOKEN), ("behind the same", Role.INDUCTION)])
@pytest.mark.parametrize("strength", [0.1, 0.5, 0.85])
def test_the_score_of_one_role_is_that_of_its_keys(habit, role, strength):
    rows = planted(habit, CAUSAL, strength)
    scores = score_role(role, rows, CAUSAL, LABELS)
    share, even = by_hand(habit, CAUSAL, rows)
    assert scores.scores_LxH.tolist() == [[pytest.approx((share - even) / (1 - even), abs=1e-9)]]
    assert scores.plays_LxH.tolist() == [[strength > MIN_ROLE_SCORE]]
    assert heads_with_role(role, rows, CAUSAL, LABELS) == ({(0, 0)} if strength > MIN_ROLE_SCORE else set())


def test_the_guide_names_every_role_as_the_page_and_as_commands_do() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "reports.md").read_text(encoding="utf-8")
    table = guide.partition("| in commands |")[2].partition("\n\n")[0]
    rows = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in table.splitlines()[2:]}
    assert rows == {
        (text.name.replace("{token}", "token"), text.badge or "−3", name_role(role))
        for role, text in ROLE_TEXTS.items()
    }
    assert all(parse_role(name_role(role)) is role for role in Role)
