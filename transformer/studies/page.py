"""The page of an ablation: one HTML file with all its data in it, that opens from a disk and requests nothing."""

from collections.abc import Mapping
from typing import Any

from transformer.maps.template import digest, embedded, escaped, fill, read

# What the page of a run has already: the theme, and how elements, numbers, ticks, ramps and table cells are made.
SHARED_STYLES = ("report.css", "figures.css", "timeline.css")
SHARED_SCRIPTS = ("data.js", "colour.js", "curves.js", "export.js")
STYLES = ("study.css",)
# In the order in which they run: each file sees what the ones before it define.
SCRIPTS = (
    "arms.js",
    "figure.js",
    "lines.js",
    "verdict.js",
    "seeds.js",
    "tuned.js",
    "map.js",
    "training.js",
    "gradients.js",
    "configs.js",
    "cells.js",
    "files.js",
    "study.js",
)


def render(result: Mapping[str, Any]) -> str:
    """The page of a result of `transformer.studies.analysis.analyse`, every number of it inside.

    A panel whose data the result does not have is left out.
    """
    style = "\n".join((*map(read, SHARED_STYLES), *map(_own, STYLES)))
    script = "\n".join((*map(read, SHARED_SCRIPTS), *map(_own, SCRIPTS)))
    # A figure becomes a PNG by way of an image that is made of its own text: no other image can come in.
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escaped(str(result["question"] or result["name"])),
        "style": style,
        "data": embedded(result),
        "script": script,
    }
    return fill(_own("study.html"), parts)


def _own(name: str) -> str:
    return read(name, "transformer.studies", "page_files")
