"""Prepare a process before jax is imported, and end it: the platform, memory and the libraries' logging.

Every start of Python in a checkout's environment runs this file (.ci/install says how), so it imports nothing of the
project at its top: what it imported would be used in place of the same modules in the current folder.
"""

import contextlib
import gc
import logging as stdlib_logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Device files of TPUs (direct and by VFIO group), of NVIDIA cards (bare and under WSL) and of AMD cards.
TPUS = ("dev/accel*", "dev/vfio/[0-9]*")
NVIDIA_GPUS = ("dev/nvidia[0-9]*", "dev/dxg")
ACCELERATORS = (*TPUS, *NVIDIA_GPUS, "dev/kfd")
# Set beside JAX_PLATFORMS where this project chose it and not the user.
_CHOSEN_PLATFORM = "HEADWISE_CHOSE_PLATFORM"


def choose_platform(environment: MutableMapping[str, str] = os.environ, files: Path = Path("/")) -> None:
    """Set JAX_PLATFORMS=cpu if the machine has no accelerator and the user has not set it.

    If libtpu is installed without a TPU, jax otherwise searches for one and prints errors before it falls back.

    Args:
        environment: The environment variables, which are set.
        files: The root of the file system.
    """
    if environment.get("JAX_PLATFORMS"):
        return
    if not has_device(ACCELERATORS, files):
        environment["JAX_PLATFORMS"] = environment[_CHOSEN_PLATFORM] = "cpu"


def has_device(patterns: Sequence[str], files: Path = Path("/")) -> bool:
    """Whether the machine has a device file of one of these patterns."""
    return any(next(files.glob(pattern), None) for pattern in patterns)


def without_chosen_platform(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without the platform that `choose_platform` set, which is wrong for other machines."""
    chosen_platform = environment.get(_CHOSEN_PLATFORM)
    removed_variables = (
        {_CHOSEN_PLATFORM}
        if chosen_platform is None or environment.get("JAX_PLATFORMS") != chosen_platform
        else {_CHOSEN_PLATFORM, "JAX_PLATFORMS"}
    )
    return {name: value for name, value in environment.items() if name not in removed_variables}


def add_compiler_flags(config: Mapping[str, Any], environment: MutableMapping[str, str] = os.environ) -> None:
    """Put the compiler flags of a config before those of the environment, so that of a flag in both the latter holds.

    Args:
        config: The config, or the keys of it that are known.
        environment: The environment variables, which are set.
    """
    from transformer.config import COMPILER_FLAGS

    for key, variable in COMPILER_FLAGS.items():
        flags = config.get(key)
        if flags and isinstance(flags, str):  # other values are refused when the config is resolved
            environment[variable] = " ".join([flags, environment.get(variable, "")]).strip()


def reuse_freed_memory(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Keep freed memory for the next step if steps run on the CPU, and return whether that was done."""
    from transformer.training.malloc_settings import keep_freed_memory

    return environment.get("JAX_PLATFORMS") == "cpu" and keep_freed_memory(environment)


def return_freed_memory(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return freed memory to the system at once, and return whether that was done."""
    from transformer.training import malloc_settings

    return malloc_settings.return_freed_memory(environment)


def collect_garbage_less_often() -> None:
    """Search for garbage in cycles once in 50,000 new objects.

    Importing, generating data and tracing make millions of objects that stay: by Python's own threshold a start would
    spend a tenth of its time on looking through them.
    """
    gc.set_threshold(50_000, *gc.get_threshold()[1:])


def quiet_libraries(environment: MutableMapping[str, str] = os.environ) -> None:
    """Silence the libraries' messages on the console, except errors."""
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment.setdefault("GRPC_VERBOSITY", "ERROR")
    # Orbax and TFDS log through absl, which is imported first because it must create its own logger.
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    # logging.basicConfig, called by some library, leaves a root logger with a handler alone.
    stdlib_logging.getLogger().addHandler(stdlib_logging.NullHandler())
    sys.unraisablehook = _report_unless_loop_closed
    warnings.formatwarning = _format_own_warnings_in_one_line


_FORMAT_WARNING = warnings.formatwarning


def _format_own_warnings_in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format the project's own warnings without a place in its code, which says nothing to a user."""
    if category.__module__.partition(".")[0] == "transformer":
        return f"warning: {message}\n"
    return _FORMAT_WARNING(message, category, filename, lineno, line)


def _report_unless_loop_closed(raised: "sys.UnraisableHookArgs") -> None:
    """Report an error of a library's thread, unless TensorStore finds the event loop of a failed save closed.

    It would say so of every write; why the save failed is raised where the save is awaited.
    """
    if not (isinstance(raised.exc_value, RuntimeError) and str(raised.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(raised)


def exit_process(code: int) -> NoReturn:
    """End the process with an exit code.

    A process that has failed does not wait for the others of a distributed run; those that are
    stopped by a signal leave together.
    """
    from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE

    jax: Any = sys.modules.get("jax")
    is_distributed = jax is not None and jax.distributed.is_initialized()
    if is_distributed and code in (0, EXIT_CODE_RESTARTABLE):
        # An error of another process is that process's.
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()
    elif is_distributed and jax.process_index() == 0:
        # The others end with the first process: first let those that fail too report it.
        time.sleep(1)
    trackers = sys.modules.get("transformer.training.writers.trackers")
    if code or (trackers is not None and trackers.any_tracker_hangs()):
        # Without waiting for threads: some still compile, those of a failed save may wait for ever, and the library of
        # a tracker may hang.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
