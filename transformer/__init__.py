"""Headwise: attention research in JAX, one loop for every model, with per-head maps from every run."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.interpret.load import Loaded


def load(source: str | Path, *, step: int | None = None, trust: Collection[str] = ()) -> "Loaded":
    """A model to look at: of a run directory, or of a folder as Hugging Face publishes models; see its `look`.

        model = transformer.load("gpt2-folder")
        model.look("my sentence")                       # the page of what every head attends to
        model.run_with_maps("my sentence")              # named arrays

    `step` is a run's checkpoint, by default the newest sound one. `trust` are the dotted paths of your own modules
    that a run's config may name as code. Nothing is downloaded, and nothing of the folder is run.

    Raises:
        UserError: For what is neither, and for a model that cannot be read.
    """
    from transformer.interpret.load import load

    return load(source, step=step, trust=trust)


def __getattr__(name: str) -> Any:
    """A part of the library, as transformer.maps: imported once it is asked for, since most need jax."""
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What a person may ask for."""
    return sorted({"load", *(module.name for module in pkgutil.iter_modules(__path__))})
