"""The page of an ablation, one self-contained HTML file, and the files beside it with its numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.pages.template import AssetFolder, render_scripted_page, with_shared_styles
from transformer.storage.paths import storage_of
from transformer.studies.ablations.formatting import format_runs_csv
from transformer.studies.ablations.report import StudyReport

FOLDER = AssetFolder("studies/web")
STYLES = ("study.css", "arms.css")
ENTRY = "ablation.js"


def render(result: Mapping[str, Any]) -> str:
    """Render the page of a report, as `StudyReport.to_json` returns it, with all its numbers inside.

    The page opens from a disk and requests nothing. A panel without data is left out.
    """
    return render_scripted_page(
        f"{result['question'] or result['name']} · ablation",
        FOLDER.read("ablation.html"),
        with_shared_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY),
        result,
    )


def write_report_files(report: StudyReport, path: Path) -> dict[str, Path]:
    """Write the page, the report as JSON and the table of runs as CSV.

    Args:
        report: The report.
        path: The directory of the ablation.

    Returns:
        The files by kind: "html", "json" and "csv".
    """
    values = report.to_json()
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    contents = {"html": render(values), "json": f"{text}\n", "csv": format_runs_csv(report)}
    files = {kind: path / f"ablation.{kind}" for kind in contents}
    for kind, content in contents.items():
        storage_of(path).replace(files[kind], content.encode())
    return files
