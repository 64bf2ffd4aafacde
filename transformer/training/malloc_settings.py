"""Settings of glibc malloc: freed memory is kept for the next step, or returned at once."""

import ctypes
import os
from collections.abc import Mapping

# The numbers of mallopt's parameters in <malloc.h> of the GNU C library, with what they are set to.
_PARAMETERS = {
    -4: 0,  # M_MMAP_MAX: allocate large blocks from the heap too, not individually from the kernel
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: keep up to 2 GiB at the end of the heap
    -8: 1,  # M_ARENA_MAX: share one heap between all threads; other arenas would return large blocks
}

_RETURNING = {
    -3: 1 << 16,  # M_MMAP_THRESHOLD: allocate larger blocks individually from the kernel
    -1: 1 << 17,  # M_TRIM_THRESHOLD: keep little at the end of the heap
}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Set glibc malloc to keep large freed blocks for the next step; call it before jax computes anything.

    On a CPU XLA allocates the memory of a step anew each time. With the defaults of the GNU C library large blocks come
    from the kernel, which clears them page by page: a third of the time of a small model's step. With these settings
    the process keeps its peak memory until it ends.

    Args:
        environment: The environment variables.

    Returns:
        Whether the settings were made. They are not with another C library, or if the user has set `MALLOC_` variables
        or `GLIBC_TUNABLES`.
    """
    return _set(_PARAMETERS, environment)


def return_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Set glibc malloc to return freed blocks to the kernel at once, for what reads and writes large files.

    With the defaults it keeps blocks of some MB, once one was freed, which doubles the peak of such a process.

    Returns:
        Whether the settings were made, as in `keep_freed_memory`.
    """
    return _set(_RETURNING, environment)


def _set(parameters: Mapping[int, int], environment: Mapping[str, str]) -> bool:
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) == 1 for parameter, value in parameters.items())
