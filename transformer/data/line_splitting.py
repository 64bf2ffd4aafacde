"""Split a text into lines at line feeds only."""


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines, without their ends.

    `str.splitlines`, and files opened as text, also split at characters that occur within a line, such as U+2028,
    U+0085, a form feed or a lone carriage return, so that line n of one file would meet another line of a parallel
    file. A carriage return before "\n" belongs to the line's end.
    """
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
