"""One closed HTML file a page: the theme and the chart kit of this folder, and what a page adds to them."""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

STYLES = ("theme.css", "charts.css")
# In the order in which they run: each file sees what the ones before it define.
SCRIPTS = (
    "dom.js",
    "formatting.js",
    "color_scale.js",
    "plot_marks.js",
    "scales.js",
    "figure.js",
    "line_chart.js",
    "figure_export.js",
)


_COMMENT = re.compile(r"^ *(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)


class Folder(NamedTuple):
    """Where a page's own files lie: a package and a folder in it."""

    package: str
    name: str

    def read(self, name: str) -> str:
        """The text of one of the files."""
        return importlib.resources.files(self.package).joinpath(self.name, name).read_text(encoding="utf-8")

    def joined(self, names: Iterable[str]) -> str:
        """The texts of several files, one after another."""
        return "\n".join(map(self.read, names))


SHARED = Folder("transformer", "pages")


def style_of(own: str = "") -> str:
    """The theme, and behind it a page's own style."""
    return f"{SHARED.joined(STYLES)}\n{own}"


def script_of(own: str) -> str:
    """The chart kit, and behind it a page's own script, without comments."""
    return without_comments(f"{SHARED.joined(SCRIPTS)}\n{own}")


def without_comments(script: str) -> str:
    """A script without the comments that stand on lines of their own, which every page would carry.

    No template literal of several lines may have such a line.
    """
    return _COMMENT.sub("", script)


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


def still_page(title: str, body: str, style: str, seconds: int) -> str:
    """A page without a script, which its browser asks for again after some seconds."""
    return _framed(title, body, style, head=_again_after(seconds))


def _again_after(seconds: int | None) -> str:
    return "" if seconds is None else f'<meta http-equiv="refresh" content="{seconds}">'


def drawn_page(
    title: str,
    body: str,
    style: str,
    script: str,
    facts: Mapping[str, Any],
    *,
    first: str = "",
    later: str = "",
    version: str | None = None,
    again: int | None = None,
) -> str:
    """A page that its script draws from `facts` and from the elements `first` and `later`, before and behind it.

    With a `version` the script may ask the server that gave the page out, and no other. With `again` the browser reads
    the page itself anew after so many seconds.
    """
    parts = {"body": body, "data": embedded(facts), "first": first, "script": script, "later": later}
    # A figure becomes a PNG by way of an image that is made of its own text, and sounds lie in it as text: no other
    # image or sound can come in.
    admitted = f"script-src '{digest(script)}'; img-src data:; media-src data:; "
    if version is None:
        return _framed(title, fill(SHARED.read("body.html"), parts), style, admitted, head=_again_after(again))
    attributes = f' data-version="{escaped(version)}"'
    admitted += "connect-src 'self'; "
    return _framed(title, fill(SHARED.read("body.html"), parts), style, admitted, attributes)


def _framed(title: str, body: str, style: str, admitted: str = "", attributes: str = "", head: str = "") -> str:
    policy = f"default-src 'none'; {admitted}style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
    parts = {
        "attributes": attributes,
        "policy": policy,
        "head": head,
        "title": escaped(title),
        "style": style,
        "body": body,
    }
    return fill(SHARED.read("document.html"), parts)
