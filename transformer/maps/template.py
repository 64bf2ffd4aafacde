"""Pages from the files beside them: what a page's policy may name, and what is filled into its places."""

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Mapping


def read(name: str) -> str:
    """A file of the folder `page`."""
    return importlib.resources.files("transformer.maps").joinpath("page", name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """How a content security policy names a script or a style that it admits."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def escaped(text: str) -> str:
    """Any text as HTML, also one that UTF-8 cannot hold."""
    return html.escape(text.encode("utf-8", "replace").decode())


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with its places {{name}} filled, in one pass: what is filled in is never searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
