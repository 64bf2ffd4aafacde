"""The page of an ablation: one HTML file with all its data in it, that opens from a disk and requests nothing."""

from collections.abc import Mapping
from typing import Any

from transformer.pages.template import AssetFolder, join_styles, render_scripted_page

FOLDER = AssetFolder("studies/web")
STYLES = ("study.css", "arms.css")
ENTRY = "ablation.js"


def render(result: Mapping[str, Any]) -> str:
    """The page of a result of `transformer.studies.ablations.analysis.analyze`, every number of it inside.

    A panel whose data the result does not have is left out.
    """
    return render_scripted_page(
        f"{result['question'] or result['name']} · ablation",
        FOLDER.read("ablation.html"),
        join_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY),
        result,
    )
