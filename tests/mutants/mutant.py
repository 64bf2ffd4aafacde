"""A fault planted in one line of the code: what mutation testing calls a mutant."""

import ast
import dataclasses
import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A line, or a part of one, exchanged for one that a mistake could have written.

    Attributes:
        file: From the checkout's root.
        original: Text that stands in the file once.
        replacement: What stands there instead; the file must stay valid Python.
        tests: The test files that should see it; without any, those nearest to the file (tests.changed).
    """

    file: str
    original: str
    replacement: str
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file and the exchange, on one line."""
        return f"{self.file}: {' '.join(self.original.split())} -> {' '.join(self.replacement.split()) or 'nothing'}"

    def apply(self, root: Path) -> None:
        """Exchange the text in a copy of the checkout.

        Raises:
            ValueError: The text stands there not once, or what comes of it is no Python.
        """
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.original)) != 1:
            raise ValueError(f"{self.file} has {self.original!r} {count} times, not once: renew the mutant")
        changed = source.replace(self.original, self.replacement)
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            raise ValueError(f"{self.name} changes nothing")
        path.write_text(changed, encoding="utf-8")


def all_mutants() -> list[Mutant]:
    """Return the mutants of every module of this folder that has a list of them."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*_mutants.py") if path.stem != "test_mutants")
    return [mutant for name in modules for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS]
