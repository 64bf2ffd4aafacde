"""The page of an ablation: one self-contained HTML file, which opens from a disk and requests nothing."""

from collections.abc import Mapping
from typing import Any

from transformer.pages.template import AssetFolder, render_scripted_page, with_shared_styles

FOLDER = AssetFolder("studies/web")
STYLES = ("study.css", "arms.css")
ENTRY = "ablation.js"


def render(result: Mapping[str, Any]) -> str:
    """Render the page of a result of `transformer.studies.ablations.analysis.analyze`, with all its numbers inside.

    A panel without data is left out.
    """
    return render_scripted_page(
        f"{result['question'] or result['name']} · ablation",
        FOLDER.read("ablation.html"),
        with_shared_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY),
        result,
    )
