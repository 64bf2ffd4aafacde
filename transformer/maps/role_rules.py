"""The roles of heads: the keys that define each, the statistic that measures it, and its score by chance."""

import enum
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.attention.sites import Axis, AxisKind, Site
from transformer.maps.attention_distance import shared_grid
from transformer.maps.capture_plan import ALIGNMENT_ERROR
from transformer.tasks.axis_labels import AxisLabels

RARE = 1 / 3  # the largest share of an example's positions that may count as rare

_ORDERED = frozenset({AxisKind.TOKENS, AxisKind.FRAMES, AxisKind.STEPS})


class Role(enum.Enum):
    """The roles that a head can play."""

    INDUCTION = "induction"
    PREVIOUS_TOKEN = "previous token"
    NEXT_TOKEN = "next token"
    DISTANCE = "fixed distance"
    FIRST_TOKEN = "first token"
    DIAGONAL = "diagonal"
    NEARBY = "nearby"
    ALIGNMENT = "alignment"
    SAME_TOKEN = "same token"
    RARE_TOKEN = "rare tokens"
    DELIMITER = "delimiters"
    SINGLE_KEY = "single key"
    BROAD = "broad"


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


def keys_at_distance(distance: int) -> Callable[[ExampleRows], np.ndarray]:
    """Return the key at a distance from the query."""
    return lambda example: example.keys == example.queries + distance


def _neighboring_patches(example: ExampleRows) -> Bool[np.ndarray, "R K"]:
    """Return the patch of a query and the up to eight around it; none for leading positions."""
    assert example.grid is not None
    assert example.grid.shape is not None
    leading, columns = example.grid.num_leading_positions, example.grid.shape[1]
    query, key = example.queries - leading, example.keys - leading
    near = (abs(query // columns - key // columns) <= 1) & (abs(query % columns - key % columns) <= 1)
    return near & (query >= 0) & (key >= 0)


def _delimiter_keys(example: ExampleRows) -> Bool[np.ndarray, "1 K"]:
    return np.array([is_special_or_punctuation(token) for token in example.key_tokens], bool)[None]


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


class RoleRule(NamedTuple):
    """How a role is measured.

    Attributes:
        keys: The keys [R, K] or [1, K] of an example that define the role, whether or not a row sees them.
        is_shown_by: Whether the maps of a module can show the role.
        distance: Key position minus query position, for a role at one distance.
        statistic: The name of the stored statistic that is the mean weight on these keys, if there is one: it gives the
            role at every stored step.
        statistic_needs_one_sequence: Whether the statistic means the role only where queries and keys are one sequence.
    """

    keys: Callable[[ExampleRows], np.ndarray]
    is_shown_by: Callable[[Site, AxisLabels], bool]
    distance: int = 0
    statistic: str | None = None
    statistic_needs_one_sequence: bool = False


ROLE_RULES = {
    Role.FIRST_TOKEN: RoleRule(
        lambda example: example.keys == 0,
        lambda site, labels: _is_ordered(site, labels) or site.key.num_leading_positions > 0,
        statistic="first_token",
    ),
    Role.DIAGONAL: RoleRule(
        keys_at_distance(0),
        lambda site, labels: _is_ordered(site, labels) or is_self_attention(site, labels),
        statistic="diagonal",
    ),
    Role.NEARBY: RoleRule(_neighboring_patches, lambda site, labels: shared_grid(site) is not None),
    Role.PREVIOUS_TOKEN: RoleRule(
        keys_at_distance(-1),
        is_ordered_sequence,
        distance=-1,
        statistic="previous_token",
        statistic_needs_one_sequence=True,
    ),
    Role.NEXT_TOKEN: RoleRule(keys_at_distance(1), is_ordered_sequence, distance=1),
    Role.DELIMITER: RoleRule(_delimiter_keys, _is_text),
    Role.RARE_TOKEN: RoleRule(_rare_token_keys, _is_text),
    Role.SAME_TOKEN: RoleRule(_same_token_keys, _is_text),
    Role.INDUCTION: RoleRule(
        _induction_keys,
        lambda site, labels: _is_text(site, labels) and is_self_attention(site, labels),
        statistic="induction",
        statistic_needs_one_sequence=True,
    ),
}
"""The roles that a set of keys defines. Of the others, alignment follows the task's own links; a fixed distance, a
single key and a broad head are found among all distances and keys."""


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


def statistics_of_roles(site: Site, labels: AxisLabels) -> dict[Role, str]:
    """Return the stored statistics that give a role of a module's heads at every stored step.

    That of alignment is an error, 1 minus the share.
    """
    names = {Role.ALIGNMENT: ALIGNMENT_ERROR}
    for role, rule in ROLE_RULES.items():
        if rule.statistic and (not rule.statistic_needs_one_sequence or is_self_attention(site, labels)):
            names[role] = rule.statistic
    return {role: names[role] for role in Role if role in names}


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
    rule = ROLE_RULES[role]
    chances = []
    for example in example_rows(site, labels):
        # The statistic of induction is of repeated random tokens alone.
        shows_role = role is not Role.INDUCTION or example.period
        share = measure_key_share(example, rule.keys(example)) if shows_role else None
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


def is_special_or_punctuation(token: str) -> bool:
    """Return whether a token is special, such as `</s>` or `[SEP]`, or only punctuation and spaces."""
    bare = token.strip("▁")
    bracketed = len(bare) > 2 and (bare[0], bare[-1]) in {("<", ">"), ("[", "]")}
    # A lone byte of a character, <0xE8>, is text.
    special = bracketed and not bare.startswith("<0x")
    return special or all(unicodedata.category(character)[0] in "PZ" or character.isspace() for character in bare)
