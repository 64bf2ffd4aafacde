"""Hand-made heads that read a band, a word, special tokens, or by position alone; near misses; and heads of chance."""

from collections.abc import Callable

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.maps.head_roles import RoleAssessment, WholeRows, classify_heads
from transformer.maps.role_rules import Band, Role, number_words
from transformer.tasks.axis_labels import AxisLabels

AXIS = Axis("text")
CAUSAL = Site("decoder/self", AXIS, AXIS, ("0",), ("0",), causal=True)
BOTH_WAYS = Site("encoder/self", AXIS, AXIS, ("0",), ("0",))

# Letters, with words of two to nine of them at other places in each text.
LETTERS = tuple(
    tuple(text)
    for text in (
        "to measure an instrument we compare a few of its outputs",
        "seventeen old ships lay in harbor, waiting for better wind",
        "a short note. the remaining chapters explain every detail.",
        "nobody remembers who painted them; it was long ago, surely",
    )
)
# Pieces of words behind a class token, and separators in the middle and at the end.
PIECES = (
    ("[CLS]", "▁un", "believ", "able", "▁news", "[SEP]", "▁he", "▁re", "peat", "ed", ".", "▁well", "[SEP]"),
    ("[CLS]", "▁dis", "advant", "age", ",", "▁more", "[SEP]", "▁un", "fold", "[SEP]"),
    ("[CLS]", "▁so", "▁it", "[SEP]", "▁re", "organ", "ized", "▁inter", "nation", "al", "▁trade", "▁now", ".", "[SEP]"),
    ("[CLS]", "▁well", "[SEP]", "▁cata", "log", "s", "▁of", ",", "▁more", "▁or", "▁less", "[SEP]"),
)
Text = tuple[str, ...]
Habit = Callable[[Text, int], list[int]]


def labels_of(texts: tuple[Text, ...]) -> AxisLabels:
    return AxisLabels({"text": texts}, tuple(f"text {number}" for number in range(len(texts))))


def planted(habit: Habit, site: Site, texts: tuple[Text, ...], strength: float = 0.9) -> WholeRows:
    """A head with `strength` of each row on the habit's keys, the rest and rows without any spread evenly."""
    longest = max(map(len, texts))
    weights = np.zeros((len(texts), 1, 1, longest, longest))
    for example, text in enumerate(texts):
        for query in range(len(text)):
            visible = query + 1 if site.causal else len(text)
            keys = [key for key in habit(text, query) if 0 <= key < visible]
            weights[example, 0, 0, query, :visible] = (1 - strength if keys else 1) / visible
            for key in keys:
                weights[example, 0, 0, query, key] += strength / len(keys)
    return WholeRows(tuple(range(longest)), weights)


def read(habit: Habit, site: Site, texts: tuple[Text, ...], strength: float = 0.9) -> RoleAssessment:
    (reading,) = classify_heads(planted(habit, site, texts, strength), site, labels_of(texts))
    return reading


def in_band(first: int, last: int) -> Habit:
    return lambda text, query: list(range(query + first, query + last + 1))


def word_spans(text: Text) -> list[tuple[int, int]]:
    """The first position of every word and the one behind it, spelled out: breaks lie at marks and before a space."""
    spans: list[tuple[int, int]] = []
    begin = None
    for position, token in enumerate((*text, " ")):
        is_break = token in " .,;" or token in ("[CLS]", "[SEP]")
        if begin is not None and (is_break or token.startswith("▁")):
            spans.append((begin, position))
            begin = None
        if begin is None and not is_break:
            begin = position
    return spans


def word_back(count: int) -> Habit:
    """The other tokens of the query's word, or all of the one that lies `count` words before it."""

    def keys(text: Text, query: int) -> list[int]:
        spans = word_spans(text)
        for number, (begin, end) in enumerate(spans):
            if begin <= query < end and number >= count:
                return [key for key in range(*spans[number - count]) if key != query]
        return []

    return keys


def tokens_among(tokens: str | tuple[str, ...]) -> Habit:
    return lambda text, query: [key for key, token in enumerate(text) if token in tokens]


@pytest.mark.parametrize(
    ("site", "band", "role"),
    [
        (CAUSAL, Band(-3, 0), Role.RECENT_TOKENS),
        (CAUSAL, Band(-4, -1), Role.RECENT_TOKENS),
        (CAUSAL, Band(-8, 0), Role.RECENT_TOKENS),
        (BOTH_WAYS, Band(-5, -1), Role.RECENT_TOKENS),
        (BOTH_WAYS, Band(1, 4), Role.UPCOMING_TOKENS),
        (BOTH_WAYS, Band(0, 2), Role.UPCOMING_TOKENS),
        (BOTH_WAYS, Band(-2, 2), Role.NEARBY),
    ],
)
def test_a_band_is_named_with_its_ends(site: Site, band: Band, role: Role) -> None:
    reading = read(in_band(*band), site, LETTERS)
    assert (reading.role, reading.evidence[0].band) == (role, band)
    # By hand: over the rows that see a key of the band and as many others.
    shares, uniforms = [], []
    for text in LETTERS:
        share = []
        uniform = []
        for query in range(len(text)):
            visible = query + 1 if site.causal else len(text)
            size = sum(0 <= key < visible for key in range(query + band.first, query + band.last + 1))
            if 0 < 2 * size <= visible:
                share.append(0.9 + 0.1 * size / visible)
                uniform.append(size / visible)
        shares.append(np.mean(share))
        uniforms.append(np.mean(uniform))
    assert reading.evidence[0].weight == pytest.approx(np.mean(shares), abs=1e-9)
    assert reading.evidence[0].uniform == pytest.approx(np.mean(uniforms), abs=1e-9)


@pytest.mark.parametrize(
    ("habit", "role"),
    [
        (lambda text, query: [query - 1], Role.PREVIOUS_TOKEN),
        (lambda text, query: [query - 5], Role.DISTANCE),
        (lambda text, query: [query], Role.DIAGONAL),
        # A column is no band, though the rows behind it have it in reach.
        (lambda text, query: [3], Role.SINGLE_KEY),
        (lambda text, query: [0], Role.FIRST_TOKEN),
        # Every second key of the past, and all but the last eight.
        (lambda text, query: list(range(query - 1, -1, -2)), None),
        (lambda text, query: list(range(query - 8)), None),
    ],
)
@pytest.mark.parametrize("site", [CAUSAL, BOTH_WAYS])
def test_what_is_no_band_is_not_called_one(site: Site, habit: Habit, role: Role | None) -> None:
    reading = read(habit, site, LETTERS)
    assert reading.role is role or (role is None and reading.role in (Role.POSITION, Role.COLUMNS))


@pytest.mark.parametrize(("strength", "role"), [(0.35, Role.POSITION), (0.45, Role.RECENT_TOKENS)])
def test_a_faint_band_is_known_by_its_position_alone(strength: float, role: Role) -> None:
    assert read(in_band(-3, 0), CAUSAL, LETTERS, strength).role is role


def test_words_are_numbered_by_their_spaces() -> None:
    assert number_words(PIECES[0]).tolist() == [-1, 0, 0, 0, 1, -1, 2, 3, 3, 3, -1, 4, -1]
    assert number_words(tuple("ab, c\nd")).tolist() == [0, 0, -1, -1, 1, -1, 2]
    assert number_words(("▁", "a", "b ", "c")).tolist() == [-1, 0, 0, 1]


@pytest.mark.parametrize("texts", [LETTERS, PIECES], ids=["letters", "pieces"])
@pytest.mark.parametrize(("count", "role"), [(0, Role.CURRENT_WORD), (1, Role.PREVIOUS_WORD)])
@pytest.mark.parametrize("site", [CAUSAL, BOTH_WAYS])
def test_a_head_that_reads_a_word_is_named(site: Site, count: int, role: Role, texts: tuple[Text, ...]) -> None:
    reading = read(word_back(count), site, texts)
    assert reading.role is role
    # All that the row sees of the word before, by hand.
    shares = []
    for text in texts:
        share = []
        for query in range(len(text)):
            visible = query + 1 if site.causal else len(text)
            keys = [key for key in word_back(count)(text, query) if key < visible]
            if keys:
                share.append(0.9 + 0.1 * len(keys) / visible)
        shares.append(np.mean(share))
    assert reading.evidence[0].weight == pytest.approx(np.mean(shares), abs=1e-9)


@pytest.mark.parametrize(
    ("habit", "role"),
    [
        # Where words have four letters or so, these keys are those of the word before more often than not.
        (in_band(-8, -4), None),
        (in_band(-6, -1), Role.RECENT_TOKENS),
        (in_band(-2, -1), Role.RECENT_TOKENS),
        (word_back(2), None),
        (lambda text, query: [query - 5], Role.DISTANCE),
    ],
)
def test_a_band_of_the_length_of_a_word_is_no_word(habit: Habit, role: Role | None) -> None:
    reading = read(habit, CAUSAL, LETTERS)
    assert reading.role not in (Role.CURRENT_WORD, Role.PREVIOUS_WORD)
    if role is not None:
        assert reading.role is role


def test_where_every_token_is_a_word_no_head_reads_pieces_of_one() -> None:
    words = tuple(tuple(f"▁{word}" for word in "".join(text).split()) for text in LETTERS)
    assert read(word_back(1), CAUSAL, words).role is Role.PREVIOUS_TOKEN
    plain = tuple(tuple("".join(text).split()) for text in LETTERS)
    assert read(lambda text, query: [query - 1], CAUSAL, plain).role is Role.PREVIOUS_TOKEN


@pytest.mark.parametrize(
    ("habit", "role"),
    [
        (tokens_among(("[SEP]",)), Role.SPECIAL_TOKEN),
        (tokens_among(("[SEP]", "[CLS]")), Role.SPECIAL_TOKEN),
        (tokens_among(("[SEP]", ".", ",")), Role.DELIMITER),
        (tokens_among((".", ",")), Role.PUNCTUATION),
        (tokens_among(("[CLS]",)), Role.FIRST_TOKEN),
    ],
)
def test_special_tokens_are_told_from_punctuation(habit: Habit, role: Role) -> None:
    assert read(habit, BOTH_WAYS, PIECES).role is role


def test_a_map_by_position_alone_is_called_so_and_one_by_tokens_not() -> None:
    places = [np.random.default_rng(query).permutation(query + 1)[: 1 + query // 12] for query in range(64)]
    reading = read(lambda text, query: list(places[query]), CAUSAL, LETTERS)
    assert reading.role is Role.POSITION
    assert reading.evidence[0].weight > 0.9 > reading.evidence[0].uniform
    # Keys that are drawn anew for each text are foretold by nothing.
    by_text = [
        {query: np.random.default_rng((number, query)).permutation(query + 1)[: 1 + query // 12] for query in range(64)}
        for number in range(len(LETTERS))
    ]
    assert read(lambda text, query: list(by_text[LETTERS.index(text)][query]), CAUSAL, LETTERS).role is None
    assert read(tokens_among("eo"), CAUSAL, LETTERS).role is Role.COLUMNS


@pytest.mark.parametrize("site", [CAUSAL, BOTH_WAYS])
def test_columns_are_the_keys_that_other_rows_read_too(site: Site) -> None:
    """The columns stand at other places in each text, so that neither position nor one key explains them."""
    columns = {text: np.random.default_rng(number).permutation(40)[:5] for number, text in enumerate(LETTERS)}
    rows = planted(lambda text, query: list(columns[text]), site, LETTERS)
    (reading,) = classify_heads(rows, site, labels_of(LETTERS))
    assert reading.role is Role.COLUMNS
    # By hand: a row's weight on the keys whose mean over the other rows that see them, in uniform weights, is above 1.
    shares, uniforms, num_rows = [], [], 0
    for example, text in enumerate(LETTERS):
        share, uniform = [], []
        for query in range(len(text)):
            visible = query + 1 if site.causal else len(text)
            judged, above = 0, []
            for key in range(visible):
                others = [row for row in range(key if site.causal else 0, len(text)) if row != query]
                sees = [row + 1 if site.causal else len(text) for row in others]
                weights = [rows.weights[example, 0, 0, row, key] for row in others]
                if len(others) >= 3:
                    judged += 1
                    if sum(weight * count for weight, count in zip(weights, sees, strict=True)) > len(others):
                        above.append(key)
            if judged >= 3:
                share.append(sum(rows.weights[example, 0, 0, query, key] for key in above))
                uniform.append(len(above) / visible)
        shares.append(np.mean(share))
        uniforms.append(np.mean(uniform))
        num_rows += len(share)
    evidence = reading.evidence[0]
    assert evidence.weight == pytest.approx(np.mean(shares), abs=1e-9)
    assert evidence.uniform == pytest.approx(np.mean(uniforms), abs=1e-9)
    assert evidence.rows == num_rows


def test_each_row_with_keys_of_its_own_makes_no_columns() -> None:
    rng = np.random.default_rng(0)
    by_row = {(text, query): rng.permutation(len(text))[:5] for text in LETTERS for query in range(len(text))}
    assert read(lambda text, query: list(by_row[text, query]), BOTH_WAYS, LETTERS).role is None


def test_the_second_role_is_another_one() -> None:
    """Half on the first token, half on the one before: both are named; of a band around the second nothing is said."""

    def both(text: Text, query: int) -> list[int]:
        return [0, query - 1] if query > 1 else []

    reading = read(both, CAUSAL, LETTERS, 0.98)
    assert {one.role for one in reading.evidence} == {Role.FIRST_TOKEN, Role.PREVIOUS_TOKEN}
    alone = read(lambda text, query: [query - 1], CAUSAL, LETTERS, 0.98)
    assert [one.role for one in alone.evidence] == [Role.PREVIOUS_TOKEN, Role.POSITION]
    # Of a head without a role the two nearest are said.
    none = read(tokens_among("eo"), CAUSAL, LETTERS, 0.2)
    assert not none.plays
    assert len({one.role for one in none.evidence}) == 2


def soft_heads(site: Site, texts: tuple[Text, ...], spread: float, seed: int, heads: int) -> WholeRows:
    """Heads of chance: logits of a random token matrix and random vectors of positions, as of an untrained model."""
    rng = np.random.default_rng(seed)
    longest = max(map(len, texts))
    vocabulary = sorted({token for text in texts for token in text})
    embeddings = {token: rng.normal(size=16) for token in vocabulary}
    positions = rng.normal(size=(longest, 16))
    weights = np.zeros((len(texts), 1, heads, longest, longest))
    for head in range(heads):
        query_weights, key_weights = rng.normal(size=(2, 16, 16)) / 4
        for example, text in enumerate(texts):
            inputs = (np.array([embeddings[token] for token in text]) + positions[: len(text)]) / np.sqrt(2)
            logits = spread * (inputs @ query_weights) @ (inputs @ key_weights).T / 4
            if site.causal:
                logits = np.where(np.tri(len(text), dtype=bool), logits, -np.inf)
            exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights[example, 0, head, : len(text), : len(text)] = exponentials / exponentials.sum(-1, keepdims=True)
    return WholeRows(tuple(range(longest)), weights)


@pytest.mark.parametrize("site", [CAUSAL, BOTH_WAYS])
@pytest.mark.parametrize("texts", [LETTERS, PIECES], ids=["letters", "pieces"])
def test_heads_of_chance_have_no_role(site: Site, texts: tuple[Text, ...]) -> None:
    site = Site(site.name, AXIS, AXIS, ("0",), tuple("01234567"), causal=site.causal)
    readings = [
        reading
        for spread in (0.02, 0.5, 1.0)
        for seed in range(3)
        for reading in classify_heads(soft_heads(site, texts, spread, seed, 8), site, labels_of(texts))
    ]
    assert len(readings) == 72
    assert sum(reading.plays for reading in readings) <= 0.05 * len(readings)
