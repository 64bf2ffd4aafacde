"""Settings of glibc malloc that keep freed memory for the next step."""

import ctypes
import os
from collections.abc import Mapping

# The numbers of mallopt's parameters in <malloc.h> of the GNU C library, with what they are set to.
_PARAMETERS = {
    -4: 0,  # M_MMAP_MAX: large blocks too come from the heap, not from the kernel one by one
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: up to 2 GiB at the end of the heap stay with the process
    -8: 1,  # M_ARENA_MAX: all threads share that heap; those of their own would give large blocks back
}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Let the C library keep large freed blocks for the next step; call it before jax computes anything.

    XLA takes the memory of a step on a CPU anew each time. From the GNU C library as it is set by default, large blocks
    come from the kernel, which clears them page by page: that is a third of a small model's step. What a process once
    held it then holds to its end. Nothing is done, and False is returned, where another C library is used and where the
    user set `MALLOC_` variables or `GLIBC_TUNABLES`.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) == 1 for parameter, value in _PARAMETERS.items())
