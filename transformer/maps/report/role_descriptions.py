"""The page's data of head roles: each head's role at the last stored step, and the descriptions of the roles."""

from typing import Any, NamedTuple

import numpy as np

from transformer.attention.sites import Site
from transformer.maps.attention_distance import page_attention_distances
from transformer.maps.head_roles import MIN_BROAD_FRACTION, MIN_ROLE_SCORE, RoleAssessment, WholeRows, classify_heads
from transformer.maps.quantize import Quantized
from transformer.maps.report.run_data import evenly_spaced_indices
from transformer.maps.role_rules import Role
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

MOST_ROWS = 128  # rows of an example that are read: of a longer map every few


class RoleDescription(NamedTuple):
    """The description of a role. "{token}" stands for a name of the module's keys, "{away}" for a distance in words.

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
    Role.DIAGONAL: RoleDescription(
        "self", "own place", "reads its own place", "the one at the query's own place, the diagonal"
    ),
    Role.FIRST_TOKEN: RoleDescription(
        "1st", "first {token}", "rests on the first {token} (a sink)", "the first of all"
    ),
    Role.NEARBY: RoleDescription(
        "near",
        "nearby patches",
        "reads the patches around its own",
        "the query's own patch and the up to eight that touch it",
    ),
    Role.DELIMITER: RoleDescription(
        "sep",
        "delimiters",
        "rests on punctuation and special tokens",
        "special tokens such as </s>, punctuation and spaces",
    ),
    Role.SINGLE_KEY: RoleDescription(
        "one",
        "single key",
        "rests on one and the same {token}",
        "in each text the one that is read most (named only where nothing above fits)",
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
    Role.BROAD: RoleDescription("broad", "broad", "spreads its weight over most visible keys", ""),
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
        A dictionary. `heads` lists [site, layer, head, role or -1, nearest role or -1, distance, weight, uniform,
        score, simpler]: roles are indices into `kinds`, and simpler lists the rules [rule, number] from which the
        nearest role cannot be distinguished. `distances` are the attention distances on images, by module.
    """
    step, roles = store.steps[-1], list(ROLE_TEXTS)
    heads = []
    for number, site in enumerate(store.sites):
        for reading in classify_heads(read_sample_rows(store, site, step), site, store.labels):
            heads.append([number, *_assessment_values(reading, roles)])
    kinds = [{"role": role.value, **words._asdict()} for role, words in describe_all_roles(store.labels).items()]
    return {
        "step": step,
        "minScore": MIN_ROLE_SCORE,
        "minBroadFraction": MIN_BROAD_FRACTION,
        "kinds": kinds,
        "heads": heads,
        "distances": page_attention_distances(store),
    }


def _assessment_values(assessment: RoleAssessment, roles: list[Role]) -> list[Any]:
    nearest = -1 if assessment.nearest is None else roles.index(assessment.nearest)
    shares = (round(100 * value) for value in (assessment.weight, assessment.uniform, assessment.score))
    role = nearest if assessment.plays else -1
    simpler = [[rule.rule.value, rule.offset_or_position] for rule in assessment.ambiguous_with]
    return [assessment.layer, assessment.head, role, nearest, assessment.distance, *shares, simpler]


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
