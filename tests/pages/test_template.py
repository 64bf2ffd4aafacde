"""What every page is made of."""

import importlib.resources
import posixpath
import re
from collections import Counter

import pytest

from tests.import_cycles import find_cycles
from transformer.maps.report import page as report
from transformer.pages.template import strip_comments
from transformer.studies.ablations import page as ablation
from transformer.studies.run_listing import page as runs
from transformer.studies.sweeps import page as sweep

BUNDLES = {
    "report": (report.FOLDER, report.ENTRY),
    "served report": (report.FOLDER, report.ENTRY, report.LIVE_RELOAD),
    "ablation": (ablation.FOLDER, ablation.ENTRY),
    "sweep": (ablation.FOLDER, sweep.ENTRY),
    "runs": (runs.FOLDER, runs.ENTRY),
    "served runs": (runs.FOLDER, runs.ENTRY, runs.LIVE_RELOAD),
}
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]*)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async function|function|const|let|class) (\w+)", re.MULTILINE)


def test_comments_on_lines_of_their_own_go_and_nothing_else_does():
    script = """// What a file is.
/** A doc * with stars **/
const address = "https://a/b"; // behind code a comment stays
  /**
   * Of several lines, with // and `code`.
   */
  act(`/* text */`, a / b); /* stays */
const half = 1 / 2;
"""
    expected = """const address = "https://a/b"; // behind code a comment stays
  act(`/* text */`, a / b); /* stays */
const half = 1 / 2;
"""
    assert strip_comments(script) == expected


@pytest.fixture(scope="module", params=BUNDLES)
def bundle(request) -> str:
    folder, *entries = BUNDLES[request.param]
    return folder.bundle(*entries)


def modules() -> dict[str, str]:
    """Every JavaScript module of the package by its path in it."""
    root = importlib.resources.files("transformer")
    folders = ("pages", "maps/report/web", "studies/web")
    files = [(folder, file) for folder in folders for file in root.joinpath(*folder.split("/")).iterdir()]
    return {f"{folder}/{file.name}": file.read_text("utf-8") for folder, file in files if file.name.endswith(".js")}


def test_no_module_imports_itself_by_way_of_others():
    imports = {
        name: {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for _, path in IMPORT.findall(text)}
        for name, text in modules().items()
    }
    assert sum(map(len, imports.values())) > 200
    assert find_cycles(imports) == []
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [("b", "c")]


def test_a_bundle_has_no_comments_imports_or_exports(bundle):
    lines = [line.strip() for line in bundle.split("\n")]
    assert not [line for line in lines if line.startswith(("//", "/*", "* ", "*/", "import ", "export "))]


@pytest.mark.parametrize("name", BUNDLES)
def test_no_two_modules_of_a_bundle_define_the_same_name(name):
    folder, *entries = BUNDLES[name]
    texts, waiting = {}, [posixpath.join(folder.path, entry) for entry in entries]
    while waiting:
        path = waiting.pop()
        if path not in texts:
            texts[path] = modules()[path]
            found = [specifier for _, specifier in IMPORT.findall(texts[path])]
            waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(path), each)) for each in found]
    script = "\n".join(texts.values())
    defined = re.findall(r"^(?:export )?(?:async function|function|const|let|class) (\w+)", script, re.MULTILINE)
    assert len(defined) > 100
    assert not [name for name, count in Counter(defined).items() if count > 1]


def test_no_template_literal_spans_lines():
    for path, text in modules().items():
        assert not [line for line in strip_comments(text).split("\n") if line.count("`") % 2], path


def test_a_bundle_has_each_module_whole_and_after_what_it_imports():
    folder, *entries = BUNDLES["served report"]
    lines = folder.bundle(*entries).split("\n")
    for path, text in modules().items():
        if path.startswith(folder.path):
            kept = strip_comments(IMPORT.sub("", text)).replace("export ", "").strip("\n").split("\n")
            kept = [line.lstrip(" ") for line in kept]
            start = lines.index(kept[0]) if lines.count(kept[0]) == 1 else None
            assert start is None or lines[start : start + len(kept)] == kept, path
    assert lines.index("const data = readPageData();") < lines.index("const state = {")


def test_every_import_names_an_export_and_every_module_is_on_a_page():
    texts = modules()
    exports = {path: set(EXPORT.findall(text)) for path, text in texts.items()}
    imported = {posixpath.join(folder.path, entry) for folder, *entries in BUNDLES.values() for entry in entries}
    for path, text in texts.items():
        assert text.count("\nimport ") == len(IMPORT.findall(text)), path
        for names, specifier in IMPORT.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), specifier))
            imported.add(target)
            assert {name.strip() for name in names.split(",") if name.strip()} <= exports[target], (path, specifier)
    assert imported == set(texts)
