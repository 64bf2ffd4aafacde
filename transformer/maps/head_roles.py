"""Classify what a head does from its maps: the two roles that describe it best, with the weight that supports them."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.attention.sites import MapValues, Site
from transformer.maps.role_rules import (
    MIN_KEYS,
    MIN_ROLE_SCORE,
    MIN_ROWS,
    ROLE_RULES,
    USUAL_PRECEDENCE,
    Band,
    ExampleRows,
    ExampleShare,
    Grouping,
    Role,
    absolute_group,
    alignment_chance,
    example_rows,
    is_ordered_sequence,
    keys_in_band,
    measure_band_share,
    measure_key_share,
    normalize_token,
    predict_weights,
    relative_group,
    score_above_chance,
)
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

MIN_DISTANCE_ROWS = 8  # rows that show a distance or band for which fewer than half of all rows have room
MIN_EXPLAINED = 0.5  # the least share of a role's score that a simpler rule foretells to be an explanation of it
MIN_ROW_FRACTION = 0.1  # of all rows, too: a word that stands twice in ten sentences makes no habit
# The least uniformity of a head that reads near uniformly: no role, as untrained heads read so.
NEAR_UNIFORM = 0.9
_WORD_ROLES = (Role.CURRENT_WORD, Role.PREVIOUS_WORD)
_BAND_OF_ROLE = {
    Role.PREVIOUS_TOKEN: Band(-1, -1),
    Role.NEXT_TOKEN: Band(1, 1),
    Role.DIAGONAL: Band(0, 0),
}


class WholeRows(NamedTuple):
    """Whole rows of the maps of one attention module.

    Attributes:
        positions: The query positions of the rows.
        weights: The weights [example, layer, head, row, key].
    """

    positions: tuple[int, ...]
    weights: Float[np.ndarray, "B L H R K"]


# Roles that tokens make: of texts that are alike in their positions a simpler rule has the same maps.
TOKEN_ROLES = (
    Role.INDUCTION,
    Role.SAME_TOKEN,
    Role.RARE_TOKEN,
    Role.CURRENT_WORD,
    Role.PREVIOUS_WORD,
    Role.SPECIAL_TOKEN,
    Role.PUNCTUATION,
    Role.DELIMITER,
)


class SimplerRuleKind(enum.Enum):
    """Rules that are simpler than the token-based roles (`TOKEN_ROLES`) and may produce the same maps."""

    DISTANCE = "a fixed distance"
    FIXED_POSITION = "a fixed position"
    POSITION = "position alone"
    RELATIVE_POSITION = "relative position alone"
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


class RoleEvidence(NamedTuple):
    """How far a head plays a role.

    Attributes:
        role: The role.
        weight: The mean weight on the keys that define the role.
        uniform: The same for a head with equal weights on all visible keys.
        score: How far the head has come from `uniform` to 1.
        rows: How many rows can show the role.
        band: The keys of a role at a distance, else None.
    """

    role: Role
    weight: float
    uniform: float
    score: float
    rows: int
    band: Band | None = None

    @property
    def is_high(self) -> bool:
        """Whether the score is high enough for the role."""
        return self.score >= ROLE_RULES[self.role].min_score

    @property
    def is_wide_band(self) -> bool:
        """Whether the keys are several at a distance."""
        return self.band is not None and self.band.first < self.band.last

    @property
    def specificity(self) -> float:
        """How much the keys say: of a set of keys and a smaller one in it the smaller says more."""
        return self.weight * float(np.log(self.weight / self.uniform))

    @property
    def rank(self) -> tuple[bool, int, float]:
        """The order of roles: high scores, then the precedence, then the most specific keys."""
        return (self.is_high, self.precedence, self.specificity) if self.is_high else (False, 0, self.score)

    @property
    def precedence(self) -> int:
        """How soon the role is chosen of several that a head plays."""
        return ROLE_RULES[self.role].precedence

    @property
    def rank_in_role(self) -> tuple[bool, float]:
        """The order of the bands of a role: high scores, then the keys that say most over all rows."""
        return self.is_high, self.specificity * self.rows if self.is_high else self.score


class RoleAssessment(NamedTuple):
    """What one head does.

    Attributes:
        layer: The index of the layer.
        head: The index of the head.
        evidence: At most two roles: the one that the head plays, and one that it plays besides; or those with the
            highest scores, if it plays none.
        plays: Whether the head plays the first of them: whether the score is high enough, and no simpler rule explains
            the maps.
        ambiguous_with: The simpler rules that these examples cannot tell from the first role; with any, the head does
            not play it.
        uniformity: exp(entropy) of a row as a share of the keys that it sees, on average: 1 for uniform attention.
    """

    layer: int
    head: int
    evidence: tuple[RoleEvidence, ...] = ()
    plays: bool = False
    ambiguous_with: tuple[SimplerRule, ...] = ()
    uniformity: float = 1.0

    @property
    def role(self) -> Role | None:
        """The role that the head plays."""
        return self.evidence[0].role if self.plays else None


class _RoleMeasurement(NamedTuple):
    """The weight of every head on the keys of a role, that of uniform attention, and the rows that show the role."""

    role: Role
    band: Band | None
    share_LxH: np.ndarray
    uniform_LxH: np.ndarray
    rows: int

    @property
    def score_LxH(self) -> np.ndarray:
        return score_above_chance(self.share_LxH, self.uniform_LxH)

    def of_head(self, layer: int, head: int) -> RoleEvidence:
        share, uniform, score = (
            float(values[layer, head]) for values in (self.share_LxH, self.uniform_LxH, self.score_LxH)
        )
        return RoleEvidence(self.role, share, uniform, score, self.rows, self.band)


def classify_heads(rows: WholeRows, site: Site, labels: AxisLabels) -> tuple[RoleAssessment, ...]:
    """Classify every head of one attention module from whole rows of its maps at one step.

    For a set of keys S(q) that defines a role, the share is mean_q sum_(k in S(q)) w_qk over the rows that see a key of
    S(q), first within an example and then over examples, and even = mean_q |S(q)| / |visible(q)| over the same rows.
    The head plays the role if (share - even) / (1 - even) reaches the least score of its rule. Of several roles it is
    given alignment, else the one with the largest share log(share / even). S(q) is

    - q - 1, q + 1, q + d for a fixed d; q itself; the first key;
    - a band of keys up to q, from q on, or around it (`WIDEST_BAND`), over the rows that see as many other keys;
    - on an image, the patch of q and those that touch it;
    - the other tokens of the word of q, or those of the word before;
    - keys with the token of q at another position; keys right after an earlier such position (induction), or, if
      examples repeat random tokens, the key one period back and one on;
    - keys at another position whose token occurs once in all examples, if these are at most `RARE` of an example; keys
      whose token is special, or punctuation or a space, or any of these;
    - for alignment, the gold alignments, and the share is 1 - alignment error
      (`transformer.maps.capture_plan.alignment_error`);
    - for a head without any of these, or with only a band that says less, the one key of each example with the most
      weight, among those that at least half of its rows see; or columns, the keys that the other rows read more than
      uniformly.

    A head that plays none of these reads by position alone if the mean map p of the other examples, by absolute or by
    relative position, has more of it than uniform attention: the share is mean_q sum_k min(w_qk, p_qk).

    A role is assessed only if at least `MIN_ROWS` rows and the fraction `MIN_ROW_FRACTION` of all rows can show it; a
    distance or band only if half of all rows, or `MIN_DISTANCE_ROWS` rows, have room for it.

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
        scores_LxH: The scores, as `RoleEvidence.score`; of several fixed distances that of the best one. NaN if the
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


def roles_played(rows: WholeRows, site: Site, labels: AxisLabels) -> set[Role]:
    """Return the roles that at least one head of an attention module plays at one step.

    Args:
        rows: Whole rows of the maps.
        site: The attention module.
        labels: The tokens and gold alignments of the examples.
    """
    return set().union(*(played for _, played in _assess_heads(_measure_module(rows, site, labels), site)))


class _ModuleMeasurements(NamedTuple):
    """The examples of one attention module, and the measurements of all roles that they can show."""

    examples: Sequence[ExampleRows]
    measurements: Sequence[_RoleMeasurement]
    uniformity_LxH: np.ndarray


def _measure_module(rows: WholeRows, site: Site, labels: AxisLabels) -> _ModuleMeasurements:
    """Measure every role that the examples can show."""
    examples = list(_extract_examples(rows, site, labels))
    measurements = list(_measure_roles(examples, site, labels))
    longest = max(map(len, labels.tokens[site.query.name]), default=0)
    has_all_rows = rows.positions == tuple(range(max(longest, len(rows.positions))))
    if has_all_rows and ROLE_RULES[Role.ALIGNMENT].is_shown_by(site, labels):
        measurements += _measure_alignment(rows, site, labels)
    return _ModuleMeasurements(examples, measurements, _measure_uniformity(examples))


def _assess_heads(module: _ModuleMeasurements, site: Site) -> Iterator[tuple[RoleAssessment, set[Role]]]:
    """Yield every head's assessment, and all the roles that it plays."""
    for layer, head in np.ndindex(len(site.layers), len(site.heads)):
        evidence = [measurement.of_head(layer, head) for measurement in module.measurements]
        verdicts = {
            one.role: _compare_with_simpler_rules(_collect_rows(one.role, module.examples, evidence, layer, head))
            for one in evidence
            if one.role in TOKEN_ROLES and one.is_high
        }
        assessment, played_roles = _choose_roles(evidence, verdicts, module.examples, layer, head)
        yield assessment._replace(uniformity=float(module.uniformity_LxH[layer, head])), played_roles


def _choose_roles(
    evidence: Sequence[RoleEvidence],
    verdicts: "Mapping[Role, _Verdict]",
    examples: Sequence[ExampleRows],
    layer: int,
    head: int,
) -> tuple[RoleAssessment, set[Role]]:
    """Choose the role that is played and most specific, a fallback role only without another, and a second one."""
    # A distance that a role by tokens was told from, and lost to, is no habit of its own.
    rejected_distances = {
        rule.offset_or_position
        for verdict in verdicts.values()
        if verdict.confirms_role
        for rule in verdict.rejected
        if rule.rule is SimplerRuleKind.DISTANCE
    }

    # The rows behind a column have it in reach, which makes no band.
    columns = [one.specificity for one in evidence if one.role in (Role.SINGLE_KEY, Role.COLUMNS) and one.is_high]

    def is_candidate(one: RoleEvidence) -> bool:
        if one.role in verdicts and not verdicts[one.role].confirms_role:
            return False
        if one.is_wide_band and one.is_high and one.specificity < max(columns, default=0):
            return False
        return not (one.is_high and _single_distance(one) in rejected_distances)

    best_of_role: dict[Role, RoleEvidence] = {}
    for one in sorted(filter(is_candidate, evidence), key=lambda one: one.rank_in_role):
        best_of_role[one.role] = one
    candidates = sorted(best_of_role.values(), key=lambda one: one.rank, reverse=True)
    played_roles = {one.role for one in candidates if one.is_high}
    # A distance says less than a word: where both fit it is the distance.
    ambiguous = [
        one
        for one in evidence
        if one.role in verdicts and verdicts[one.role].ambiguous_with and one.role not in _WORD_ROLES
    ]
    best_ambiguous = max(ambiguous, key=lambda one: one.rank, default=None)
    if best_ambiguous is not None:
        verdict = verdicts[best_ambiguous.role]
        if not (candidates and _is_specific_enough(candidates[0], verdict)):
            return RoleAssessment(layer, head, (best_ambiguous,), False, verdict.ambiguous_with), played_roles
    if not candidates:
        return RoleAssessment(layer, head), played_roles
    best = candidates[0]
    others = [one for one in candidates[1:] if one.is_high == best.is_high]
    second = next((one for one in others if not _reads_same_keys(best, one, examples, layer, head)), None)
    return RoleAssessment(layer, head, (best, *([second] if second else [])), best.is_high), played_roles


def _single_distance(evidence: RoleEvidence) -> int | None:
    """Return key position minus query position of a role at one distance."""
    band = _BAND_OF_ROLE.get(evidence.role, evidence.band)
    return band.first if band and band.first == band.last else None


def _is_specific_enough(best: RoleEvidence, verdict: "_Verdict") -> bool:
    """Return whether a role that is played is specific enough to disregard one that simpler rules may explain."""
    distances = [rule.offset_or_position for rule in verdict.ambiguous_with if rule.rule is SimplerRuleKind.DISTANCE]
    return best.is_high and best.precedence >= USUAL_PRECEDENCE and _single_distance(best) not in distances


def _keys_of(evidence: RoleEvidence) -> Callable[[ExampleRows], np.ndarray] | None:
    """Return the keys that define a role; None for a role that is found in the maps."""
    if evidence.band is not None:
        return keys_in_band(evidence.band)
    return ROLE_RULES[evidence.role].keys


def _reads_same_keys(
    best: RoleEvidence, other: RoleEvidence, examples: Sequence[ExampleRows], layer: int, head: int
) -> bool:
    """Return whether most of the weight on another role's keys is on those of the best one, or they are unknown."""
    best_keys, other_keys = _keys_of(best), _keys_of(other)
    if best_keys is None or other_keys is None:
        return other.role is not Role.POSITION
    weight = shared = 0.0
    for example in examples:
        on_other_RxK = example.weights_LxHxRxK[layer, head] * other_keys(example)
        weight += on_other_RxK.sum()
        shared += (on_other_RxK * best_keys(example)).sum()
    return shared > 0.5 * weight


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


def _measure_roles(examples: Sequence[ExampleRows], site: Site, labels: AxisLabels) -> Iterator[_RoleMeasurement]:
    """Yield the measurements of every role that the examples can show."""
    longest = max((len(example.key_tokens) for example in examples), default=0)
    for role, rule in ROLE_RULES.items():
        if not rule.is_shown_by(site, labels):
            continue
        if rule.bands is not None and is_ordered_sequence(site, labels):
            for band in rule.bands(site, longest):
                shares = [measure_band_share(example, band) for example in examples]
                yield from _average_over_examples(role, band, examples, shares)
        elif rule.keys is not None:
            assessed = [
                example
                for example, is_assessed in zip(examples, _assessed_examples(role, examples), strict=True)
                if is_assessed
            ]
            shares = [measure_key_share(example, rule.keys(example)) for example in assessed]
            yield from _average_over_examples(role, None, assessed, shares)
        elif rule.measure is not None:
            yield from _average_over_examples(role, None, examples, rule.measure(examples, site, labels))


def _assessed_examples(role: Role, examples: Sequence[ExampleRows]) -> list[bool]:
    """Return which examples a role is assessed on: induction on those that repeat, if there are any."""
    repeating = [example.period is not None for example in examples]
    return repeating if role is Role.INDUCTION and any(repeating) else [True] * len(examples)


def _average_over_examples(
    role: Role, band: Band | None, examples: Sequence[ExampleRows], shares_by_example: Sequence[ExampleShare]
) -> Iterator[_RoleMeasurement]:
    """Yield the means over the examples that show a role, if enough of all rows do."""
    possible = sum(int(example.visible_RxK.any(axis=-1).sum()) for example in examples)
    min_rows = max(MIN_ROWS, possible * MIN_ROW_FRACTION)
    if band is not None:
        # A distance that few rows have room for would be met by whatever these rows look at.
        min_rows = max(min_rows, min(MIN_DISTANCE_ROWS, possible * 0.5))
    rows = sum(example_share.rows for example_share in shares_by_example)
    if rows >= min_rows:
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
            yield _RoleMeasurement(role, band, np.mean(shares, axis=0), uniform_LxH, rows)


def _measure_uniformity(examples: Sequence[ExampleRows]) -> np.ndarray:
    """Return exp(entropy) of a row as a share of the keys that it sees: 1 for equal weights."""
    shares = [np.ones(examples[0].weights_LxHxRxK.shape[:2])] if examples else []
    for example in examples:
        count_R = example.visible_RxK.sum(axis=-1)
        rows = count_R >= MIN_KEYS
        if rows.any():
            weights = example.weights_LxHxRxK[:, :, rows]
            entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
            shares.append((np.exp(entropy) / count_R[rows]).mean(axis=-1))
    return np.mean(shares[1:] or shares, axis=0)


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


class _RoleRows(NamedTuple):
    """The N rows of all examples that show a role: the head's weight on the role's keys, and that of uniform attention.

    `keys_N` counts the keys that a row sees, and `assessed_N` marks the rows on which the role is assessed.
    """

    weight_N: Float[np.ndarray, " N"]
    uniform_N: Float[np.ndarray, " N"]
    keys_N: Int[np.ndarray, " N"]
    assessed_N: Bool[np.ndarray, " N"]
    predictions: Sequence[_Prediction]


def _compare_with_simpler_rules(rows: _RoleRows) -> _Verdict:
    """Compare a role with every rule that may produce the same maps.

    A rule is a possible explanation if it predicts at least the share `MIN_EXPLAINED` of the role's score. Then the
    rows decide in which it predicts less: the head follows the role or the rule, whichever has more of its weight there
    beyond that of uniform attention; against a rule that spreads its weight, the role must reach `MIN_ROLE_SCORE`
    there. The comparison is ambiguous if there are too few such rows to assess a role, or the head follows neither.
    """
    weight_N, uniform_N, keys_N, assessed_N, predictions = rows
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


def _collect_rows(
    role: Role, examples: Sequence[ExampleRows], evidence: Sequence[RoleEvidence], layer: int, head: int
) -> _RoleRows:
    """Collect the rows of all examples that bear on whether a head plays a token-based role."""
    role_keys = ROLE_RULES[role].keys
    assert role_keys is not None
    targets = [role_keys(example) & example.visible_RxK for example in examples]
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

    def predict_by_group(rule: SimplerRuleKind, group: Grouping, leave_out_rows: bool = False) -> _Prediction:
        on_role = weight_on_role(predict_weights(examples, weights, group, leave_out_rows))
        return _Prediction(SimplerRule(rule), on_role, np.full_like(on_role, np.nan))

    rule_predictions = []
    for one in evidence:
        distance = _single_distance(one)
        if distance is not None and one.weight >= MIN_EXPLAINED * MIN_ROLE_SCORE:  # of less no role comes
            keys = [keys_in_band(Band(distance, distance))(example) for example in examples]
            rule_predictions.append(predict_by_key(SimplerRule(SimplerRuleKind.DISTANCE, distance), one.weight, keys))
    if len(examples) > 1:
        rule_predictions.append(predict_by_group(SimplerRuleKind.POSITION, absolute_group))
        if role in _WORD_ROLES:
            rule_predictions.append(predict_by_group(SimplerRuleKind.RELATIVE_POSITION, relative_group))
    else:
        sees_K = np.maximum(examples[0].visible_RxK.sum(axis=0), 1)
        for key_index, mean_share in enumerate(weights[0].sum(axis=0) / sees_K):
            if mean_share >= MIN_EXPLAINED * MIN_ROLE_SCORE and sees_K[key_index] >= MIN_ROWS:
                keys = [np.broadcast_to(examples[0].keys == key_index, examples[0].visible_RxK.shape)]
                rule_predictions.append(
                    predict_by_key(SimplerRule(SimplerRuleKind.FIXED_POSITION, key_index), mean_share, keys)
                )
    if role in (Role.INDUCTION, Role.SAME_TOKEN):
        rule_predictions.append(predict_by_group(SimplerRuleKind.KEY_TOKEN, _key_token_group, leave_out_rows=True))
    assessed = [
        np.full(len(rows), is_assessed)
        for rows, is_assessed in zip(shows_role, _assessed_examples(role, examples), strict=True)
    ]
    uniform_N = select_rows(
        [target.sum(axis=-1) / np.maximum(count, 1) for target, count in zip(targets, num_visible, strict=True)]
    )
    return _RoleRows(
        weight_on_role(weights), uniform_N, select_rows(num_visible), select_rows(assessed), rule_predictions
    )


def _key_token_group(examples: Sequence[ExampleRows]) -> list[np.ndarray]:
    """Number the tokens of keys."""
    tokens = {normalize_token(token) for example in examples for token in example.key_tokens}
    numbers = {token: number for number, token in enumerate(sorted(tokens))}
    return [
        np.broadcast_to([numbers[normalize_token(token)] for token in example.key_tokens], example.visible_RxK.shape)
        for example in examples
    ]


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
    num_rows = sum(len({link.query for link in links}) for links in labels.gold_alignments[site.name])
    return [_RoleMeasurement(Role.ALIGNMENT, None, share, np.full_like(share, uniform), num_rows)]


def _agreement(chosen_LxHxQ: np.ndarray, links: Sequence[GoldAlignment]) -> np.ndarray:
    """Return (|A & S| + |A & P|) / (|A| + |S|) after Och and Ney (2003), A being one key for each linked query."""
    # A sure link counts twice, as it is also a possible one.
    agreement = sum((1 + link.sure) * (chosen_LxHxQ[..., link.query] == link.key) for link in links)
    return np.asarray(agreement) / (len({link.query for link in links}) + sum(link.sure for link in links))
