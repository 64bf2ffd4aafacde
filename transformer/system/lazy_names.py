"""Public names of a package that are imported on first use, so that importing the package imports nothing else.

A package lists its names twice: in `__all__`, and as imports under `if TYPE_CHECKING:`, which type checkers and editors
read. `lazy_names` reads where each name comes from in the same imports.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, which import its public names and modules on first use.

    Args:
        package: The package, as `__name__`.

    Example:
        ```python
        import transformer.decoding
        from transformer.system.lazy_names import lazy_names

        get_name, list_names = lazy_names("transformer.decoding")
        get_name("BeamSearch").__module__  # transformer.decoding.beam
        "BeamSearch" in list_names()  # True
        ```
    """
    module = sys.modules[package]

    @functools.cache
    def modules_by_name() -> dict[str, str]:
        return {
            alias.name: node.module
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }

    def get_name(name: str) -> Any:
        if name in module.__all__:
            value = getattr(importlib.import_module(modules_by_name()[name]), name)
            setattr(module, name, value)
            return value
        return import_submodule(package, name)

    return get_name, lambda: sorted(module.__all__)


def import_submodule(package: str, name: str) -> Any:
    """Import a module of a package that is used as an attribute, such as `transformer.maps`.

    Raises:
        AttributeError: If the package has no such module.
    """
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
