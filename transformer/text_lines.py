"""Splitting a text into lines at line feeds alone."""


def split_lines(text: str) -> list[str]:
    r"""The lines of a text, without their ends: as many as it has "\n", and one more where its end has none.

    Not `str.splitlines`, and no file opened as text: these also cut at characters that stand inside of a line, such as
    U+2028, U+0085, a form feed or a lone carriage return, and so line n of one file meets another line of the next.
    A carriage return in front of "\n" belongs to the line's end.
    """
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
