"""Pages of the site outside of docs/: notebooks, projects, records, linked sources, and the API reference."""

import ast
import functools
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
# The pages of the API reference, in the order of the navigation.
API = ("attention", "layers", "models", "decoding", "data", "tasks", "training", "interpret", "studies")
# A fenced block, or a link: only links outside of fences are rewritten.
FENCE_OR_LINK = re.compile(r"^```.*?^```$|\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".js": "javascript", ".sh": "sh", ".yml": "yaml"}
# Where a page of the API reference has the modules of a package.
API_MARK = re.compile(r"<!-- api: ([\w.]+) -->")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)

# The repository path of every generated page, by its path in the site.
_origins: dict[str, Path] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make anchors as GitHub does, and expand the folders of the navigation."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.nav = _expand(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: those of the navigation first, then whatever pages link."""
    _origins.clear()
    todo = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    todo += [path for folder in ("projects/", "tutorials/", "api/") for path in _members(folder)]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        _add(path, files, config)
        if path.suffix in (".md", ".ipynb"):
            todo += [target for target in _targets(_text(path), path.parent) if target.exists()]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to the pages of the site."""
    source = page.file.src_uri
    folder = _origins.get(source, ROOT / "docs" / source).parent

    def moved(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        target = (folder / match[1]).resolve()
        if not target.exists() or target in (ROOT, ROOT / "docs"):
            return match[0]
        here = posixpath.relpath(_place(target), posixpath.dirname(source) or ".")
        return f"]({here}{match[2] or '' if target.suffix in ('.md', '.ipynb') else ''})"

    return API_MARK.sub(lambda mark: _modules(mark[1]), FENCE_OR_LINK.sub(moved, markdown))


def _modules(package: str) -> str:
    """The public names of a package, and what mkdocstrings replaces by the documentation of each of its modules."""
    folder = ROOT / package.replace(".", "/")
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in folder.rglob("*.py")]
    public = sorted(name for name in names if not name.rpartition(".")[2].startswith("_"))
    return "\n\n".join([_public_names(folder / "__init__.py"), *(f"::: {name}" for name in public)])


def _public_names(path: Path) -> str:
    """A sentence that lists what a package exports in `__all__`; nothing if it has none."""
    package = path.parent.relative_to(ROOT).as_posix().replace("/", ".")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ", ".join(f"`{name}`" for name in ast.literal_eval(node.value))
            return f"`from {package} import` any of these: {names}."
    return ""


def _targets(text: str, folder: Path) -> list[Path]:
    """What the links of a page lead to."""
    return [(folder / match[1]).resolve() for match in FENCE_OR_LINK.finditer(text) if match[1]]


def _place(path: Path) -> str:
    """Where a file of the repository lies in the site."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/").removesuffix(".ipynb") + ".md" * (path.suffix == ".ipynb")
    if path in (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        return name.lower()
    if name == "experiments":
        return "projects.md"
    project = re.fullmatch(r"experiments/(\w+)(/README.md)?", name)
    if project and (ROOT / "experiments" / project[1]).is_dir():
        return f"projects/{project[1]}.md"
    if path.suffix == ".md" or _is_download(path):
        return f"source/{name}"
    return f"source/{name}.md"


def _is_download(path: Path) -> bool:
    """Whether a file is linked as it is, rather than shown on a page."""
    return path.suffix in (".csv", ".jsonl", ".json", ".html", ".png", ".gif", ".cff")


def _add(path: Path, files: Files, config: MkDocsConfig) -> None:
    """Add the page or the file of a path of the repository, unless it is one of docs/ already."""
    place = _place(path)
    if files.get_file_from_path(place) is not None:
        return
    if _is_download(path):
        files.append(File.generated(config, place, abs_src_path=str(path)))
        return
    file = File.generated(config, place, content=_text(path), inclusion=InclusionLevel.INCLUDED)
    project = re.fullmatch(r"experiments/\w+", path.relative_to(ROOT).as_posix())
    _origins[place] = path / "README.md" if project else path
    files.append(file)


@functools.cache
def _text(path: Path) -> str:
    """The Markdown of a page."""
    if path.is_dir():
        readme = path / "README.md"
        if readme.exists():
            return readme.read_text(encoding="utf-8")
        names = sorted(each.name for each in path.iterdir() if not each.name.startswith("__"))
        return _listing(path, "\n".join(f"- `{name}`" for name in names))
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return _notebook(text)
    return _listing(path, f"```{LANGUAGES.get(path.suffix, '')}\n{text.rstrip()}\n```")


def _listing(path: Path, body: str) -> str:
    """A page that shows a file of the repository; the search leaves it out."""
    return f"---\nsearch:\n  exclude: true\n---\n# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n{body}\n"


def _notebook(text: str) -> str:
    """The cells of a notebook as Markdown."""
    cells = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(cells) + "\n"


def _members(folder: str) -> list[Path]:
    """The pages of a folder of the navigation, as paths of the repository, by title."""
    if folder == "projects/":
        paths = list(ROOT.glob("experiments/*/README.md"))
    else:
        paths = [*(ROOT / "docs" / folder).glob("*.md"), *(ROOT / "docs" / folder).glob("*.ipynb")]
    return sorted(paths, key=lambda path: (path.name != "index.md", *_order(path)))


def _order(path: Path) -> tuple[int, str]:
    """API pages from the arrays up, notebooks by their file names, other pages by title."""
    if path.parent.name == "api":
        return (API.index(path.stem) if path.stem in API else len(API), path.stem)
    if path.suffix == ".ipynb":
        return (0, path.stem)
    title = TITLE.search(_text(path))
    return (0, title[1] if title else path.stem)


def _expand(nav: object) -> object:
    """The navigation with each entry that ends with a slash replaced by the pages of that folder."""
    if isinstance(nav, str) and nav.endswith("/"):
        return [_place(path) for path in _members(nav)]
    if isinstance(nav, dict):
        return {title: _expand(entry) for title, entry in nav.items()}
    if isinstance(nav, list):
        expanded = []
        for entry in nav:
            folder = isinstance(entry, str) and entry.endswith("/")
            if folder:
                expanded += _expand(entry)
            else:
                expanded.append(_expand(entry))
        return expanded
    return nav
