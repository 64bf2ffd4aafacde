"""The code of docs/extending.md: whole files, whose first line names them, and excerpts of files of the tests."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
FENCE = re.compile(r"^```python\n(?:# (of )?([\w/]+\.py)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: the path that its first line names ("" where it names none), whole or an excerpt, its code."""

    path: str
    whole: bool
    code: str


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page: `# FILE` begins a file, `# of FILE` an excerpt of one."""
    return [Block(path, not excerpt, code) for excerpt, path, code in FENCE.findall(page)]


def files() -> dict[str, str]:
    """The files that the page shows whole, by path."""
    return {block.path: block.code for block in blocks(PAGE.read_text(encoding="utf-8")) if block.whole and block.path}


def write(folder: Path) -> None:
    """Put the page's files where a reader would."""
    for path, code in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(code, encoding="utf-8")
