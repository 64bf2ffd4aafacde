"""HTML pages as one closed file each: document template, styles, bundled JavaScript modules and embedded data."""

import base64
import hashlib
import html
import importlib.resources
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

STYLES = ("theme.css", "charts.css")
_COMMENT = re.compile(r"^ *(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"(\.[^"]*)";\n', re.MULTILINE)


class AssetFolder(NamedTuple):
    """A folder of HTML, CSS and JavaScript files in this package, such as `maps/report/web`."""

    path: str

    def read(self, name: str) -> str:
        """Return the text of one file."""
        return _read(posixpath.join(self.path, name))

    def join(self, names: Iterable[str]) -> str:
        """Return the texts of several files, one after another."""
        return "\n".join(map(self.read, names))

    def bundle(self, *entries: str) -> str:
        """Return these JavaScript modules and all that they import as one module, each after what it imports.

        Imports are relative paths of named exports, without `as`; names at the top level are unique in a bundle.
        Comments on lines of their own and indentation are left out, so no template literal may span several lines.
        """
        modules: dict[str, str] = {}
        for entry in entries:
            _add_module(posixpath.join(self.path, entry), modules)
        script = "\n".join(modules.values())
        script = strip_comments(re.sub(r"^export ", "", _IMPORT.sub("", script), flags=re.MULTILINE))
        return re.sub(r"^ +", "", script, flags=re.MULTILINE)


SHARED = AssetFolder("pages")


def _read(path: str) -> str:
    return importlib.resources.files("transformer").joinpath(*path.split("/")).read_text(encoding="utf-8")


def _add_module(path: str, modules: dict[str, str]) -> None:
    """Add a module to `modules`, a map from path to text, after those that it imports."""
    if path in modules:
        return
    text = _read(path)
    for specifier in _IMPORT.findall(text):
        _add_module(posixpath.normpath(posixpath.join(posixpath.dirname(path), specifier)), modules)
    modules[path] = text


def with_shared_styles(own: str = "") -> str:
    """Return the style sheets that all pages share, followed by a page's own."""
    return f"{SHARED.join(STYLES)}\n{own}"


def strip_comments(script: str) -> str:
    """Return a script without the comments that stand on lines of their own, to keep pages small.

    No template literal of several lines may have such a line.
    """
    return _COMMENT.sub("", script)


def csp_hash(text: str) -> str:
    """Return the hash by which a content security policy admits an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def escape_html(text: str) -> str:
    """Escape text for HTML; characters that UTF-8 cannot encode become "?"."""
    return html.escape(text.encode("utf-8", "replace").decode())


def embed_json(data: Mapping[str, Any]) -> str:
    """Return data as ASCII JSON without "<", so that nothing in it can close the element that holds it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replace each {{name}} of a template by its value, in one pass: values are not searched for placeholders."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def render_static_page(title: str, body: str, style: str, refresh_seconds: int | None = None) -> str:
    """Return a page without a script, which the browser reloads every `refresh_seconds`, or never."""
    return _render_document(title, body, style, head=_refresh(refresh_seconds))


def _refresh(seconds: int | None) -> str:
    return "" if seconds is None else f'<meta http-equiv="refresh" content="{seconds}">'


def render_scripted_page(
    title: str,
    body: str,
    style: str,
    script: str,
    data: Mapping[str, Any],
    *,
    before_script: str = "",
    after_script: str = "",
    version: str | None = None,
    refresh_seconds: int | None = None,
) -> str:
    """Return a page that its script draws from `data` and from further elements that hold data.

    Args:
        title: Title of the document.
        body: HTML that the script fills.
        style: CSS.
        script: One JavaScript module, as `AssetFolder.bundle` returns it.
        data: What the script reads with `readPageData()`.
        before_script: Elements that the script needs at once.
        after_script: Elements that may still load while the script runs.
        version: Version of a served page; its script may then ask the server for a newer one.
        refresh_seconds: Interval at which the browser reloads the page, or None for never.
    """
    parts = {
        "body": body,
        "data": embed_json(data),
        "before_script": before_script,
        "script": script,
        "after_script": after_script,
    }
    # Exporting a figure as PNG loads its SVG as an image, and audio is embedded as text: both are data URLs.
    policy = f"script-src '{csp_hash(script)}'; img-src data:; media-src data:; "
    attributes = ""
    if version is not None:
        attributes = f' data-version="{escape_html(version)}"'
        policy += "connect-src 'self'; "
    content = fill_template(SHARED.read("body.html"), parts)
    return _render_document(title, content, style, policy, attributes, head=_refresh(refresh_seconds))


def _render_document(title: str, body: str, style: str, policy: str = "", attributes: str = "", head: str = "") -> str:
    policy = f"default-src 'none'; {policy}style-src '{csp_hash(style)}'; base-uri 'none'; form-action 'none'"
    parts = {
        "attributes": attributes,
        "policy": policy,
        "head": head,
        "title": escape_html(title),
        "style": style,
        "body": body,
    }
    return fill_template(SHARED.read("document.html"), parts)
