"""`make test-changed` names the nearest tests."""

import ast
from pathlib import Path

import pytest

from tests.changed import ROOT, changed_files, importers_of, module_name, nearest_test_files, nearest_tests


@pytest.fixture(scope="module")
def importers() -> dict[str, set[str]]:
    return importers_of(("transformer", "launch", "experiments", "tests"))


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("transformer.decoding.sampling", "tests.decoding.test_sampling"),
        # By a name that its package has of it.
        ("transformer.attention.api", "tests.attention.test_attend"),
        # Imported by other modules alone.
        ("transformer.training.sharded_batches", "tests.training.test_sharded_batches"),
        ("experiments.graphs.task", "tests.experiments.graphs.test_task"),
        ("tests.oracles.decoding", "tests.decoding.test_sampling"),
        ("tests.decoding.test_sampling", "tests.decoding.test_sampling"),
    ],
)
def test_a_module_has_its_own_tests(module: str, test: str, importers: dict[str, set[str]]) -> None:
    found = nearest_tests(module, importers)
    if (ROOT / f"{test.replace('.', '/')}.py").exists():
        assert test in found
    assert 1 <= len(found) <= 12
    # Minutes of training are not the nearest tests of a part.
    assert not any(name.startswith("tests.contracts.") for name in found)


def test_every_module_has_some_test(importers: dict[str, set[str]]) -> None:
    modules = [path for path in (ROOT / "transformer").rglob("*.py") if path.name != "__init__.py"]
    untested = [path for path in modules if not nearest_tests(module_name(path), importers)]
    # A docstring alone needs none.
    assert [path for path in untested if len(ast.parse(path.read_text()).body) > 1] == []


def test_documents_and_unknown_files(tmp_path: Path) -> None:
    assert nearest_test_files(["docs/guides/sweeps.md"]) == [
        "tests/test_documentation_site.py",
        "tests/test_identifiers.py",
        "tests/test_links.py",
    ]
    assert nearest_test_files(["LICENSE"]) == []
    assert all(not name.startswith("/") for name in changed_files("HEAD"))
