"""Large blocks that a process freed are its own: to use them again costs no page from the kernel."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer.training.malloc_settings import keep_freed_memory

# Two blocks of 40 MB, more than the C library takes from the heap by itself, in threads as jax does: the pages that the
# kernel gave behind the first time.
MEASURED = """
import resource, sys, threading
import numpy as np
from transformer.training.malloc_settings import keep_freed_memory

assert keep_freed_memory()
faults = []

def work():
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(5 * 2**20) for _ in range(2)]
        del blocks
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(max(faults[1:]))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not GNU's")
def test_a_block_of_the_size_of_a_freed_one_needs_no_new_pages(root: Path) -> None:
    # Without another library's malloc in front of it, such as the one that the tests run with.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 100


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_set_stays(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
