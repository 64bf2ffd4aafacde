"""Safe output to a terminal: control characters of foreign text are shown, not executed."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_LAYOUT = "\n\t"


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun, as "1 line" or "1,200 lines"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_size(num_bytes: float, digits: int = 2) -> str:
    """Return a size as 512 B, 20 kB or 1.5 GB, in units of 1000, with at least so many digits from a kilobyte on."""
    size, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    decimals = 0 if units[0] == "B" else max(digits - len(f"{int(size)}"), 0)
    return f"{size:,.{decimals}f} {units[0]}"


def escape_control_characters(text: str, keep: str = "") -> str:
    r"""Escape all characters that control a terminal, as \x1b.

    Args:
        text: The text.
        keep: Characters that are not escaped.
    """
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1] for character in text
    )


class EscapingStream:
    """A terminal's stream that shows control characters instead of passing them on.

    Attributes:
        raw: The stream itself, for code that draws on the terminal and escapes its text.
    """

    def __init__(self, raw: TextIO):
        self.raw = raw

    def write(self, text: str) -> int:
        """Write text with control characters escaped."""
        self.raw.write(escape_control_characters(text, _LAYOUT))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write lines with control characters escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextlib.contextmanager
def escape_terminal_output() -> Iterator[None]:
    """Escape control characters in what is printed to a terminal while the context lasts.

    Pipes and files get the text unchanged.
    """
    streams = {name: stream for name in ("stdout", "stderr") if (stream := getattr(sys, name)).isatty()}
    for name, stream in streams.items():
        setattr(sys, name, EscapingStream(raw_terminal_stream(stream)))
    try:
        yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


def is_watched(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that somebody looks at, where a progress bar may be drawn.

    Open MPI's mpirun gives its processes a terminal of its own, wherever their output goes.
    """
    return stream.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ


def raw_terminal_stream(stream: TextIO) -> TextIO:
    """Return the raw stream, for code that moves the cursor and escapes foreign text itself."""
    return stream.raw if isinstance(stream, EscapingStream) else stream
