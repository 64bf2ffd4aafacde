"""Match the entries of a parameter's axis by what they stand for: the outputs of a head by class, rows by token."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from transformer.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class NameMatch:
    """Where the entries of an axis stand in a source whose entries have other names, or another order.

    Attributes:
        what: What the entries are: "classes" or "tokens".
        source_names: The names of the source's entries.
        target_names: The names of the new run's.
        entries: For every entry of the new run, the source's of the same name; -1 if it has none.
    """

    what: str
    source_names: tuple[str, ...]
    target_names: tuple[str, ...]
    entries: tuple[int, ...]

    @property
    def num_matched(self) -> int:
        """The number of the new run's entries that the source has."""
        return sum(entry >= 0 for entry in self.entries)

    @property
    def is_complete(self) -> bool:
        """Whether the source has all of them."""
        return self.num_matched == len(self.entries)

    def describe(self) -> str:
        """Describe how many are matched, and which the source lacks."""
        lacking = [name for name, entry in zip(self.target_names, self.entries, strict=True) if entry < 0]
        if not lacking:
            return f"{self.what} matched by name: all {len(self.entries)}, which stand in another order there"
        return (
            f"{self.what} matched by name: {self.num_matched:,} of {len(self.entries):,}; initialized randomly: "
            f"{list_names(lacking)}"
        )

    def describe_names(self) -> str:
        """Describe the names of both sides."""
        return f"{self.what} are {list_names(self.target_names)}, and there {list_names(self.source_names)}"


def match_classes(source_names: Sequence[str], target_names: Sequence[str]) -> NameMatch | None:
    """Match classes by their names, and those that are left without regard to case.

    A name that stands twice among these on one side matches nothing.

    Args:
        source_names: The names of the source's classes; empty if they are unknown.
        target_names: The names of the new run's.

    Returns:
        The match; None if both are the same in the same order, or one side is unknown.
    """
    source, target = tuple(source_names), tuple(target_names)
    if not source or not target or source == target:
        return None
    entries = _find_names(source, target)
    places = [place for place in range(len(source)) if place not in entries]
    lacking = [place for place, entry in enumerate(entries) if entry < 0]
    folded = _find_names(
        [source[place].casefold() for place in places], [target[place].casefold() for place in lacking]
    )
    folded_entries = dict(zip(lacking, folded, strict=True))
    entries = tuple(
        places[folded_entries[place]] if folded_entries.get(place, -1) >= 0 else entry
        for place, entry in enumerate(entries)
    )
    return None if entries == tuple(range(len(source))) else NameMatch("classes", source, target, entries)


def match_tokens(source: Tokenizer, target: Tokenizer) -> NameMatch | None:
    """Match tokens by their texts; special ones that the source writes otherwise by their roles.

    Returns:
        The match; None if both have the same tokens in the same order.
    """
    source_names, target_names = (
        tuple(tokenizer.pieces(range(tokenizer.vocab_size))) for tokenizer in (source, target)
    )
    if source_names == target_names:
        return None
    entries = list(_find_names(source_names, target_names))
    source_ids, target_ids = source.ids_by_role, target.ids_by_role
    for role, number in target_ids.items():
        source_number = source_ids[role]
        if number is not None and source_number is not None and entries[number] < 0:
            entries[number] = source_number
    return NameMatch("tokens", source_names, target_names, tuple(entries))


def _find_names(source: Sequence[str], target: Sequence[str]) -> tuple[int, ...]:
    counts = Counter(source), Counter(target)
    places = {name: place for place, name in enumerate(source) if counts[0][name] == 1}
    return tuple(places.get(name, -1) if counts[1][name] == 1 else -1 for name in target)


def list_names(names: Sequence[str], limit: int = 8) -> str:
    """List the first names, and count them if there are more: "a, b, ... (9 in all)"."""
    return ", ".join(names[:limit]) + (f", ... ({len(names):,} in all)" if len(names) > limit else "")
