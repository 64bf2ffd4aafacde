"""The two pages of claims, and where they lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.claims.errata import ERRATA
from experiments.claims.html_page import render_page
from experiments.claims.judgment import JudgedClaim
from experiments.claims.markdown_page import render_markdown
from transformer.storage.disk_errors import refuse_unwritable_file
from transformer.storage.paths import storage_of

HTML_PAGE = Path(__file__).resolve().parent / "claims.html"
MARKDOWN_PAGE = Path(__file__).resolve().parents[2] / "docs" / "claims.md"


def render_pages(judged_claims: Sequence[JudgedClaim]) -> Mapping[Path, str]:
    """Return the text of each page."""
    return {HTML_PAGE: render_page(judged_claims, ERRATA), MARKDOWN_PAGE: render_markdown(judged_claims, ERRATA)}


def write_pages(judged_claims: Sequence[JudgedClaim]) -> None:
    """Write the pages."""
    for path, text in render_pages(judged_claims).items():
        with refuse_unwritable_file(path, "page"):
            storage_of(path).replace(path, text.encode())
