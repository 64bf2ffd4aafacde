"""Waiting for a page in a browser, by asking from outside it."""

import time


def wait_until(page, expression: str, arg=None, seconds: float = 30.0) -> None:
    """Return once `expression` is true on `page`.

    Playwright's own `wait_for_function` evaluates a string inside the page at every frame after
    the first, which our pages' content security policy forbids: it fails wherever the first look
    comes too early.
    """
    until = time.monotonic() + seconds
    while not page.evaluate(expression, arg):
        assert time.monotonic() < until, f"never true within {seconds:g} s: {expression}"
        page.wait_for_timeout(20)
