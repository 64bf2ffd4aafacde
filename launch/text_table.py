"""Tables of text with aligned columns."""

from collections.abc import Collection, Mapping, Sequence


def align_columns(rows: Sequence[Mapping[str, str]], left_aligned: Collection[str]) -> str:
    """Align the columns of a table.

    Args:
        rows: The rows, each with the same columns by name.
        left_aligned: The names of the columns that are aligned to the left; others are to the right.

    Returns:
        The rows as lines of text.
    """
    widths = {name: max(len(row[name]) for row in rows) for name in rows[0]}
    return "\n".join(
        "  ".join(
            f"{row[name]:{'<' if name in left_aligned else '>'}{width}}" for name, width in widths.items()
        ).rstrip()
        for row in rows
    )
