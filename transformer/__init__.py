"""Headwise: attention research in JAX, one loop for every model, with per-head maps from every run."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.interpret.load import LoadedModel


def load(source: str | Path, *, step: int | None = None, trust: Collection[str] = ()) -> "LoadedModel":
    """Load a model to look at its attention.

    Args:
        source: A run directory, or a model folder in Hugging Face format. Nothing is downloaded, and no code of the
            folder is run.
        step: The step of a run's checkpoint; by default the newest valid one.
        trust: Dotted paths of your own modules that the run's config may name.

    Raises:
        UserError: If `source` is neither, or its model cannot be read.

    Example:
        ```python
        import transformer

        model = transformer.load("gpt2-folder")
        model.show_attention("my sentence")  # the page of what every head attends to
        model.run_with_maps("my sentence")  # named arrays
        ```
    """
    from transformer.interpret.load import load

    return load(source, step=step, trust=trust)


def __getattr__(name: str) -> Any:
    """Import a part of the library, such as transformer.maps, when it is first used, since most parts need jax."""
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the parts of the library."""
    return sorted({"load", *(module.name for module in pkgutil.iter_modules(__path__))})
