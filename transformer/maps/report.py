"""The page of a run: one HTML file with all its data in it, that opens from a disk and requests nothing."""

import base64
import gzip
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import UserError
from transformer.maps.first_view import first_view
from transformer.maps.record import (
    evenly,
    flatten,
    read_config,
    read_curves,
    read_environment,
    read_samples,
    thin,
)
from transformer.maps.store import MapStore, SiteMaps

DEFAULT_BUDGET = 25_000_000  # bytes
STYLES = ("report.css", "figures.css")
# In the order in which they run: each file sees what the ones before it define.
SCRIPTS = ("data.js", "colour.js", "curves.js", "wall.js", "detail.js", "samples.js", "report.js")


def write_report(
    run_directory: Path, budget: int = DEFAULT_BUDGET, *, maps: Path | None = None, page: Path | None = None
) -> Path:
    """Write the page of a run and return its path: curves, samples and every stored map.

    `maps` is the store that is shown, the run's own by default; `page` is where the page goes, `report.html`
    of the run by default.

    Where not all steps of the maps fit into `budget` bytes, evenly spaced ones stay, the first and the last
    among them, and the page says which are left out.

    Errors: UserError if the directory is no run, has no metrics or no maps, or if `budget` is too small for
    one step.
    """
    run_directory = Path(run_directory)
    config, curves = read_config(run_directory), read_curves(run_directory)
    store = MapStore.existing(run_directory / "maps" if maps is None else maps)
    if not store.steps:
        raise UserError(f"the map store {store.path} has no complete step yet: let the run reach one, then ask again")
    facts = _facts(run_directory, config, curves, store)
    encoded = [[encode(store.read_quantised(site.name, step)) for site in store.sites] for step in store.steps]
    fixed = len(_page(facts, []).encode())
    kept = _fit([sum(map(len, step)) + 64 * len(step) for step in encoded], budget - fixed)
    if not kept:
        needed = fixed + sum(map(len, encoded[-1])) + 1000
        raise UserError(f"budget={budget} bytes is too small for one step of maps: give at least {needed}")
    facts["steps"] = [store.steps[index] for index in kept]
    facts["leftOut"] = [step for index, step in enumerate(store.steps) if index not in set(kept)]
    path = run_directory / "report.html" if page is None else page
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(_page(facts, [encoded[index] for index in kept]), encoding="utf-8", newline="\n")
    temporary.replace(path)
    return path


def encode(maps: SiteMaps) -> str:
    """Maps of a site and step for the page: base64 of gzip of scales (little-endian float32), then codes."""
    scale = np.ascontiguousarray(maps.scale, dtype="<f4")
    # Without a time stamp the same run gives the same page, byte for byte.
    packed = gzip.compress(scale.tobytes() + np.ascontiguousarray(maps.codes).tobytes(), mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _fit(sizes: list[int], budget: int) -> list[int]:
    """The most indices, evenly spaced, whose sizes sum to no more than `budget`."""
    for count in range(len(sizes), 0, -1):
        kept = evenly(len(sizes), count)
        if sum(sizes[index] for index in kept) <= budget:
            return kept
    return []


def _facts(
    run_directory: Path, config: Mapping[str, Any], curves: Mapping[str, Any], store: MapStore
) -> dict[str, Any]:
    """All that the page shows except the maps themselves, as plain JSON values."""
    environment = read_environment(run_directory)
    labels = store.labels
    return {
        "title": str(config.get("name") or run_directory.resolve().name),
        "parameters": environment.get("parameters"),
        "device": environment.get("devices"),
        "commit": environment.get("commit"),
        "started": environment.get("started"),
        "configHash": store.config_hash,
        "config": flatten(config),
        "curves": {name: {split: thin(curve) for split, curve in splits.items()} for name, splits in curves.items()},
        "samples": read_samples(run_directory),
        "titles": labels.titles,
        "tokens": labels.tokens,
        "sites": [
            {
                "name": site.name,
                "query": site.query.name,
                "key": site.key.name,
                "layers": site.layers,
                "heads": site.heads,
                "causal": site.causal,
                "links": (labels.links or {}).get(site.name),
                "shape": store.read_quantised(site.name, store.steps[-1]).codes.shape,
            }
            for site in store.sites
        ],
        "steps": store.steps,
        "leftOut": [],
        "first": first_view(store),
    }


def _page(facts: Mapping[str, Any], maps: list[list[str]]) -> str:
    style = "\n".join(_read(name) for name in STYLES)
    script = "\n".join(_read(name) for name in SCRIPTS)
    blocks = [
        f'<script type="text/plain" id="maps-{step}-{site}">{block}</script>'
        for step, blocks in enumerate(maps)
        for site, block in enumerate(blocks)
    ]
    # ASCII alone, and no "<": nothing in the data can end its element, whatever a token spells.
    data = json.dumps(facts, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(facts["title"].encode("utf-8", "replace").decode()),
        "style": style,
        "data": data,
        "maps": "\n".join(blocks),
        "script": script,
    }
    # One pass: what is filled in is never searched for places to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("report.html"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _read(name: str) -> str:
    return importlib.resources.files("transformer.maps").joinpath("page", name).read_text(encoding="utf-8")
