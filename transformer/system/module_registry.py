"""Find what a module exports by the module's name: in a package of this library, or elsewhere by a dotted path.

A dotted path that begins with "experiments." is a project of this checkout and is imported only from the checkout; a
folder of that name in the working directory is never used instead.
"""

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError, close_matches
from transformer.system.command_invocation import find_checkout


def is_project_module(name: str) -> bool:
    """Whether a dotted path is that of a project's module: code of the checkout, trusted like the library."""
    return name.startswith("experiments.")


def import_experiments_package(reference: str) -> None:
    """Import the package `experiments` from the checkout, whatever is in the working directory or on Python's path.

    Args:
        reference: What asks for a project, such as a key with its value, for the message.

    Raises:
        UserError: If the library is installed, without projects, or another `experiments` is imported already.
    """
    root = find_checkout()
    if root is None:
        raise UserError(
            f"{reference} is of a project of Headwise's repository, which an installed library does not hold: clone "
            "the repository and start python -m launch.COMMAND there, or install it there by pip install -e . (a "
            "package of your own needs another name than 'experiments')"
        )
    folder = root / "experiments"
    imported = sys.modules.get("experiments")
    if imported is None:
        specification = importlib.util.spec_from_file_location(
            "experiments", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert specification is not None
        imported = sys.modules["experiments"] = importlib.util.module_from_spec(specification)
        assert specification.loader is not None
        specification.loader.exec_module(imported)
    # A module that is a file, or was created by a program, has no folders.
    folders = [Path(entry).resolve() for entry in getattr(imported, "__path__", ())]
    if folders != [folder]:
        origin = folders[0] if folders else getattr(imported, "__file__", None)
        raise UserError(
            f"{reference} is of a project of Headwise's repository, but another 'experiments' was imported"
            f"{'' if origin is None else f' from {origin}'}: give yours another name"
        )


def import_export(
    name: str,
    attribute: str,
    key: str,
    *,
    package: str | None,
    definition: str,
    known_names: Callable[[], Sequence[str]],
    is_valid: Callable[[Any], bool],
) -> Any:
    """Import the module that a config names and return what it exports.

    Args:
        name: The name in the config.
        attribute: The name under which the module exports the object.
        key: The config key that has the name, for messages.
        package: The package of modules whose names have no dot; None if there are none.
        definition: What stands behind "ATTRIBUTE = " in such a module, as "ModelFamily(...)".
        known_names: A function that lists the other names that the key takes.
        is_valid: Whether an object is what the module must export.

    Raises:
        UserError: If the module does not exist, exports no such object or fails to import a dependency, or is a project
            and there is no checkout.
    """
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{key}={name!r} names no module: {_suggest_names(name, known_names(), attribute)}")
    if package is None and "." not in name:
        raise UserError(f"{key}={name!r} is unknown: {_suggest_names(name, known_names(), attribute)}")
    if is_project_module(name):
        import_experiments_package(f"{key}={name!r}")
    module = name if "." in name else f"{package}.{name}"
    try:
        # From the checkout, only modules that define the attribute are imported.
        is_defined = not is_project_module(name) or _is_defined_in(_find_project_file(name), attribute, definition)
        exported = getattr(importlib.import_module(module), attribute, None) if is_defined else None
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(f"{key}={name!r}: importing {module} fails: {error}") from error
        if "." in name and not is_project_module(name):
            raise UserError(f"{key}={name!r}: {_explain_missing(name, error.name, known_names())}") from None
        raise UserError(f"{key}={name!r} is unknown: {_suggest_names(name, known_names(), attribute)}") from None
    if not is_valid(exported):
        if "." not in name:
            raise UserError(f"{key}={name!r} is unknown: {_suggest_names(name, known_names(), attribute)}")
        raise UserError(f"{key}={name!r}: the module exports no {attribute}; define {attribute} = {definition} in it")
    return exported


class ModuleRegistry[T]:
    """The objects that modules of a package export under one name, such as TASK.

    A name without a dot is a module of the package; a dotted one is any module on Python's path, and therefore code
    that the user names.

    Args:
        package: The package.
        attribute: The name under which modules export the object.
        kind: The class of the objects, which have a `config_class`.
        key: The config key that has the module's name, for messages.
    """

    def __init__(self, package: str, attribute: str, kind: type[T], key: str):
        self._package, self._attribute, self._kind, self._key = package, attribute, kind, key
        self._names: dict[type, str] = {}

    def __getitem__(self, name: str) -> T:
        """Import the module of this name and return what it exports.

        Raises:
            UserError: If the module does not exist, exports no such object or fails to import a dependency, or is a
                project and there is no checkout.
        """
        exported = import_export(
            name,
            self._attribute,
            self._key,
            package=self._package,
            definition=f"{self._kind.__name__}(...)",
            known_names=self.all_names,
            is_valid=lambda exported: isinstance(exported, self._kind),
        )
        first_name = self._names.setdefault(exported.config_class, name)
        if first_name != name:
            raise UserError(
                f"{self._key}={name!r}: its {self._attribute} has the config class of {first_name!r}; a config is "
                "known by its class, so give each a dataclass of its own"
            )
        return exported

    def all_names(self) -> list[str]:
        """Return the names of all that the package and the projects of this checkout export."""
        return [*self.names(), *self.project_names()]

    def names(self) -> list[str]:
        """Return the names of all that the package exports."""
        path = importlib.import_module(self._package).__path__
        return [module.name for module in pkgutil.iter_modules(path) if self._has_export(module.name)]

    def project_names(self) -> list[str]:
        """Return the dotted paths of all that the projects of this checkout export; [] in an installed library."""
        root = find_checkout()
        files = () if root is None else sorted((root / "experiments").glob("*/*.py"))
        return [f"experiments.{file.parent.name}.{file.stem}" for file in files if self._is_defined_in(file)]

    def name_of(self, config: Any) -> str:
        """Return the name under which the object with this config's class is exported.

        Raises:
            TypeError: If there is no such object.
        """
        if type(config) not in self._names:
            for name in self.names():
                self[name]
        module = type(config).__module__
        if type(config) not in self._names and isinstance(
            getattr(sys.modules.get(module), self._attribute, None), self._kind
        ):
            self[module]
        if type(config) not in self._names:
            raise TypeError(f"{type(config).__name__} is the config of no {self._attribute}; known: {self.names()}")
        return self._names[type(config)]

    def _is_defined_in(self, file: Path) -> bool:
        return _is_defined_in(file, self._attribute, f"{self._kind.__name__}(...)")

    def _has_export(self, name: str) -> bool:
        module = importlib.import_module(f"{self._package}.{name}")
        return isinstance(getattr(module, self._attribute, None), self._kind)


def _is_defined_in(file: Path, attribute: str, definition: str) -> bool:
    """Whether a project's file defines an export, without importing it."""
    # What is made by a call of a class says so; a class or function itself has any name.
    kind = definition.removesuffix("(...)") if definition.endswith("(...)") else ""
    pattern = rf"^{attribute} = {kind}\b"
    return re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _explain_missing(name: str, module: str, known_names: Sequence[str]) -> str:
    """Say that a user's own module, or its package, does not exist, and what to do."""
    package, _, _ = module.rpartition(".")
    close = close_matches(name, [path for path in known_names if "." in path])
    suggestion = f"did you mean {close[0]!r}? If not, " if close else ""
    if package:
        return f"{package} has no module {module}: {suggestion}check its spelling"
    return (
        f"Python finds no module {module}: {suggestion}start the command in the folder that holds it, or add that "
        "folder to PYTHONPATH"
    )


def _suggest_names(name: str, names: Sequence[str], attribute: str) -> str:
    close = close_matches(str(name), names)
    known_names = ", ".join((*close, *sorted(set(names) - set(close))))
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"{suggestion}known: {known_names}; or a dotted path such as lab.mine: a module of your own with a {attribute}"
    )


def _find_project_file(project: str) -> Path:
    """Return the file of a project's module.

    Raises:
        ModuleNotFoundError: If no project has it.
    """
    root, parts = find_checkout(), project.split(".")
    file = None if root is None or len(parts) != 3 else root.joinpath(*parts).with_suffix(".py")
    if file is None or not file.is_file():
        raise ModuleNotFoundError(f"no project has {project}", name=project)
    return file
