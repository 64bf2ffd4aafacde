"""The page of an ablation: one HTML file with all its data in it, that opens from a disk and requests nothing."""

from collections.abc import Mapping
from typing import Any

from transformer.pages.template import Folder, drawn_page, script_of, style_of

FOLDER = Folder("transformer.studies", "web")
STYLES = ("study.css", "arms.css")
# In the order in which they run: each file sees what the ones before it define.
SCRIPTS = (
    "panels_and_tables.js",
    "arms.js",
    "comparison_table.js",
    "paired_seeds.js",
    "hyperparameter_sensitivity.js",
    "hyperparameter_heatmap.js",
    "training_curves.js",
    "initial_gradients.js",
    "arm_configs.js",
    "runs_table.js",
    "ablation.js",
)


def render(result: Mapping[str, Any]) -> str:
    """The page of a result of `transformer.studies.ablations.analysis.analyze`, every number of it inside.

    A panel whose data the result does not have is left out.
    """
    return drawn_page(
        f"{result['question'] or result['name']} · ablation",
        FOLDER.read("ablation.html"),
        style_of(FOLDER.joined(STYLES)),
        script_of(FOLDER.joined(SCRIPTS)),
        result,
    )
