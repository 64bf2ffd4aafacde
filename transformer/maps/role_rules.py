"""The roles of heads: the keys that define each, the statistic that measures it, and its score by chance."""

import enum
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.attention.sites import Axis, AxisKind, Site
from transformer.maps.attention_distance import shared_grid
from transformer.maps.capture_plan import ALIGNMENT_ERROR
from transformer.tasks.axis_labels import AxisLabels

WIDEST_BAND = 8  # keys of a band beside the query's own
# The least score of a role, 0 being uniform attention's and 1 a perfect head's: soft mixtures and mean habits of many
# heads stay well below.
MIN_ROLE_SCORE = 0.4
# The keys of columns are those above the mean, the weakest among them: their scores are lower, and 1 of 224 heads of
# untrained models reaches this one (experiments/benchmarks/results/head_roles.md).
MIN_COLUMNS_SCORE = 0.35
MIN_ROWS = 3  # rows that must show a role: two agree by accident
MIN_KEYS = 3  # keys that a row must see before what it shares with another map says anything
USUAL_PRECEDENCE = 3  # of roles with keys of their own
RARE = 1 / 3  # the largest share of an example's positions that may count as rare

_SPACES = "▁ \n\t"

_ORDERED = frozenset({AxisKind.TOKENS, AxisKind.FRAMES, AxisKind.STEPS})


class Role(enum.Enum):
    """The roles that a head can play."""

    INDUCTION = "induction"
    PREVIOUS_TOKEN = "previous token"
    NEXT_TOKEN = "next token"
    DISTANCE = "fixed distance"
    RECENT_TOKENS = "recent tokens"
    UPCOMING_TOKENS = "upcoming tokens"
    NEARBY = "nearby"
    CURRENT_WORD = "current word"
    PREVIOUS_WORD = "previous word"
    FIRST_TOKEN = "first token"
    SPECIAL_TOKEN = "special tokens"
    DIAGONAL = "diagonal"
    ALIGNMENT = "alignment"
    SAME_TOKEN = "same token"
    RARE_TOKEN = "rare tokens"
    PUNCTUATION = "punctuation"
    DELIMITER = "delimiters"
    SINGLE_KEY = "single key"
    COLUMNS = "same keys"
    POSITION = "position"


class Band(NamedTuple):
    """Keys at the same distance from every query: key position minus query position, from `first` to `last`."""

    first: int
    last: int


class ExampleRows(NamedTuple):
    """Rows of one example: weights [L, H, R, K] cut to its own positions, the keys they see, and its tokens.

    `one_sequence` says whether queries and keys are the same positions, and `grid` is the grid that they share.
    """

    query_R: Int[np.ndarray, " R"]
    weights_LxHxRxK: Float[np.ndarray, "L H R K"]
    visible_RxK: Bool[np.ndarray, "R K"]
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    rare_K: Bool[np.ndarray, " K"]
    period: int | None
    one_sequence: bool
    grid: Axis | None

    @property
    def keys(self) -> Int[np.ndarray, "1 K"]:
        """The positions of the keys."""
        return np.arange(len(self.key_tokens))[None]

    @property
    def queries(self) -> Int[np.ndarray, "R 1"]:
        """The positions of the queries."""
        return self.query_R[:, None]


def example_rows(site: Site, labels: AxisLabels) -> Iterator[ExampleRows]:
    """Yield all rows of every example, without weights: of no layer and no head."""
    query_tokens_by_example, key_tokens_by_example = (labels.tokens[axis.name] for axis in (site.query, site.key))
    counts = Counter(normalize_token(token) for tokens in key_tokens_by_example for token in tokens)
    periods = labels.periods or (None,) * len(labels.titles)
    one_sequence, grid = is_self_attention(site, labels), shared_grid(site)
    for query_tokens, key_tokens, period in zip(query_tokens_by_example, key_tokens_by_example, periods, strict=True):
        query_R, key_K = np.arange(len(query_tokens)), np.arange(len(key_tokens))
        visible = key_K[None] <= query_R[:, None] if site.causal else np.ones((len(query_R), len(key_K)), bool)
        is_unique = np.array([counts[normalize_token(token)] == 1 for token in key_tokens], bool)
        rare = is_unique if is_unique.any() and is_unique.mean() <= RARE else np.zeros_like(is_unique)
        weights = np.zeros((0, 0, *visible.shape))
        yield ExampleRows(query_R, weights, visible, query_tokens, key_tokens, rare, period, one_sequence, grid)


def is_special(token: str) -> bool:
    """Return whether a token is special, such as `</s>` or `[SEP]`."""
    bare = token.strip("▁")
    bracketed = len(bare) > 2 and (bare[0], bare[-1]) in {("<", ">"), ("[", "]")}
    # A lone byte of a character, <0xE8>, is text.
    return bracketed and not bare.startswith("<0x")


def is_punctuation(token: str) -> bool:
    """Return whether a token is only punctuation and spaces."""
    return all(unicodedata.category(character)[0] in "PZ" or character.isspace() for character in token.strip("▁"))


def keys_in_band(band: Band) -> Callable[[ExampleRows], np.ndarray]:
    """Return the keys of a band around the query."""
    return lambda example: (
        (example.keys >= example.queries + band.first) & (example.keys <= example.queries + band.last)
    )


def _neighboring_patches(example: ExampleRows) -> Bool[np.ndarray, "R K"]:
    """Return the patch of a query and the up to eight around it; none for leading positions."""
    assert example.grid is not None
    assert example.grid.shape is not None
    leading, columns = example.grid.num_leading_positions, example.grid.shape[1]
    query, key = example.queries - leading, example.keys - leading
    near = (abs(query // columns - key // columns) <= 1) & (abs(query % columns - key % columns) <= 1)
    return near & (query >= 0) & (key >= 0)


def _keys_whose_token(is_of_kind: Callable[[str], bool]) -> Callable[[ExampleRows], np.ndarray]:
    return lambda example: np.array([is_of_kind(token) for token in example.key_tokens], bool)[None]


def number_words(tokens: Sequence[str]) -> Int[np.ndarray, " K"]:
    """Return the number of the word that each token is a piece of; -1 for a special token, punctuation or a space.

    A word ends at such a token, and where a token begins with a space.
    """
    numbers, number, is_inside = [], -1, False
    for token in tokens:
        if is_special(token) or is_punctuation(token):
            is_inside = False
            numbers.append(-1)
            continue
        number += not is_inside or token[0] in _SPACES
        is_inside = token[-1] not in _SPACES
        numbers.append(number)
    return np.array(numbers, int)


def _keys_of_word(words_back: int) -> Callable[[ExampleRows], np.ndarray]:
    """Return the other tokens of the query's word, or those of a word before it."""

    def keys(example: ExampleRows) -> Bool[np.ndarray, "R K"]:
        word_K = number_words(example.key_tokens)
        word_R = word_K[example.query_R][:, None]
        in_word = (word_R >= words_back) & (word_K[None] == word_R - words_back)
        return in_word & (example.keys != example.queries)

    return keys


def _rare_token_keys(example: ExampleRows) -> np.ndarray:
    """Return the rare keys; within one sequence only at other positions, so that a rare query itself does not count."""
    is_other_position = (example.keys != example.queries) if example.one_sequence else True
    return example.rare_K[None] & is_other_position


def _same_token_keys(example: ExampleRows) -> np.ndarray:
    """Return the keys with the query's own token; within one sequence only at other positions."""
    one_sequence = example.one_sequence
    key_tokens = np.array([normalize_token(token) for token in example.key_tokens])
    query_tokens = key_tokens if one_sequence else np.array([normalize_token(token) for token in example.query_tokens])
    same = query_tokens[example.query_R][:, None] == key_tokens[None]
    return same & (example.keys != example.queries) if one_sequence else same


def _induction_keys(example: ExampleRows) -> np.ndarray:
    """Return the keys right after an earlier position with the query's token; one period back if the text repeats."""
    if example.period:
        return (example.keys == example.queries - example.period + 1) & (example.queries >= example.period)
    same = _same_token_keys(example) & (example.keys < example.queries)
    return np.concatenate([np.zeros((len(same), 1), bool), same[:, :-1]], axis=1)


def _is_ordered(site: Site, labels: AxisLabels) -> bool:
    return {site.query.kind, site.key.kind} <= _ORDERED


def is_ordered_sequence(site: Site, labels: AxisLabels) -> bool:
    """Return whether queries and keys are one sequence in which distances mean something."""
    return _is_ordered(site, labels) and is_self_attention(site, labels)


def _is_text(site: Site, labels: AxisLabels) -> bool:
    return {site.query.kind, site.key.kind} == {AxisKind.TOKENS}


def _is_any(site: Site, labels: AxisLabels) -> bool:
    return True


def _has_pieces_of_words(site: Site, labels: AxisLabels) -> bool:
    """Return whether the texts show where words begin, and some words are several tokens."""
    if not (_is_text(site, labels) and is_self_attention(site, labels)):
        return False
    texts = labels.tokens[site.key.name]
    shows_words = any(space in token for tokens in texts for token in tokens for space in _SPACES)
    words_by_text = [numbers[numbers >= 0] for numbers in map(number_words, texts)]
    return shows_words and any(len(np.unique(numbers)) < len(numbers) for numbers in words_by_text)


def _distances(site: Site, longest: int) -> list[Band]:
    """Return every single distance but that of a neighbor, the nearest first."""
    distances = range(-longest + 1, 1 if site.causal else longest)
    return [Band(distance, distance) for distance in sorted(distances, key=abs) if abs(distance) > 1]


def _recent_bands(site: Site, longest: int) -> list[Band]:
    return [Band(-width, last) for width in range(2, WIDEST_BAND + 1) for last in (-1, 0)] + [Band(-1, 0)]


def _upcoming_bands(site: Site, longest: int) -> list[Band]:
    return [] if site.causal else [Band(-last, -first) for first, last in _recent_bands(site, longest)]


def _nearby_bands(site: Site, longest: int) -> list[Band]:
    return [] if site.causal else [Band(-width, width) for width in range(1, WIDEST_BAND // 2 + 1)]


def score_above_chance[T: (float, np.ndarray)](share: T, chance: T) -> T:
    """Return how far a share has come from that of chance to 1: Cohen's kappa (1960)."""
    return (share - chance) / (1 - chance)


class ExampleShare(NamedTuple):
    """How strongly an example shows a role: its share, that of uniform weights, and how many rows see its keys."""

    share_LxH: np.ndarray
    uniform: float | np.ndarray
    rows: int


def measure_key_share(example: ExampleRows, keys_RxK: np.ndarray) -> ExampleShare:
    """Measure the weight on the keys of a role, over the rows that see one."""
    target = keys_RxK & example.visible_RxK
    rows = target.any(axis=-1)
    share_LxH = np.einsum("lhrk,rk->lh", example.weights_LxHxRxK[:, :, rows], target[rows]) / max(rows.sum(), 1)
    uniform_R = target[rows].sum(axis=-1) / example.visible_RxK[rows].sum(axis=-1)
    return ExampleShare(share_LxH, uniform_R.sum() / max(rows.sum(), 1), int(rows.sum()))


def measure_band_share(example: ExampleRows, band: Band) -> ExampleShare:
    """Measure the weight on a band of keys, over the rows that see one.

    Of several keys only over the rows that see as many others: a row that sees little else reads recent tokens always.
    """
    key_RxW = example.query_R[:, None] + np.arange(band.first, band.last + 1)
    inside_RxW = (key_RxW >= 0) & (key_RxW < len(example.key_tokens))
    key_RxW = np.where(inside_RxW, key_RxW, 0)
    target_RxW = inside_RxW & np.take_along_axis(example.visible_RxK, key_RxW, axis=1)
    size_R, visible_R = target_RxW.sum(axis=-1), example.visible_RxK.sum(axis=-1)
    rows = np.flatnonzero((size_R > 0) & ((band.first == band.last) | (2 * size_R <= visible_R)))
    weights_LxHxNxW = example.weights_LxHxRxK[:, :, rows[:, None], key_RxW[rows]] * target_RxW[rows]
    uniform_N = size_R[rows] / visible_R[rows]
    num_rows = max(len(rows), 1)
    return ExampleShare(weights_LxHxNxW.sum(axis=(-2, -1)) / num_rows, uniform_N.sum() / num_rows, len(rows))


# Numbers the pairs of a query and a key of every example; pairs of the same number are one group.
Grouping = Callable[[Sequence[ExampleRows]], list[Int[np.ndarray, "R K"]]]


def absolute_group(examples: Sequence[ExampleRows]) -> list[np.ndarray]:
    """Number the pairs of a query's and a key's position."""
    longest = max(len(example.key_tokens) for example in examples)
    return [example.queries * longest + example.keys for example in examples]


def relative_group(examples: Sequence[ExampleRows]) -> list[np.ndarray]:
    """Number the distances of a key from the query."""
    longest = max(int(example.query_R.max(initial=0)) for example in examples)
    return [longest + example.keys - example.queries for example in examples]


def predict_weights(
    examples: Sequence[ExampleRows], weights: Sequence[np.ndarray], group: Grouping, leave_out_rows: bool = False
) -> list[np.ndarray]:
    """Predict each weight [R, K] by the mean of the others in its group of keys; rows sum to one, or to 0 without any.

    The mean is over the other examples, or over all other rows; it is of a weight as a multiple of the uniform one.
    """
    groups = group(examples)
    size = 1 + max(int(group_RxK.max(initial=0)) for group_RxK in groups)
    sums = []
    for example, weights_RxK, group_RxK in zip(examples, weights, groups, strict=True):
        visible_RxK = example.visible_RxK
        multiples_RxK = weights_RxK * visible_RxK * visible_RxK.sum(axis=-1, keepdims=True)
        if leave_out_rows:
            own = np.zeros((2, len(weights_RxK), size))
            for total_RxG, values_RxK in zip(own, (multiples_RxK, visible_RxK), strict=True):
                np.add.at(total_RxG, (np.arange(len(weights_RxK))[:, None], group_RxK), values_RxK)
        else:
            own = np.array(
                [
                    [np.bincount(group_RxK.ravel(), values_RxK.ravel(), minlength=size)]
                    for values_RxK in (multiples_RxK, visible_RxK)
                ]
            )
        sums.append(own)
    total_G, count_G = np.sum([own.sum(axis=1) for own in sums], axis=0)
    predictions = []
    for example, (own_RxG, own_count_RxG), group_RxK in zip(examples, sums, groups, strict=True):
        mean_RxG = np.maximum(total_G - own_RxG, 0) / np.maximum(count_G - own_count_RxG, 1)
        rows = np.arange(len(group_RxK))[:, None] if leave_out_rows else 0
        mean_RxK = mean_RxG[rows, group_RxK] * example.visible_RxK
        predictions.append(mean_RxK / np.maximum(mean_RxK.sum(axis=-1, keepdims=True), 1e-9))
    return predictions


def _measure_single_keys(examples: Sequence[ExampleRows], site: Site, labels: AxisLabels) -> list[ExampleShare]:
    """Return the largest mean weight of a key that at least half of all rows see."""
    # Where the first key makes a role of its own, it is no other place.
    first_key = int(ROLE_RULES[Role.FIRST_TOKEN].is_shown_by(site, labels))
    return [_measure_single_key(example, first_key) for example in examples]


def _measure_single_key(example: ExampleRows, first_key: int) -> ExampleShare:
    sees_K, rows = example.visible_RxK.sum(axis=0), example.visible_RxK.any(axis=-1)
    is_candidate = (sees_K >= max(MIN_ROWS, rows.sum() / 2)) & (np.arange(len(sees_K)) >= first_key)
    if not is_candidate.any():
        zeros = np.zeros(example.weights_LxHxRxK.shape[:2])
        return ExampleShare(zeros, zeros, 0)
    visible_WxR = example.visible_RxK[:, is_candidate].T
    mean_LxHxW = (example.weights_LxHxRxK[..., is_candidate] * visible_WxR.T).sum(axis=2) / sees_K[is_candidate]
    uniform_W = (visible_WxR / np.maximum(example.visible_RxK.sum(axis=-1), 1)).sum(axis=-1) / sees_K[is_candidate]
    return ExampleShare(mean_LxHxW.max(axis=-1), uniform_W[mean_LxHxW.argmax(axis=-1)], int(sees_K[is_candidate].min()))


def _measure_columns(example: ExampleRows) -> ExampleShare:
    """Return the weight on the keys that the other rows read more than uniformly; a row without any counts with 0."""
    visible_RxK, count_R = example.visible_RxK, example.visible_RxK.sum(axis=-1)
    others_RxK = visible_RxK.sum(axis=0) - visible_RxK
    judged_RxK = visible_RxK & (others_RxK >= MIN_ROWS)
    rows = judged_RxK.sum(axis=-1) >= MIN_KEYS
    multiples_LxHxRxK = example.weights_LxHxRxK * visible_RxK * count_R[:, None]
    others_LxHxRxK = multiples_LxHxRxK.sum(axis=-2, keepdims=True) - multiples_LxHxRxK
    target_LxHxNxK = ((others_LxHxRxK > others_RxK) & judged_RxK)[:, :, rows]
    num_rows = max(int(rows.sum()), 1)
    share_LxH = (example.weights_LxHxRxK[:, :, rows] * target_LxHxNxK).sum(axis=(-2, -1)) / num_rows
    uniform_LxH = (target_LxHxNxK / count_R[rows, None]).sum(axis=(-2, -1)) / num_rows
    return ExampleShare(share_LxH, uniform_LxH, int(rows.sum()))


def _measure_position(examples: Sequence[ExampleRows], site: Site, labels: AxisLabels) -> list[ExampleShare]:
    """Return how much of its map a head has in common with what position alone foretells, or with uniform attention.

    Two maps have sum_k min(w_qk, p_qk) in common, the mean over the rows that see at least `MIN_KEYS` keys. Of the
    absolute and the relative position the better one counts.
    """
    if len(examples) < 2:
        return []
    num_layers, num_heads = examples[0].weights_LxHxRxK.shape[:2]
    overlaps, uniforms = np.zeros((2, len(examples), num_layers, num_heads))
    judged = [example.visible_RxK.sum(axis=-1) >= MIN_KEYS for example in examples]
    for layer, head in np.ndindex(num_layers, num_heads):
        weights = [example.weights_LxHxRxK[layer, head] for example in examples]
        predictions = [predict_weights(examples, weights, group) for group in (absolute_group, relative_group)]
        for number, (example, rows) in enumerate(zip(examples, judged, strict=True)):
            if not rows.any():
                continue

            def overlap(map_RxK: np.ndarray, rows: np.ndarray = rows, own: np.ndarray = weights[number]) -> float:
                return np.minimum(map_RxK, own).sum(axis=-1)[rows].mean()

            overlaps[number, layer, head] = max(overlap(prediction[number]) for prediction in predictions)
            uniforms[number, layer, head] = overlap(_uniform_map(example))
    return [
        ExampleShare(overlap_LxH, uniform_LxH, int(rows.sum()))
        for overlap_LxH, uniform_LxH, rows in zip(overlaps, uniforms, judged, strict=True)
    ]


def _uniform_map(example: ExampleRows) -> np.ndarray:
    return example.visible_RxK / np.maximum(example.visible_RxK.sum(axis=-1, keepdims=True), 1)


class RoleRule(NamedTuple):
    """How a role is measured and chosen; that of gold alignments, which whole rows show, is measured apart.

    Attributes:
        is_shown_by: Whether the maps of a module can show the role.
        keys: The keys [R, K] or [1, K] of an example that define the role, whether or not a row sees them.
        bands: The bands of which any may be the role's keys, where queries and keys are one ordered sequence.
        measure: Measures on each example how strongly it shows a role whose keys are found in the maps.
        statistic: The name of the stored statistic that is the mean weight on these keys, if there is one: it gives the
            role at every stored step.
        statistic_needs_one_sequence: Whether the statistic means the role only where queries and keys are one sequence.
        precedence: How soon the role is chosen of several that a head plays.
        min_score: The least score of a head that plays the role.
    """

    is_shown_by: Callable[[Site, AxisLabels], bool]
    keys: Callable[[ExampleRows], np.ndarray] | None = None
    bands: Callable[[Site, int], Sequence[Band]] | None = None
    measure: Callable[[Sequence[ExampleRows], Site, AxisLabels], Sequence[ExampleShare]] | None = None
    statistic: str | None = None
    statistic_needs_one_sequence: bool = False
    precedence: int = USUAL_PRECEDENCE
    min_score: float = MIN_ROLE_SCORE


ROLE_RULES = {
    Role.FIRST_TOKEN: RoleRule(
        lambda site, labels: _is_ordered(site, labels) or site.key.num_leading_positions > 0,
        lambda example: example.keys == 0,
        statistic="first_token",
    ),
    Role.DIAGONAL: RoleRule(
        lambda site, labels: _is_ordered(site, labels) or is_self_attention(site, labels),
        keys_in_band(Band(0, 0)),
        statistic="diagonal",
    ),
    Role.PREVIOUS_TOKEN: RoleRule(
        is_ordered_sequence,
        keys_in_band(Band(-1, -1)),
        statistic="previous_token",
        statistic_needs_one_sequence=True,
    ),
    Role.NEXT_TOKEN: RoleRule(is_ordered_sequence, keys_in_band(Band(1, 1))),
    Role.DISTANCE: RoleRule(is_ordered_sequence, bands=_distances),
    Role.RECENT_TOKENS: RoleRule(is_ordered_sequence, bands=_recent_bands),
    Role.UPCOMING_TOKENS: RoleRule(is_ordered_sequence, bands=_upcoming_bands),
    Role.NEARBY: RoleRule(
        lambda site, labels: is_ordered_sequence(site, labels) or shared_grid(site) is not None,
        _neighboring_patches,
        bands=_nearby_bands,
    ),
    Role.CURRENT_WORD: RoleRule(_has_pieces_of_words, _keys_of_word(0)),
    Role.PREVIOUS_WORD: RoleRule(_has_pieces_of_words, _keys_of_word(1)),
    Role.SPECIAL_TOKEN: RoleRule(_is_text, _keys_whose_token(is_special)),
    Role.PUNCTUATION: RoleRule(_is_text, _keys_whose_token(is_punctuation)),
    Role.DELIMITER: RoleRule(_is_text, _keys_whose_token(lambda token: is_special(token) or is_punctuation(token))),
    Role.RARE_TOKEN: RoleRule(_is_text, _rare_token_keys),
    Role.SAME_TOKEN: RoleRule(_is_text, _same_token_keys),
    Role.INDUCTION: RoleRule(
        lambda site, labels: _is_text(site, labels) and is_self_attention(site, labels),
        _induction_keys,
        statistic="induction",
        statistic_needs_one_sequence=True,
    ),
    # Columns hold of many heads that have a better name, and position of nearly all.
    Role.SINGLE_KEY: RoleRule(_is_any, measure=_measure_single_keys, precedence=2),
    Role.COLUMNS: RoleRule(
        _is_any,
        measure=lambda examples, site, labels: list(map(_measure_columns, examples)),
        precedence=1,
        min_score=MIN_COLUMNS_SCORE,
    ),
    Role.POSITION: RoleRule(_is_any, measure=_measure_position, precedence=0),
    # The task's own links come first; their statistic is an error, 1 minus the share.
    Role.ALIGNMENT: RoleRule(
        lambda site, labels: bool((labels.gold_alignments or {}).get(site.name)),
        statistic=ALIGNMENT_ERROR,
        precedence=USUAL_PRECEDENCE + 1,
    ),
}
"""Every role."""


def statistics_of_roles(site: Site, labels: AxisLabels) -> dict[Role, str]:
    """Return the stored statistics that give a role of a module's heads at every stored step."""
    rules = {role: ROLE_RULES[role] for role in Role}
    return {
        role: rule.statistic
        for role, rule in rules.items()
        if rule.statistic and (not rule.statistic_needs_one_sequence or is_self_attention(site, labels))
    }


def chance_scores(role: Role, site: Site, labels: AxisLabels) -> Float[np.ndarray, " B"]:
    """Return the score of a role that an untrained head has on each example.

    It is the score of a head with equal weights on all visible keys: the mean of |S(q)| / |visible(q)| over the rows
    that count, S(q) being the keys of the role. For alignment it is the better of two baselines that ignore the
    sentence, see `alignment_chance`. Attention windows, which a site does not record, are ignored.

    Args:
        role: The role.
        site: The attention module.
        labels: The labels of the probe batch.

    Returns:
        The scores; NaN for an example that cannot show the role.
    """
    if role is Role.ALIGNMENT:
        return alignment_chance(site, labels)
    keys = ROLE_RULES[role].keys
    assert keys is not None
    chances = []
    for example in example_rows(site, labels):
        # The statistic of induction is of repeated random tokens alone.
        shows_role = role is not Role.INDUCTION or example.period
        share = measure_key_share(example, keys(example)) if shows_role else None
        chances.append(share.uniform if share is not None and share.rows else np.nan)
    return np.array(chances)


def alignment_chance(site: Site, labels: AxisLabels) -> Float[np.ndarray, " B"]:
    """Return the agreement with the gold alignments of a head that ignores the sentence.

    It is the better of two baselines: each query linked to a random key, or to the key at the same relative position.

    Args:
        site: The attention module.
        labels: The labels, which must have gold alignments for the module.

    Returns:
        (|A & S| + |A & P|) / (|A| + |S|) of each example; NaN for one without links.
    """
    assert labels.gold_alignments is not None
    random, straight = np.full((2, len(labels.titles)), np.nan)
    for example, links in enumerate(labels.gold_alignments[site.name]):
        if not links:
            continue
        queries, keys = (len(labels.tokens[axis.name][example]) for axis in (site.query, site.key))
        # Och and Ney's agreement counts a sure link twice, as it is also a possible one.
        worth = {(link.query, link.key): 2 if link.sure else 1 for link in links}
        linked = {link.query for link in links}
        total = len(linked) + sum(link.sure for link in links)
        places = [(query, round(query * (keys - 1) / max(queries - 1, 1))) for query in linked]
        random[example] = sum(worth.values()) / keys / total
        straight[example] = sum(worth.get(place, 0) for place in places) / total
    return random if np.nansum(random) > np.nansum(straight) else straight


def is_self_attention(site: Site, labels: AxisLabels) -> bool:
    """Return whether position i is the same on both sides of a module's maps.

    This is so if both sides are one axis, and in a causal decoder whose keys are labeled by its shifted input.
    """
    if site.query.name == site.key.name:
        return True
    sides = (map(len, labels.tokens[axis.name]) for axis in (site.query, site.key))
    return site.causal and all(queries == keys for queries, keys in zip(*sides, strict=True))


def normalize_token(token: str) -> str:
    """Return a token without its word-boundary mark and in lower case."""
    return token.strip("▁ ").casefold()
