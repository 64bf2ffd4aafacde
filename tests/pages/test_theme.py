"""The files of the pages, without a browser: both pages hold the kit once, and no style is of something else."""

import importlib.resources
import re

import pytest

from transformer.maps.report import page as report
from transformer.pages.template import (
    SHARED,
    STYLES,
    AssetFolder,
    fill_template,
    render_scripted_page,
    render_static_page,
)
from transformer.studies.ablations import page as study
from transformer.studies.run_listing import page as runs

PAGES = {
    "maps": (report.FOLDER, report.STYLES, ("report.html", "waiting_for_run.html")),
    "study": (study.FOLDER, study.STYLES, ("ablation.html",)),
    "runs": (runs.FOLDER, runs.STYLES, ("runs.html",)),
}
SET_BY_SCRIPT = {"heads", "across"}  # variables


@pytest.fixture(scope="module", params=PAGES)
def own(request) -> tuple[AssetFolder, tuple[str, ...], tuple[str, ...]]:
    return PAGES[request.param]


def test_every_variable_of_a_style_is_set(own):
    folder, styles, *_ = own
    style = SHARED.join(STYLES) + folder.join(styles)
    assert set(re.findall(r"var\(--([\w-]+)", style)) <= set(re.findall(r"--([\w-]+):", style)) | SET_BY_SCRIPT


def test_a_color_is_two_for_the_two_schemes():
    # The script reads colors off these variables: it takes the first or the second of a pair.
    for name, value in re.findall(r"--((?:ramp|less|sound)-\d|panel): (.*?);", SHARED.read("theme.css")):
        assert re.fullmatch(r"light-dark\(#[0-9a-f]{6}, #[0-9a-f]{6}\)", value), name


def classes(style: str) -> set[str]:
    """Every class that a style names."""
    rules = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", style, flags=re.DOTALL)
    return {name for selector in re.findall(r"([^{}]+)\{", rules) for name in re.findall(r"\.([a-z][\w-]*)", selector)}


def words(folder: AssetFolder, bodies: tuple[str, ...]) -> set[str]:
    """Every lowercase word of the scripts and bodies of a folder."""
    files = importlib.resources.files("transformer").joinpath(*folder.path.split("/")).iterdir()
    scripts = sorted(file.name for file in files if file.name.endswith(".js"))
    assert scripts
    return set(re.findall(r"[a-z][\w-]*", folder.join((*scripts, *bodies))))


def test_every_class_of_a_style_is_given_by_its_page():
    shared = words(SHARED, ("body.html",))
    used = {name: words(folder, bodies) for name, (folder, _, bodies) in PAGES.items()}
    numbered = {f"{name}-{number}" for name in ("series", "dash", "rank") for number in range(8)}
    for name, (folder, styles, _) in PAGES.items():
        assert classes(folder.join(styles)) <= used[name] | shared | numbered
    assert classes(SHARED.join(STYLES)) <= shared | numbered | set.union(*used.values())


def test_what_is_filled_in_is_never_searched_for_places():
    assert fill_template("{{a}} {{b}}", {"a": "{{b}}", "b": "<"}) == "{{b}} <"
    page = render_scripted_page("{{data}} <b>", "{{body}}", "a {}", "let a;", {"text": "</script>{{script}}"})
    assert "<title>{{data}} &lt;b&gt;</title>" in page
    assert page.count("let a;") == 1
    assert page.count("</script>") == 2


def test_only_a_served_page_may_ask_and_only_its_own_server():
    assert "connect-src" not in render_scripted_page("a", "", "", "let a;", {})
    assert "connect-src 'self';" in render_scripted_page("a", "", "", "let a;", {}, version="1")
    still = render_static_page("a", "", "", refresh_seconds=2)
    assert "script" not in still
    assert '<meta http-equiv="refresh" content="2">' in still
    assert "refresh" not in render_static_page("a", "", "")
