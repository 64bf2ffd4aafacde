"""Name the test files that are nearest to the changes of the working tree, for `make test-changed`.

    python -m tests.changed [--since=COMMIT]

A changed test names itself. A changed module names the test files that import it; if there are none, those that import
a module that imports it, and so on. Of many it names the nearest by folder and name. Tests of whole systems, which
import much and take minutes, are named if there are no others. A changed document names the tests of documents.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("transformer", "launch", "experiments", "docs", "tests")
DOCUMENT_TESTS = ("tests/test_links.py", "tests/test_identifiers.py", "tests/test_documentation_site.py")
STRUCTURE_TESTS = ("tests/test_structure.py",)
WHOLE_SYSTEMS = ("tests.contracts.", "tests.faults.", "tests.golden.")
MOST_TESTS_OF_A_MODULE = 12


def changed_files(since: str) -> list[str]:
    """Return the files that differ from a commit, and those that git does not know yet."""

    def lines(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    names = [*lines("diff", "--name-only", since), *lines("ls-files", "--others", "--exclude-standard")]
    return sorted({name for name in names if name})


def module_name(path: Path) -> str:
    """Return the dotted name of a file of a package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a file, those of its functions too, without their expressions: nine tenths of a tree."""
    blocks = [tree]
    for block in blocks:
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            blocks += getattr(block, part, ())
    yield from blocks


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield each import of a file as a module and a name in it; no name for the module itself."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield from ((node.module, alias.name) for alias in node.names)


def import_graph(files: Iterable[Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports; a name of a package counts as the module that it comes from."""
    trees = {module_name(path): ast.parse(path.read_text()) for path in files}
    packages = {name: dict(_exports(tree)) for name, tree in trees.items()}

    def source(module: str, name: str | None) -> str:
        if f"{module}.{name}" in trees:
            return f"{module}.{name}"
        return packages.get(module, {}).get(name, module)

    return {
        importer: {source(module, name) for module, name in imported_names(tree)} & trees.keys()
        for importer, tree in trees.items()
    }


def _exports(tree: ast.AST) -> Iterator[tuple[str | None, str]]:
    return ((name, module) for module, name in imported_names(tree) if name is not None)


def importers_of(packages: Iterable[str]) -> dict[str, set[str]]:
    """Return the modules that import each module of these packages."""
    importers: dict[str, set[str]] = {}
    for importer, imported in import_graph(path for name in packages for path in (ROOT / name).rglob("*.py")).items():
        for module in imported:
            importers.setdefault(module, set()).add(importer)
    return importers


def nearest_tests(module: str, importers: Mapping[str, set[str]]) -> set[str]:
    """Return the test modules that import a module by the shortest way."""
    level, seen = {module}, {module}
    while level:
        if tests := {name for name in level if re.match(r"tests\.(.*\.)?test_\w+$", name)}:
            if module in tests:
                return {module}
            parts = {name for name in tests if not name.startswith(WHOLE_SYSTEMS)}
            return set(sorted(parts or tests, key=lambda name: _distance(module, name))[:MOST_TESTS_OF_A_MODULE])
        level = {importer for name in level for importer in importers.get(name, ())} - seen
        seen |= level
    return set()


def _distance(module: str, test: str) -> tuple[bool, bool, str]:
    """How far a test stands from a module: another name, another folder, and its own name to break ties."""
    *folders, name = module.split(".")[1:] or [module]
    *test_folders, test_name = test.split(".")[1:]
    return test_name != f"test_{name}", folders[: len(test_folders)] != test_folders, test


def nearest_test_files(changed: Iterable[str]) -> list[str]:
    """Return the test files that are nearest to these changed files."""
    found: set[str] = set()
    modules = []
    for name in changed:
        if name.endswith(".py") and name.split("/")[0] in PACKAGES:
            found.update(STRUCTURE_TESTS)
            modules.append(module_name(ROOT / name))
        elif name.endswith((".md", ".ipynb")):
            found.update(DOCUMENT_TESTS)
    importers = importers_of(PACKAGES) if modules else {}
    tests = {test for module in modules for test in nearest_tests(module, importers)}
    found.update(f"{test.replace('.', '/')}.py" for test in tests)
    return sorted(name for name in found if (ROOT / name).exists())


def main() -> int:
    """Print the test files, one a line."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="compare with this commit (default: HEAD)")
    files = nearest_test_files(changed_files(parser.parse_args().since))
    print("\n".join(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
