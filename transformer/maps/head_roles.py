"""Classify what a head does from its maps: at most one role a head, with the share of weight that supports it."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.attention.sites import MapValues, Site
from transformer.maps.role_rules import (
    ROLE_RULES,
    ExampleRows,
    ExampleShare,
    Role,
    alignment_chance,
    example_rows,
    is_ordered_sequence,
    keys_at_distance,
    measure_key_share,
    normalize_token,
    score_above_chance,
)
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

# The least score of a role, 0 being an untrained head's and 1 a perfect one's: soft mixtures and mean habits of many
# heads stay well below.
MIN_ROLE_SCORE = 0.4
# The least share of the visible keys that a broad head reads: below it some keys are plainly preferred.
MIN_BROAD_FRACTION = 0.7
MIN_DISTANCE_ROWS = 8  # rows that show a fixed distance for which fewer than half of all rows have room
MIN_EXPLAINED = 0.5  # the least share of a role's score that a simpler rule foretells to be an explanation of it
MIN_ROWS = 3  # rows that must show a role: two agree by accident
MIN_ROW_FRACTION = 0.1  # of all rows, too: a word that stands twice in ten sentences makes no habit
MIN_KEYS = 3  # keys that a row must see before reading most of them says anything
# They hold of almost any head that has no better name, and are given to no other.
FALLBACK_ROLES = (Role.SINGLE_KEY, Role.BROAD)
_AT_A_DISTANCE = (Role.PREVIOUS_TOKEN, Role.NEXT_TOKEN, Role.DIAGONAL, Role.DISTANCE)


class WholeRows(NamedTuple):
    """Whole rows of the maps of one attention module.

    Attributes:
        positions: The query positions of the rows.
        weights: The weights [example, layer, head, row, key].
    """

    positions: tuple[int, ...]
    weights: Float[np.ndarray, "B L H R K"]


# Roles that tokens make: of texts that are alike in their positions a simpler rule has the same maps.
TOKEN_ROLES = (Role.INDUCTION, Role.SAME_TOKEN, Role.RARE_TOKEN, Role.DELIMITER)


class SimplerRuleKind(enum.Enum):
    """Rules that are simpler than the token-based roles (`TOKEN_ROLES`) and may produce the same maps."""

    DISTANCE = "a fixed distance"
    FIXED_POSITION = "a fixed position"
    POSITION = "position alone"
    KEY_TOKEN = "the key's token alone"


class SimplerRule(NamedTuple):
    """A simpler rule and its parameter.

    Attributes:
        rule: The rule.
        offset_or_position: For a fixed distance, key position minus query position; for a fixed position, the key
            position; else 0.
    """

    rule: SimplerRuleKind
    offset_or_position: int = 0


class RoleAssessment(NamedTuple):
    """What one head does.

    Attributes:
        layer: The index of the layer.
        head: The index of the head.
        nearest: The role with the highest score; None if no role could be assessed.
        plays: Whether the score is high enough, and no simpler rule explains the maps.
        distance: Key position minus query position for a fixed distance, else 0.
        weight: The mean weight on the keys that define the role.
        uniform: The same for a head with equal weights on all visible keys.
        score: How far the head has come from `uniform` to 1.
        ambiguous_with: The simpler rules that these examples cannot tell from the nearest role; with any, the head does
            not play it.
    """

    layer: int
    head: int
    nearest: Role | None
    plays: bool
    distance: int = 0
    weight: float = 0.0
    uniform: float = 0.0
    score: float = 0.0
    ambiguous_with: tuple[SimplerRule, ...] = ()


class _RoleMeasurement(NamedTuple):
    """The weight of every head on the keys of a role, that of uniform attention, and the score."""

    role: Role
    distance: int
    share_LxH: np.ndarray
    uniform_LxH: np.ndarray
    score_LxH: np.ndarray

    def of_head(self, layer: int, head: int) -> "_HeadMeasurement":
        share, uniform, score = (
            float(values[layer, head]) for values in (self.share_LxH, self.uniform_LxH, self.score_LxH)
        )
        return _HeadMeasurement(self.role, self.distance, share, uniform, score)


class _HeadMeasurement(NamedTuple):
    """The measurement of one head."""

    role: Role
    distance: int
    share: float
    uniform: float
    score: float

    @property
    def min_score(self) -> float:
        return MIN_BROAD_FRACTION if self.role is Role.BROAD else MIN_ROLE_SCORE

    @property
    def plays(self) -> bool:
        return self.score >= self.min_score

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """The order of roles: those that are played, the task's own links, then the most specific keys."""
        if not self.plays:
            return False, False, False, self.score / self.min_score
        # Of a set of keys and a smaller one in it the smaller says more.
        specificity = self.share * np.log(self.share / self.uniform)
        return True, self.role not in FALLBACK_ROLES, self.role is Role.ALIGNMENT, specificity


def classify_heads(rows: WholeRows, site: Site, labels: AxisLabels) -> tuple[RoleAssessment, ...]:
    """Classify every head of one attention module from whole rows of its maps at one step.

    For a set of keys S(q) that defines a role, the share is mean_q sum_(k in S(q)) w_qk over the rows that see a key of
    S(q), first within an example and then over examples, and even = mean_q |S(q)| / |visible(q)| over the same rows.
    The head plays the role if (share - even) / (1 - even) >= `MIN_ROLE_SCORE`. Of several roles it is given alignment,
    else the one with the largest share log(share / even). S(q) is

    - q - 1, q + 1, q + d for a fixed d; q itself; the first key;
    - on an image, the patch of q and those that touch it;
    - keys with the token of q at another position; keys right after an earlier such position (induction), or, if
      examples repeat random tokens, the key one period back and one on;
    - keys at another position whose token occurs once in all examples, if these are at most `RARE` of an example; keys
      whose token is a special one, punctuation or a space;
    - for alignment, the gold alignments, and the share is 1 - alignment error
      (`transformer.maps.capture_plan.alignment_error`);
    - for a head without any of these, the one key of each example with the most weight, among those that at least half
      of its rows see. A head is broad if exp(entropy) of its rows is on average at least `MIN_BROAD_FRACTION` of their
      visible keys.

    A role is assessed only if at least `MIN_ROWS` rows and the fraction `MIN_ROW_FRACTION` of all rows can show it; a
    fixed distance only if half of all rows, or `MIN_DISTANCE_ROWS` rows, have room for it.

    A token-based role (`TOKEN_ROLES`) is given only if no simpler rule produces the same maps; see
    `_compare_with_simpler_rules`.

    Args:
        rows: Whole rows of the maps.
        site: The attention module.
        labels: The tokens and gold alignments of the examples.

    Returns:
        The assessment of every head, layer by layer.
    """
    return tuple(assessment for assessment, _ in _assess_heads(_measure_module(rows, site, labels), site))


class RoleScores(NamedTuple):
    """How far every head of one attention module plays a role.

    Attributes:
        scores_LxH: The scores, as `RoleAssessment.score`; of several fixed distances that of the best one. NaN if the
            examples cannot show the role.
        plays_LxH: Whether the head plays the role and no simpler rule explains its maps, even if another role describes
            it better.
    """

    scores_LxH: Float[np.ndarray, "L H"]
    plays_LxH: Bool[np.ndarray, "L H"]


def score_role(role: Role, rows: WholeRows, site: Site, labels: AxisLabels) -> RoleScores:
    """Score one role for every head of one attention module from whole rows of its maps at one step.

    Args:
        role: The role.
        rows: Whole rows of the maps.
        site: The attention module.
        labels: The tokens and gold alignments of the examples.
    """
    module = _measure_module(rows, site, labels)
    shape = len(site.layers), len(site.heads)
    scores = [measurement.score_LxH for measurement in module.measurements if measurement.role is role]
    scores_LxH = np.max(scores, axis=0) if scores else np.full(shape, np.nan)
    plays_LxH = np.array([role in played for _, played in _assess_heads(module, site)], bool).reshape(shape)
    return RoleScores(scores_LxH, plays_LxH)


def heads_with_role(role: Role, rows: WholeRows, site: Site, labels: AxisLabels) -> set[tuple[int, int]]:
    """Return the heads that play a role which no simpler rule explains, even if another role describes them better.

    Args:
        role: The role.
        rows: Whole rows of the maps.
        site: The attention module.
        labels: The tokens and gold alignments of the examples.

    Returns:
        Pairs (layer, head) of indices.
    """
    assessed = _assess_heads(_measure_module(rows, site, labels), site)
    return {(reading.layer, reading.head) for reading, played in assessed if role in played}


class _ModuleMeasurements(NamedTuple):
    """The examples of one attention module, and the measurements of all distances and roles that they can show."""

    examples: Sequence[ExampleRows]
    by_distance: Mapping[int, Sequence[ExampleShare]]
    measurements: Sequence[_RoleMeasurement]


def _measure_module(rows: WholeRows, site: Site, labels: AxisLabels) -> _ModuleMeasurements:
    """Measure every role that the examples can show."""
    examples = list(_extract_examples(rows, site, labels))
    by_distance = _measure_distances(examples, site, labels)
    measurements = list(_measure_roles(examples, site, labels, by_distance))
    longest = max(map(len, labels.tokens[site.query.name]), default=0)
    has_all_rows = rows.positions == tuple(range(max(longest, len(rows.positions))))
    if has_all_rows and (labels.gold_alignments or {}).get(site.name):
        measurements += _measure_alignment(rows, site, labels)
    return _ModuleMeasurements(examples, by_distance, measurements)


def _assess_heads(module: _ModuleMeasurements, site: Site) -> Iterator[tuple[RoleAssessment, set[Role]]]:
    """Yield every head's assessment, and all the roles that it plays."""
    examples, by_distance, measurements = module
    for layer, head in np.ndindex(len(site.layers), len(site.heads)):
        head_measurements = [measurement.of_head(layer, head) for measurement in measurements]
        verdicts = {
            measurement.role: _compare_with_simpler_rules(
                _collect_evidence(measurement.role, examples, by_distance, layer, head)
            )
            for measurement in head_measurements
            if measurement.role in TOKEN_ROLES and measurement.plays
        }
        yield _choose_role(head_measurements, verdicts, layer, head)


def _choose_role(
    measurements: Sequence[_HeadMeasurement], verdicts: "Mapping[Role, _Verdict]", layer: int, head: int
) -> tuple[RoleAssessment, set[Role]]:
    """Choose the role that is played and most specific, a fallback role only without another; else the nearest role."""
    # A distance that a role by tokens was told from, and lost to, is no habit of its own.
    rejected_distances = {
        rule.offset_or_position
        for verdict in verdicts.values()
        if verdict.confirms_role
        for rule in verdict.rejected
        if rule.rule is SimplerRuleKind.DISTANCE
    }

    def is_candidate(measurement: _HeadMeasurement) -> bool:
        if measurement.role in verdicts and not verdicts[measurement.role].confirms_role:
            return False
        is_rejected = measurement.role in _AT_A_DISTANCE and measurement.distance in rejected_distances
        return not (is_rejected and measurement.plays)

    candidates = list(filter(is_candidate, measurements))
    ambiguous = [
        measurement
        for measurement in measurements
        if measurement.role in verdicts and verdicts[measurement.role].ambiguous_with
    ]
    played_roles = {measurement.role for measurement in candidates if measurement.plays}
    best = max(candidates, key=lambda measurement: measurement.rank, default=None)
    best_ambiguous = max(ambiguous, key=lambda measurement: measurement.rank, default=None)
    assessment = RoleAssessment(layer, head, None, False)
    if best is not None:
        assessment = RoleAssessment(
            layer, head, best.role, best.plays, best.distance, best.share, best.uniform, best.score
        )
    if best_ambiguous is not None:
        verdict = verdicts[best_ambiguous.role]
        if best is None or not _is_specific_enough(best, verdict):
            role, _, share, uniform, score = best_ambiguous
            assessment = RoleAssessment(layer, head, role, False, 0, share, uniform, score, verdict.ambiguous_with)
    return assessment, played_roles


def _is_specific_enough(best: _HeadMeasurement, verdict: "_Verdict") -> bool:
    """Return whether a role that is played is specific enough to disregard one that simpler rules may explain."""
    is_same_distance = (
        best.role in _AT_A_DISTANCE and SimplerRule(SimplerRuleKind.DISTANCE, best.distance) in verdict.ambiguous_with
    )
    return best.plays and best.role not in FALLBACK_ROLES and not is_same_distance


def _extract_examples(rows: WholeRows, site: Site, labels: AxisLabels) -> Iterator[ExampleRows]:
    for example, all_rows in enumerate(example_rows(site, labels)):
        row_numbers = [number for number, position in enumerate(rows.positions) if position < len(all_rows.query_R)]
        query_R = np.array([rows.positions[number] for number in row_numbers], int)
        weights = np.asarray(rows.weights[example][:, :, row_numbers, : len(all_rows.key_tokens)], np.float64)
        if site.values is not MapValues.PROBABILITY:
            weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-9)
        # A row that no head reads anything of, such as a masked one, shows no role.
        is_read_R = weights.sum(axis=-1).max(axis=(0, 1), initial=0) > 0
        visible = all_rows.visible_RxK[query_R] & is_read_R[:, None]
        yield all_rows._replace(query_R=query_R, weights_LxHxRxK=weights, visible_RxK=visible)


def _measure_roles(
    examples: Sequence[ExampleRows],
    site: Site,
    labels: AxisLabels,
    by_distance: Mapping[int, Sequence[ExampleShare]],
) -> Iterator[_RoleMeasurement]:
    """Yield the measurements of every role that the examples can show."""
    shown_rules = {role: rule for role, rule in ROLE_RULES.items() if rule.is_shown_by(site, labels)}
    for role, rule in shown_rules.items():
        assessed = [
            example
            for example, is_assessed in zip(examples, _assessed_examples(role, examples), strict=True)
            if is_assessed
        ]
        shares = [measure_key_share(example, rule.keys(example)) for example in assessed]
        yield from _average_over_examples(role, rule.distance, assessed, shares)
    for distance, example_shares in by_distance.items():
        if abs(distance) > 1:
            yield from _average_over_examples(Role.DISTANCE, distance, examples, example_shares)
    # Where the first key makes a role of its own, it is no other place.
    first_key = int(Role.FIRST_TOKEN in shown_rules)
    single_keys = [_measure_single_key(example, first_key) for example in examples]
    yield from _average_over_examples(Role.SINGLE_KEY, 0, examples, single_keys)
    yield from _measure_broad(examples)


def _assessed_examples(role: Role, examples: Sequence[ExampleRows]) -> list[bool]:
    """Return which examples a role is assessed on: induction on those that repeat, if there are any."""
    repeating = [example.period is not None for example in examples]
    return repeating if role is Role.INDUCTION and any(repeating) else [True] * len(examples)


def _average_over_examples(
    role: Role, distance: int, examples: Sequence[ExampleRows], shares_by_example: Sequence[ExampleShare]
) -> Iterator[_RoleMeasurement]:
    """Yield the means over the examples that show a role, if enough of all rows do."""
    possible = sum(int(example.visible_RxK.any(axis=-1).sum()) for example in examples)
    min_rows = max(MIN_ROWS, possible * MIN_ROW_FRACTION)
    if role is Role.DISTANCE:
        # A distance that few rows have room for would be met by whatever these rows look at.
        min_rows = max(min_rows, min(MIN_DISTANCE_ROWS, possible * 0.5))
    if sum(example_share.rows for example_share in shares_by_example) >= min_rows:
        shares, uniforms = zip(
            *(
                (example_share.share_LxH, np.broadcast_to(example_share.uniform, example_share.share_LxH.shape))
                for example_share in shares_by_example
                if example_share.rows
            ),
            strict=True,
        )
        uniform_LxH = np.mean(uniforms, axis=0)
        if uniform_LxH.max() < 1:
            share_LxH = np.mean(shares, axis=0)
            yield _RoleMeasurement(role, distance, share_LxH, uniform_LxH, score_above_chance(share_LxH, uniform_LxH))


def _measure_single_key(example: ExampleRows, first_key: int) -> ExampleShare:
    """Return the largest mean weight of a key, from index `first_key` on, that at least half of all rows see."""
    sees_K, rows = example.visible_RxK.sum(axis=0), example.visible_RxK.any(axis=-1)
    is_candidate = (sees_K >= max(MIN_ROWS, rows.sum() / 2)) & (np.arange(len(sees_K)) >= first_key)
    if not is_candidate.any():
        zeros = np.zeros(example.weights_LxHxRxK.shape[:2])
        return ExampleShare(zeros, zeros, 0)
    visible_WxR = example.visible_RxK[:, is_candidate].T
    mean_LxHxW = (example.weights_LxHxRxK[..., is_candidate] * visible_WxR.T).sum(axis=2) / sees_K[is_candidate]
    uniform_W = (visible_WxR / np.maximum(example.visible_RxK.sum(axis=-1), 1)).sum(axis=-1) / sees_K[is_candidate]
    return ExampleShare(mean_LxHxW.max(axis=-1), uniform_W[mean_LxHxW.argmax(axis=-1)], int(sees_K[is_candidate].min()))


def _measure_broad(examples: Sequence[ExampleRows]) -> Iterator[_RoleMeasurement]:
    """Yield exp(entropy) of a row as a share of the keys that it sees: 1 for equal weights."""
    shares, total = [], 0
    for example in examples:
        count_R = example.visible_RxK.sum(axis=-1)
        rows = count_R >= MIN_KEYS
        if not rows.any():
            continue
        weights = example.weights_LxHxRxK[:, :, rows]
        entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
        shares.append((np.exp(entropy) / count_R[rows]).mean(axis=-1))
        total += int(rows.sum())
    if total >= MIN_ROWS:
        share_LxH = np.mean(shares, axis=0)
        yield _RoleMeasurement(Role.BROAD, 0, share_LxH, np.ones_like(share_LxH), share_LxH)


# --- Simpler rules


class _Verdict(NamedTuple):
    """A role compared with simpler rules: those it beats, those that explain it, those it is ambiguous with."""

    rejected: tuple[SimplerRule, ...]
    explained: tuple[SimplerRule, ...]
    ambiguous_with: tuple[SimplerRule, ...]

    @property
    def confirms_role(self) -> bool:
        return not self.explained and not self.ambiguous_with


class _Prediction(NamedTuple):
    """What a rule predicts for each of the N rows that show a role.

    `on_role_N` is the weight that the rule puts on the role's keys. `on_rule_N` is the head's weight on the rule's key:
    NaN where the rule has no key, and throughout for a rule that spreads its weight.
    """

    simpler: SimplerRule
    on_role_N: Float[np.ndarray, " N"]
    on_rule_N: Float[np.ndarray, " N"]


class _Evidence(NamedTuple):
    """The N rows of all examples that show a role: the head's weight on the role's keys, and that of uniform attention.

    `keys_N` counts the keys that a row sees, and `assessed_N` marks the rows on which the role is assessed.
    """

    weight_N: Float[np.ndarray, " N"]
    uniform_N: Float[np.ndarray, " N"]
    keys_N: Int[np.ndarray, " N"]
    assessed_N: Bool[np.ndarray, " N"]
    predictions: Sequence[_Prediction]


def _compare_with_simpler_rules(evidence: _Evidence) -> _Verdict:
    """Compare a role with every rule that may produce the same maps.

    A rule is a possible explanation if it predicts at least the share `MIN_EXPLAINED` of the role's score. Then the
    rows decide in which it predicts less: the head follows the role or the rule, whichever has more of its weight there
    beyond that of uniform attention; against a rule that spreads its weight, the role must reach `MIN_ROLE_SCORE`
    there. The comparison is ambiguous if there are too few such rows to assess a role, or the head follows neither.
    """
    weight_N, uniform_N, keys_N, assessed_N, predictions = evidence
    score = _kappa(weight_N[assessed_N], uniform_N[assessed_N])
    verdict: dict[str, list[SimplerRule]] = {"rejected": [], "explained": [], "ambiguous": []}
    for simpler, on_role_N, on_rule_N in predictions:
        if _kappa(on_role_N[assessed_N], uniform_N[assessed_N]) < MIN_EXPLAINED * score:
            verdict["rejected"].append(simpler)
            continue
        disagrees_N = (on_role_N - uniform_N) / np.maximum(1 - uniform_N, 1e-9) < MIN_EXPLAINED * score
        has_key_N = disagrees_N & np.isfinite(on_rule_N)
        role_kappa = _kappa(weight_N[disagrees_N], uniform_N[disagrees_N])
        has_no_key = not np.isfinite(on_rule_N).any()
        rule_kappa = MIN_ROLE_SCORE if has_no_key else _kappa(on_rule_N[has_key_N], 1 / keys_N[has_key_N])
        if (
            disagrees_N.sum() < max(MIN_ROWS, MIN_ROW_FRACTION * len(disagrees_N))
            or max(role_kappa, rule_kappa) < MIN_ROLE_SCORE / 2
        ):
            verdict["ambiguous"].append(simpler)
        else:
            verdict["explained" if rule_kappa > role_kappa else "rejected"].append(simpler)
    return _Verdict(*map(tuple, verdict.values()))


def _kappa(weights: np.ndarray, uniforms: np.ndarray) -> float:
    """Return how far mean weights have come from uniform ones to 1; 0 without rows."""
    if not len(weights) or uniforms.mean() >= 1:
        return 0.0
    return float(score_above_chance(weights.mean(), uniforms.mean()))


def _collect_evidence(
    role: Role,
    examples: Sequence[ExampleRows],
    by_distance: Mapping[int, Sequence[ExampleShare]],
    layer: int,
    head: int,
) -> _Evidence:
    """Collect the rows of all examples that bear on whether a head plays a token-based role."""
    targets = [ROLE_RULES[role].keys(example) & example.visible_RxK for example in examples]
    weights = [example.weights_LxHxRxK[layer, head] for example in examples]
    shows_role = [target.any(axis=-1) for target in targets]
    num_visible = [example.visible_RxK.sum(axis=-1) for example in examples]

    def select_rows(values: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([example_values[rows] for example_values, rows in zip(values, shows_role, strict=True)])

    def weight_on_role(parts: Sequence[np.ndarray]) -> np.ndarray:
        """Weights on the role's keys."""
        return select_rows([(part * target).sum(axis=-1) for part, target in zip(parts, targets, strict=True)])

    def predict_by_key(simpler: SimplerRule, mean_share: float, keys: Sequence[np.ndarray]) -> _Prediction:
        """Of a rule that names one key [R, K] of every row, at which the head has the weight `mean_share`."""
        inside = [key & example.visible_RxK for key, example in zip(keys, examples, strict=True)]
        own = [
            np.where(key.any(axis=-1), (weight * key).sum(axis=-1), np.nan)
            for weight, key in zip(weights, inside, strict=True)
        ]
        return _Prediction(simpler, mean_share * weight_on_role(inside), select_rows(own))

    def predict_by_map(rule: SimplerRuleKind, parts: Sequence[np.ndarray]) -> _Prediction:
        on_role = weight_on_role(parts)
        return _Prediction(SimplerRule(rule), on_role, np.full_like(on_role, np.nan))

    rule_predictions = []
    for distance, shares_by_example in by_distance.items():
        mean_share = _mean_share(shares_by_example)[layer, head]
        if mean_share >= MIN_EXPLAINED * MIN_ROLE_SCORE:  # of less no role comes
            keys = [keys_at_distance(distance)(example) for example in examples]
            rule_predictions.append(predict_by_key(SimplerRule(SimplerRuleKind.DISTANCE, distance), mean_share, keys))
    if len(examples) > 1:
        rule_predictions.append(predict_by_map(SimplerRuleKind.POSITION, _predict_from_position(examples, weights)))
    else:
        sees_K = np.maximum(examples[0].visible_RxK.sum(axis=0), 1)
        for key_index, mean_share in enumerate(weights[0].sum(axis=0) / sees_K):
            if mean_share >= MIN_EXPLAINED * MIN_ROLE_SCORE and sees_K[key_index] >= MIN_ROWS:
                keys = [np.broadcast_to(examples[0].keys == key_index, examples[0].visible_RxK.shape)]
                rule_predictions.append(
                    predict_by_key(SimplerRule(SimplerRuleKind.FIXED_POSITION, key_index), mean_share, keys)
                )
    if role in (Role.INDUCTION, Role.SAME_TOKEN):
        rule_predictions.append(predict_by_map(SimplerRuleKind.KEY_TOKEN, _predict_from_key_token(examples, weights)))
    assessed = [
        np.full(len(rows), is_assessed)
        for rows, is_assessed in zip(shows_role, _assessed_examples(role, examples), strict=True)
    ]
    uniform_N = select_rows(
        [target.sum(axis=-1) / np.maximum(count, 1) for target, count in zip(targets, num_visible, strict=True)]
    )
    return _Evidence(
        weight_on_role(weights), uniform_N, select_rows(num_visible), select_rows(assessed), rule_predictions
    )


def _measure_distances(
    examples: Sequence[ExampleRows], site: Site, labels: AxisLabels
) -> dict[int, list[ExampleShare]]:
    """Measure every fixed distance on every example; empty unless queries and keys are one ordered sequence."""
    if not is_ordered_sequence(site, labels):
        return {}
    longest = max((len(example.key_tokens) for example in examples), default=0)
    distances = sorted(
        range(-longest + 1, 1 if site.causal else longest), key=lambda distance: (abs(distance), distance)
    )
    return {distance: [_measure_distance(example, distance) for example in examples] for distance in distances}


def _measure_distance(example: ExampleRows, distance: int) -> ExampleShare:
    """Measure a fixed distance on one example."""
    key_R = example.query_R + distance
    row_N = np.flatnonzero((key_R >= 0) & (key_R < len(example.key_tokens)))
    row_N = row_N[example.visible_RxK[row_N, key_R[row_N]]]
    share_LxH = example.weights_LxHxRxK[:, :, row_N, key_R[row_N]].sum(axis=-1) / max(len(row_N), 1)
    uniform = (1 / example.visible_RxK[row_N].sum(axis=-1)).sum() / max(len(row_N), 1)
    return ExampleShare(share_LxH, uniform, len(row_N))


def _mean_share(shares_by_example: Sequence[ExampleShare]) -> np.ndarray:
    """Return the mean share [L, H] over the examples that show a role; 0 if none does."""
    shares = [example_share.share_LxH for example_share in shares_by_example if example_share.rows]
    return np.mean(shares, axis=0) if shares else np.zeros_like(shares_by_example[0].share_LxH)


def _predict_from_position(examples: Sequence[ExampleRows], weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Predict from position alone: for each example the mean map [R, K] of the others; 0 where no other has the row."""
    longest = max(len(example.key_tokens) for example in examples)
    positions = max((int(example.query_R.max(initial=-1)) for example in examples), default=-1) + 1
    total_QxK, count_Q = np.zeros((positions, longest)), np.zeros(positions)
    for example, weights_RxK in zip(examples, weights, strict=True):
        total_QxK[example.query_R, : len(example.key_tokens)] += weights_RxK
        count_Q[example.query_R] += example.visible_RxK.any(axis=-1)
    predictions = []
    for example, weights_RxK in zip(examples, weights, strict=True):
        count_R = count_Q[example.query_R] - example.visible_RxK.any(axis=-1)
        rest_RxK = total_QxK[example.query_R, : len(example.key_tokens)] - weights_RxK
        predictions.append(rest_RxK / np.maximum(count_R, 1)[:, None])
    return predictions


def _predict_from_key_token(examples: Sequence[ExampleRows], weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Predict from the key's token alone: each key's mean weight in other rows that see its token; rows sum to one."""
    tokens = {
        token: number
        for number, token in enumerate({normalize_token(t) for example in examples for t in example.key_tokens})
    }
    numbers = [np.array([tokens[normalize_token(token)] for token in example.key_tokens], int) for example in examples]
    sums_by_example = []
    for example, weights_RxK, number_K in zip(examples, weights, numbers, strict=True):
        own_TxR, visible_TxR = np.zeros((2, len(tokens), len(weights_RxK)))
        np.add.at(own_TxR, number_K, weights_RxK.T)
        np.add.at(visible_TxR, number_K, example.visible_RxK.T)
        sums_by_example.append((own_TxR.T, visible_TxR.T))
    total_T, count_T = (
        np.sum([part.sum(axis=0) for part in parts], axis=0) for parts in zip(*sums_by_example, strict=True)
    )
    predictions = []
    for example, (own_RxT, visible_RxT), number_K in zip(examples, sums_by_example, numbers, strict=True):
        mean_RxT = (total_T - own_RxT) / np.maximum(count_T - visible_RxT, 1)
        mean_RxK = np.maximum(mean_RxT[:, number_K] * example.visible_RxK, 0)
        predictions.append(mean_RxK / np.maximum(mean_RxK.sum(axis=-1, keepdims=True), 1e-9))
    return predictions


def _measure_alignment(rows: WholeRows, site: Site, labels: AxisLabels) -> list[_RoleMeasurement]:
    """Measure 1 - alignment error of the largest weights, against the better of two heads that ignore the sentence."""
    assert labels.gold_alignments is not None
    agreements = [
        (_agreement(rows.weights[example].argmax(axis=-1), links), chance)
        for example, (links, chance) in enumerate(
            zip(labels.gold_alignments[site.name], alignment_chance(site, labels), strict=True)
        )
        if links
    ]
    if not agreements:
        return []
    share = np.mean([share for share, _ in agreements], axis=0)
    uniform = float(np.mean([chance for _, chance in agreements]))
    if uniform >= 1:
        return []
    uniform_LxH = np.full_like(share, uniform)
    return [_RoleMeasurement(Role.ALIGNMENT, 0, share, uniform_LxH, score_above_chance(share, uniform_LxH))]


def _agreement(chosen_LxHxQ: np.ndarray, links: Sequence[GoldAlignment]) -> np.ndarray:
    """Return (|A & S| + |A & P|) / (|A| + |S|) after Och and Ney (2003), A being one key for each linked query."""
    # A sure link counts twice, as it is also a possible one.
    agreement = sum((1 + link.sure) * (chosen_LxHxQ[..., link.query] == link.key) for link in links)
    return np.asarray(agreement) / (len({link.query for link in links}) + sum(link.sure for link in links))
