"""Pages from template files: reading, escaping, policy digests and filling."""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Any


def read(name: str, package: str = "transformer.maps", folder: str = "page") -> str:
    """A file of a page: of the folder `page` beside this one, or of another package's folder."""
    return importlib.resources.files(package).joinpath(folder, name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """How a content security policy names a script or a style that it admits."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def escaped(text: str) -> str:
    """Any text as HTML, also one that UTF-8 cannot hold."""
    return html.escape(text.encode("utf-8", "replace").decode())


def embedded(facts: Mapping[str, Any]) -> str:
    """Facts as JSON inside an element: ASCII alone and no "<", so that nothing in them can end it."""
    text = json.dumps(facts, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with its places {{name}} filled, in one pass: inserted text is not searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
