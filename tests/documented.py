"""The code of the guides to extending: whole files, which their first line names, and excerpts of tests."""

import re
from pathlib import Path
from typing import NamedTuple

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "guides"
PAGES = tuple(GUIDES / name for name in ("your_own_model.md", "your_own_task.md", "extension_points.md"))
FENCE = re.compile(r"^```python\n(?:# (of )?([\w/]+\.py)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: the path that its first line names ("" where it names none), whole or an excerpt, its code."""

    path: str
    whole: bool
    code: str


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page: `# FILE` begins a file, `# of FILE` an excerpt of one."""
    return [Block(path, not excerpt, code) for excerpt, path, code in FENCE.findall(page)]


def pages() -> str:
    """The guides, one after the other."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def files() -> dict[str, str]:
    """The files that the pages show whole, by path."""
    return {block.path: block.code for block in blocks(pages()) if block.whole and block.path}


def write(folder: Path) -> None:
    """Put the pages' files where a reader would."""
    for path, code in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(code, encoding="utf-8")
