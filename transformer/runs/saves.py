"""Saves under way in this process, which a person's second signal waits for. This module does not import jax."""

import threading
from collections.abc import Callable

_changed = threading.Condition()
_under_way = 0


def begin() -> None:
    """A save begins; `end` is called once it is committed or has failed."""
    global _under_way
    with _changed:
        _under_way += 1


def end() -> None:
    """A save is committed, or has failed."""
    global _under_way
    with _changed:
        _under_way -= 1
        _changed.notify_all()


def under_way() -> bool:
    """Whether a save is under way."""
    return _under_way > 0


def once_done(act: Callable[[], None]) -> None:
    """Call `act` once no save is under way, and let none begin meanwhile."""
    with _changed:
        _changed.wait_for(lambda: not _under_way)
        act()
