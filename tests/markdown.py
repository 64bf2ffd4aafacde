"""What the tests read of the project's Markdown pages: commands, links, and paths of files."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.checkout import is_ignored

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md"), *ROOT.glob("tests/**/*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:python -m (?=launch\.|experiments\.|docs\.)|^(headwise) )([\w.]+) ((?:'[^']*'|[^'\"`&>\n])*)", re.MULTILINE
)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")


def commands(page: str) -> list[tuple[str, list[str]]]:
    """The commands of the blocks of code of a page, in their order."""
    return [command for kind, text in FENCE.findall(page) if not kind for command in commands_of(text)]


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a text in their order: the module, and its words as a shell gives them."""
    plain = text.replace("\\\n", " ")
    return [
        (f"launch.{name}" if script else name, shlex.split(words, comments=True))
        for script, name, words in COMMAND.findall(plain)
    ]


def links(page: str) -> list[str]:
    """The relative links of the page, and those to its own sections."""
    return LINK.findall(FENCE.sub("", page))


def anchors(page: str) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in shown}


def is_in_every_checkout(path: Path) -> bool:
    """Whether a file or folder exists and is none that git ignores, such as a generated page."""
    return path.exists() and not is_ignored(path)


def dead_links(file: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in links(file.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = file.parent / path if path else file
        if not is_in_every_checkout(target.resolve()) or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            yield link


def misnamed_links(page: str) -> Iterator[str]:
    """The links whose text is the name of another file than the one that they lead to."""
    for text, link in re.findall(r"\[([\w-]+\.(?:py|md))\]\(([^)\s#]+)\)", page):
        if link.rpartition("/")[2] != text:
            yield f"[{text}]({link})"


def dead_paths(page: str) -> Iterator[str]:
    """The paths of this project's folders within `code` that lead nowhere."""
    for path in re.findall(r"`((?:experiments|transformer|launch|tests|docs)/[\w/.-]*\w/?)", page):
        if not is_in_every_checkout(ROOT / path):
            yield path
