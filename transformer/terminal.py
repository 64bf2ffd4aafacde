"""Safe output to a terminal: control characters of foreign text are shown, never obeyed."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_LAYOUT = "\n\t"


def printable(text: str, kept: str = "") -> str:
    r"""The text with every character that steers a terminal written out, as \x1b; those of `kept` stay."""
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


class Terminal:
    """A terminal's stream that shows control characters instead of passing them on.

    `raw` is the stream beneath, for who draws on the terminal and has made its text printable.
    """

    def __init__(self, raw: TextIO):
        self.raw = raw

    def write(self, text: str) -> int:
        """Write the text with control characters written out."""
        self.raw.write(printable(text, _LAYOUT))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextlib.contextmanager
def shown_safely() -> Iterator[None]:
    """While the context lasts, what is printed to a terminal steers it no more; pipes and files get what is written."""
    streams = {name: stream for name in ("stdout", "stderr") if (stream := getattr(sys, name)).isatty()}
    for name, stream in streams.items():
        setattr(sys, name, Terminal(stream))
    try:
        yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


def drawn_on(stream: TextIO) -> TextIO:
    """The stream for who moves the cursor on a terminal and makes printable what comes from elsewhere."""
    return stream.raw if isinstance(stream, Terminal) else stream
