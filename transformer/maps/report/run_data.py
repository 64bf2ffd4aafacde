"""The page's data other than the maps: config, samples, and the view it opens with."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.capture import evenly_spaced_positions
from transformer.attention.sites import Site
from transformer.config import flatten_config
from transformer.data.png import SIGNATURE
from transformer.maps.store import MapStore
from transformer.runs.jsonl_reading import SAMPLE_RECORDS, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

SAMPLE_STEPS = 12
SAMPLES_PER_STEP = 24
IMAGE_BYTES = 1 << 19  # of an image of samples, at most
_IMAGE = re.compile(r"samples/[\w.-]+\.png")


def read_samples(directory: RunDirectory) -> list[dict[str, Any]]:
    """Read sample outputs by split and step, evenly thinned over the steps.

    Returns:
        Dictionaries {"split", "step", "rows", "total", "images"}: each row maps field names ("source", "target",
        "output", ...) to strings, and `images` are the data URLs of the images that the field "image" of any row names.
    """
    groups: dict[tuple[str, int], list[dict[str, str]]] = {}
    for record in read_records(directory.samples_file, SAMPLE_RECORDS):
        row = {name: value for name, value in record.items() if isinstance(value, str) and name != "split"}
        groups.setdefault((str(record["split"]), int(record["step"])), []).append(row)
    samples: list[dict[str, Any]] = []
    for split in dict.fromkeys(split for split, _ in groups):
        steps = sorted(step for owner, step in groups if owner == split)
        for index in evenly_spaced_indices(len(steps), min(len(steps), SAMPLE_STEPS)):
            rows = groups[split, steps[index]]
            # A resumed run reports steps again: equal rows count once.
            unique = list({tuple(sorted(row.items())): row for row in rows}.values())
            images = [
                _image_data_url(directory, name) for name in dict.fromkeys(row.pop("image", "") for row in unique)
            ]
            samples.append(
                {
                    "split": split,
                    "step": steps[index],
                    "rows": unique[:SAMPLES_PER_STEP],
                    "total": len(unique),
                    "images": [image for image in images if image],
                }
            )
    return samples


def initial_view(store: MapStore) -> dict[str, Any]:
    """Choose the module, example, layer and head that the page opens with, at the store's last step.

    The module is the first with gold alignments whose whole maps are stored, else the first between two sequences. Its
    head is the one with the most weight on gold alignments, else with the sharpest rows; its example the one in which
    the strongest weights of that head, those on gold alignments if the module has some, cross most often, of random
    tokens only where there is no other. Long modules are assessed by their coarsest level.

    Returns:
        The indices "site", "example", "layer" and "head".
    """
    linked = [
        site
        for site in store.sites
        if site.name in (store.labels.gold_alignments or {}) and _coarsest_view(store, site).is_full
    ]
    between = [site for site in store.sites if site.query.name != site.key.name and not site.causal]
    site = (linked or between or list(store.sites))[0]
    view = _coarsest_view(store, site)
    weights = store.read(site.name, store.steps[-1], view.level)
    scores = gold_alignment_mass(weights, site, store.labels) if linked else mean_largest_weight(weights)
    layer, head = np.unravel_index(np.argmax(scores), scores.shape)
    links = (
        store.labels.gold_alignments[site.name]
        if linked and store.labels.gold_alignments
        else [None] * len(store.labels.titles)
    )
    crossings = [
        count_crossings(_strongest_pairs(weights[example, layer, head], example_links))
        for example, example_links in enumerate(links)
    ]
    periods = store.labels.periods or [None] * len(crossings)
    example = max(range(len(crossings)), key=lambda example: (periods[example] is None, crossings[example]))
    return {
        "site": store.sites.index(site),
        "example": example,
        "layer": int(layer),
        "head": int(head),
    }


def _image_data_url(directory: RunDirectory, name: str) -> str | None:
    """Return a sample's PNG file as a data URL, None if it is no PNG file among the run's samples.

    No file of an opened run is a link.
    """
    path = directory.path / name
    if not _IMAGE.fullmatch(name) or not path.is_file():
        return None
    content = path.read_bytes()
    if len(content) > IMAGE_BYTES or not content.startswith(SIGNATURE):
        return None
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def evenly_spaced_indices(total: int, count: int) -> list[int]:
    """Return `count` of `total` indices, evenly spaced, including the first and the last; if `count` is 1, the last."""
    return [total - 1] if count == 1 else list(evenly_spaced_positions(total, count))


def config_entries(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the leaves of a nested config as pairs (dotted key, text)."""
    return [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in flatten_config(config).items()
    ]


class _View(NamedTuple):
    level: str
    is_full: bool


def _coarsest_view(store: MapStore, site: Site) -> _View:
    level = store.levels(site.name)[0]
    return _View(level.name, (level.query_block, level.key_block) == (1, 1))


def gold_alignment_mass(
    weights: Float[np.ndarray, "B L H Q K"], site: Site, labels: AxisLabels
) -> Float[np.ndarray, "L H"]:
    """Compute the weight that each head puts on gold alignments, averaged over all queries that have one.

    Args:
        weights: The weights [example, layer, head, query, key].
        site: The attention module.
        labels: The labels, which must have gold alignments for the module.

    Returns:
        The mean weight [layer, head].
    """
    assert labels.gold_alignments is not None
    total, rows = np.zeros(weights.shape[1:3]), 0
    for example, links in enumerate(labels.gold_alignments[site.name]):
        total += sum(weights[example, :, :, query, key] for query, key, _ in links)
        rows += len({query for query, _, _ in links})
    return total / max(rows, 1)


def mean_largest_weight(weights: Float[np.ndarray, "B L H Q K"]) -> Float[np.ndarray, "L H"]:
    """Compute the largest weight of a row, averaged over the rows of all examples that have any weight.

    Args:
        weights: The weights [example, layer, head, query, key].

    Returns:
        The mean [layer, head].
    """
    largest = weights.max(axis=-1, initial=0.0)
    rows = (largest > 0).sum(axis=(0, 3))
    return largest.sum(axis=(0, 3)) / np.maximum(rows, 1)


def count_crossings(pairs: list[tuple[int, int]]) -> int:
    """Count the pairs of (query, key) links that cross each other: i < i' while k > k'."""
    return sum(a[0] < b[0] and a[1] > b[1] for a in pairs for b in pairs)


def _strongest_pairs(
    weights_QxK: Float[np.ndarray, "Q K"], links: Sequence[GoldAlignment] | None
) -> list[tuple[int, int]]:
    """Return each query with its strongest key; if gold alignments are known, only the pairs among them."""
    attending = np.flatnonzero(weights_QxK.max(axis=-1, initial=0.0))
    strongest = [(int(query), int(weights_QxK[query].argmax())) for query in attending]
    if links is None:
        return strongest
    # Possible links may fill a whole phrase and cross each other: only the head's own choices count.
    linked = {(query, key) for query, key, _ in links}
    return [pair for pair in strongest if pair in linked]
