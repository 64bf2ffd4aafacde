"""Waiting for a page in the browser."""

import time
from typing import Any


def wait_until(page: Any, expression: str, arg: Any = None, seconds: float = 30.0) -> None:
    """Return once `expression` is true on `page`, which may load itself anew meanwhile.

    While a page loads anew, its context goes and its elements are not there yet: an expression that
    cannot be evaluated is one that is not true yet, and the last complaint is part of the failure.

    Playwright's own `wait_for_function` evaluates a string inside the page at every frame after
    the first, which our pages' content security policy forbids: it fails wherever the first look
    comes too early.
    """
    from playwright.sync_api import Error

    until = time.monotonic() + seconds
    while True:
        complaint = ""
        try:
            if page.evaluate(expression, arg):
                return
        except Error as error:
            complaint = f" ({error.message})"
        assert time.monotonic() < until, f"never true within {seconds:g} s: {expression}{complaint}"
        page.wait_for_timeout(20)
