"""Compiled programs that the processes of a sweep share."""

import importlib
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def share_compiled(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep what jax compiles in `folder` for the next process that needs it; call it before jax is imported.

    A folder that the user named is kept. Only the user can write to it, for its entries are run as programs. Entries
    are packed with zlib: with zstandard, a damaged one, as a kill leaves it, can crash the process that reads it.
    """
    if not environment.get(_VARIABLE):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        environment[_VARIABLE] = os.fspath(folder)
    if "jax" in sys.modules:
        raise RuntimeError("jax was imported before it was told where its programs are kept")
    # jax takes the best packer that can be imported while it is, and zlib where none can.
    better = ("zstandard", "compression.zstd")
    imported = {name: sys.modules[name] for name in better if name in sys.modules}
    for name in better:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        importlib.import_module("jax")
    finally:
        for name in better:
            del sys.modules[name]
        sys.modules.update(imported)
