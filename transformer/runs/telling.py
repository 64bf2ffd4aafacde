"""What processes tell each other, and the person who runs them, when something is wrong with what is stored."""

import contextlib
import logging
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

_LENGTH = 4096  # bytes of what is said
_logger = logging.getLogger(__name__)


def told(line: str) -> None:
    """Say it on stderr, and in the run's log where there is one."""
    with contextlib.suppress(OSError):  # stderr may be a file on a disk that is full
        print(line, file=sys.stderr, flush=True)
    _logger.info("%s", line)  # as a warning it would be on stderr twice where no log is


def anywhere(said: str | None) -> str | None:
    """What the first of the processes with something to say says, on all of them; None where none has.

    All call it together.
    """
    if jax.process_count() == 1:
        return said
    speaking = np.asarray(multihost_utils.process_allgather(np.int32(said is not None))).reshape(-1)
    if not speaking.any():
        return None
    text = np.zeros(_LENGTH, np.uint8)
    content = (said or "").encode()[:_LENGTH]
    text[: len(content)] = np.frombuffer(content, np.uint8)
    heard = np.asarray(multihost_utils.process_allgather(text)).reshape(-1, _LENGTH)[int(np.argmax(speaking))]
    return bytes(heard).rstrip(b"\0").decode(errors="replace")
