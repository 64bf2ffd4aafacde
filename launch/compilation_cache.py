"""The cache of compiled programs, shared by a sweep's workers and a user's commands."""

import contextlib
import importlib
import os
import platform
import shutil
import sys
import zlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from launch.command import Arguments

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
# All that a user keeps: a training step takes a few megabytes.
MAX_CACHE_BYTES = 4 * 2**30
_MAX_REMOVALS = 1000


def enable_compilation_cache(arguments: Arguments) -> None:
    """Enable the user's compilation cache: the `before_jax` of the commands that train or read a run."""
    enable_user_cache()


def enable_user_cache(environment: MutableMapping[str, str] = os.environ, files: Path = Path("/")) -> None:
    """Cache what jax compiles in a folder of the user's home that nobody else may read or write.

    Each kind of processor has its own folder, because a home may be shared by machines that cannot run each other's
    programs. The least recently used programs are removed when all take more than `MAX_CACHE_BYTES`. Nothing is cached
    if jax is already imported or the folder cannot be made; if others could change its contents, a message says so.

    Args:
        environment: The environment variables, which are set.
        files: The root of the file system.
    """
    if "jax" in sys.modules:
        return
    caches = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    folder = Path(caches) / "headwise" / f"compiled-{hash_processor(files):08x}"
    if not environment.get(_VARIABLE):
        if not folder.is_absolute():
            return
        from transformer.system.private_folders import NotPrivateError, private_folder

        try:
            private_folder(Path(caches), "headwise", folder.name)
        except NotPrivateError as error:
            print(f"compiled programs are not kept: {error}", file=sys.stderr, flush=True)
            return
        except OSError:
            return
        environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MAX_CACHE_BYTES))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    enable_cache_in(folder, environment)


def hash_processor(files: Path = Path("/")) -> int:
    """Return a hash of this kind of processor: its model and features."""
    try:
        lines = (files / "proc" / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return zlib.crc32(platform.processor().encode())
    model_and_features = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return zlib.crc32("\n".join(sorted(model_and_features)).encode())


def enable_cache_in(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Cache what jax compiles in `folder`; call it before jax is imported.

    A cache folder that the user has set in the environment takes precedence. Only the user may write to the folder,
    because its entries are run as programs. Entries are compressed with zlib: with zstandard, a damaged one, as a
    killed process leaves it, can crash the process that reads it. A damaged entry is compiled and written again.

    Args:
        folder: The folder.
        environment: The environment variables, which are set.

    Raises:
        RuntimeError: If jax is already imported.
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
    _recompile_damaged_entries(Path(environment[_VARIABLE]))


def _recompile_damaged_entries(folder: Path) -> None:
    """Make jax recompile and rewrite damaged entries, which it would otherwise warn of in every process and keep.

    A flipped bit fails zlib's checksum; other damage is an error of the file system.
    """
    from jax._src import compilation_cache

    read = compilation_cache.get_executable_and_time

    def read_or_remove(cache_key: str, *arguments: Any, **more: Any) -> Any:
        try:
            return read(cache_key, *arguments, **more)
        except Exception:
            for name in (f"{cache_key}-cache", f"{cache_key}-atime", ".lockfile"):
                _remove_entry(folder / name)
            return None, None

    write = compilation_cache.put_executable_and_time

    def write_or_remove(*entry: Any, **more: Any) -> None:
        # What is in the way is named, one file at a time; what cannot be removed keeps nothing from going on.
        for _ in range(_MAX_REMOVALS):
            try:
                return write(*entry, **more)
            except OSError as error:
                if error.filename is None or not _remove_entry(folder / Path(os.fsdecode(error.filename)).name):
                    return None

    compilation_cache.get_executable_and_time = read_or_remove
    compilation_cache.put_executable_and_time = write_or_remove


def _remove_entry(path: Path) -> bool:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            return True
        # A lock that is a file others may hold.
        if not path.name.startswith("."):
            path.unlink()
            return True
    return False
