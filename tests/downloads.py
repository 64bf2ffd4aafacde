"""What a page hands out to a person, as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def downloaded(page: Any, ask: Callable[[], Any], directory: Path) -> Path:
    """The file that the browser downloads when `ask` presses its button or key.

    Chromium under load never begins about one in a thousand of the downloads that a page hands out: that one is asked
    for once more.
    """
    from playwright.sync_api import TimeoutError as Waited

    try:
        with page.expect_download(timeout=10_000) as download:
            ask()
    except Waited:
        with page.expect_download() as download:
            ask()
    path: Path = directory / download.value.suggested_filename
    download.value.save_as(path)
    return path
