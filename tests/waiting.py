"""Waiting for a page in a browser, by asking from outside it."""

import time
from typing import Any


def wait_until(page: Any, expression: str, arg: Any = None, seconds: float = 30.0) -> None:
    """Return once `expression` is true on `page`, which may load itself anew meanwhile.

    Playwright's own `wait_for_function` evaluates a string inside the page at every frame after
    the first, which our pages' content security policy forbids: it fails wherever the first look
    comes too early.
    """
    until = time.monotonic() + seconds
    while not _true(page, expression, arg):
        assert time.monotonic() < until, f"never true within {seconds:g} s: {expression}"
        page.wait_for_timeout(20)


def _true(page: Any, expression: str, arg: Any) -> bool:
    from playwright.sync_api import Error

    try:
        return bool(page.evaluate(expression, arg))
    except Error as error:
        if "context was destroyed" in error.message:
            return False
        raise
