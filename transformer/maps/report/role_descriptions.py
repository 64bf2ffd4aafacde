"""The page's data of head roles: each head's role at the last stored step, and the descriptions of the roles."""

from typing import Any, NamedTuple

import numpy as np

from transformer.attention.sites import Site
from transformer.maps.attention_distance import page_attention_distances
from transformer.maps.head_roles import (
    NEAR_UNIFORM,
    RoleAssessment,
    RoleEvidence,
    WholeRows,
    classify_heads,
)
from transformer.maps.quantize import Quantized
from transformer.maps.report.run_data import evenly_spaced_indices
from transformer.maps.role_rules import MIN_ROLE_SCORE, ROLE_RULES, WIDEST_BAND, Band, Role
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

MOST_ROWS = 128  # rows of an example that are read: of a longer map every few


class RoleDescription(NamedTuple):
    """The description of a role.

    "{token}" stands for a name of the module's keys, "{away}" for a distance in words, and "{band}" for a band of them.

    Attributes:
        badge: A label of a few letters.
        name: The name of the role.
        does: What such a head does.
        keys: The keys whose weight is measured.
    """

    badge: str
    name: str
    does: str
    keys: str


ROLE_TEXTS = {
    Role.PREVIOUS_TOKEN: RoleDescription(
        "prev", "previous {token}", "reads the {token} just before", "the one before the query"
    ),
    Role.NEXT_TOKEN: RoleDescription("next", "next {token}", "reads the {token} just after", "the one after the query"),
    Role.DISTANCE: RoleDescription(
        "",
        "fixed distance",
        "reads the {token} {away}",
        "the one at a fixed distance of 2 or more, whichever is read most",
    ),
    Role.RECENT_TOKENS: RoleDescription(
        "back",
        "recent {token}s",
        "reads recent {token}s{band}",
        f"a band of at most {WIDEST_BAND} up to the query or the one before, whichever says most",
    ),
    Role.UPCOMING_TOKENS: RoleDescription(
        "ahead",
        "upcoming {token}s",
        "reads upcoming {token}s{band}",
        f"a band of at most {WIDEST_BAND} from the query or the one after on, whichever says most",
    ),
    Role.DIAGONAL: RoleDescription(
        "self", "own place", "reads its own place", "the one at the query's own place, the diagonal"
    ),
    Role.FIRST_TOKEN: RoleDescription(
        "1st", "first {token}", "rests on the first {token} (a sink)", "the first of all"
    ),
    Role.NEARBY: RoleDescription(
        "near",
        "nearby {token}s",
        "reads the {token}s around its own{band}",
        f"those on both sides of the query, at most {WIDEST_BAND // 2} away; of patches the query's own and the up to "
        "eight that touch it",
    ),
    Role.CURRENT_WORD: RoleDescription(
        "word", "current word", "reads the other {token}s of its own word", "the other pieces of the query's word"
    ),
    Role.PREVIOUS_WORD: RoleDescription(
        "prev w", "previous word", "reads the {token}s of the word before", "the pieces of the word before the query's"
    ),
    Role.SPECIAL_TOKEN: RoleDescription(
        "spec", "special tokens", "rests on special tokens", "special tokens such as </s> or [SEP]"
    ),
    Role.PUNCTUATION: RoleDescription(
        "punct", "punctuation", "rests on punctuation and spaces", "punctuation, spaces and line ends"
    ),
    Role.DELIMITER: RoleDescription(
        "sep",
        "delimiters",
        "rests on punctuation and special tokens",
        "special tokens, punctuation, spaces and line ends",
    ),
    Role.SINGLE_KEY: RoleDescription(
        "one",
        "single key",
        "rests on one and the same {token}",
        "in each text the one that is read most (only where nothing above fits)",
    ),
    Role.SAME_TOKEN: RoleDescription(
        "same", "same token", "reads the same token at other places", "those with the query's token, at another place"
    ),
    Role.INDUCTION: RoleDescription(
        "copy",
        "repetition (induction)",
        "reads what came after the same token before",
        "those right behind an earlier place with the query's token",
    ),
    Role.RARE_TOKEN: RoleDescription(
        "rare", "rare tokens", "reads rare tokens", "those whose token stands once in the texts of this page"
    ),
    Role.ALIGNMENT: RoleDescription(
        "link", "alignment", "reads the {token} that belongs to it", "those that the task itself links to the query"
    ),
    Role.COLUMNS: RoleDescription(
        "cols",
        "same {token}s for all queries",
        "reads the same {token}s whatever the query",
        "those that the other rows read more than uniformly",
    ),
    Role.POSITION: RoleDescription(
        "pos",
        "position alone",
        "reads by position alone, whatever the {token}s",
        "",
    ),
}


def describe_all_roles(labels: AxisLabels) -> dict[Role, RoleDescription]:
    """Return the description of every role; the task may rename that of alignment (`gold_key_description`)."""
    if labels.gold_key_description is None:
        return ROLE_TEXTS
    linked = ROLE_TEXTS[Role.ALIGNMENT]._replace(
        name=labels.gold_key_description, does=f"reads {labels.gold_key_description}"
    )
    return {**ROLE_TEXTS, Role.ALIGNMENT: linked}


def roles_data(store: MapStore) -> dict[str, Any]:
    """Return every head's role at the last stored step, for the page; shares are in percent.

    Returns:
        A dictionary. `heads` lists [site, layer, head, plays, evidence, uniformity, simpler]: plays is 1 if the head
        plays the first role of its evidence, which lists at most two [role, band, weight, uniform, score, rows]; roles
        are indices into `kinds`, and a band is [first, last]. simpler lists the rules [rule, number] from which the
        first role cannot be distinguished. `distances` are the attention distances on images, by module.
    """
    step, roles = store.steps[-1], list(ROLE_TEXTS)
    heads = []
    for number, site in enumerate(store.sites):
        for reading in classify_heads(read_sample_rows(store, site, step), site, store.labels):
            heads.append([number, *_assessment_values(reading, roles)])
    kinds = [
        {"role": role.value, "minScore": ROLE_RULES[role].min_score, **words._asdict()}
        for role, words in describe_all_roles(store.labels).items()
    ]
    return {
        "step": step,
        "minScore": MIN_ROLE_SCORE,
        "nearUniform": NEAR_UNIFORM,
        "kinds": kinds,
        "heads": heads,
        "distances": page_attention_distances(store),
    }


def _assessment_values(assessment: RoleAssessment, roles: list[Role]) -> list[Any]:
    evidence = [_evidence_values(one, roles) for one in assessment.evidence]
    simpler = [[rule.rule.value, rule.offset_or_position] for rule in assessment.ambiguous_with]
    uniformity = round(100 * assessment.uniformity)
    return [assessment.layer, assessment.head, int(assessment.plays), evidence, uniformity, simpler]


def _evidence_values(evidence: RoleEvidence, roles: list[Role]) -> list[Any]:
    shares = (round(100 * value) for value in (evidence.weight, evidence.uniform, evidence.score))
    return [roles.index(evidence.role), list(evidence.band or Band(0, 0)), *shares, evidence.rows]


def read_sample_rows(store: MapStore, site: Site, step: int) -> WholeRows:
    """Read at most `MOST_ROWS` whole rows of a module's maps; all that the run stored if it stored no whole maps.

    Args:
        store: The maps of a run.
        site: The attention module.
        step: The training step.

    Returns:
        The rows.
    """
    stored_rows = store.read_rows(site.name, step)
    if stored_rows is not None:
        return WholeRows(*stored_rows)
    codes, scale, root = store.read_quantized(site.name, step, "full")
    queries = codes.shape[-2]
    row_indices = evenly_spaced_indices(queries, min(queries, MOST_ROWS))
    part = Quantized(codes[..., row_indices, :], scale[..., row_indices], root[..., row_indices])
    return WholeRows(tuple(row_indices), np.asarray(part.weights()))
