"""The English documentation that ships inside CPython: what `help()` shows, a topic a document."""

import hashlib
import sys

from transformer.config import UserError

# Of ten topics about one validates and one tests.
_PARTS = 10


def python_docs() -> tuple[dict[str, list[str]], str]:
    """The topics by split, and which Python they come from: they differ a little between versions.

    A topic's split depends on its name alone, so that most of a split stays the same from version to version. Topics
    with the text of another are left out, or a split could hold what another trains on.

    Errors: UserError where Python was installed without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError(
            f"python_docs: this Python ({sys.executable}) was installed without its documentation, pydoc_data; "
            "use another, or name a text file by config.task.dataset"
        ) from error
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    seen = set()
    for name in sorted(topics):
        if topics[name] not in seen:
            seen.add(topics[name])
            splits[_split_of(name)].append(topics[name])
    return splits, f"Python {sys.version}"


def _split_of(name: str) -> str:
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _PARTS
    return {8: "validation", 9: "test"}.get(part, "train")
