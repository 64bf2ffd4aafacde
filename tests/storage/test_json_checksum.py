"""JSON objects that hold their own SHA-256: only what was written is taken for it."""

from typing import Any

import pytest

from transformer.storage.json_checksum import add_checksum, has_valid_checksum, strip_checksum

RECORD = {"step": 3, "names": ["a", "b"]}
WRITTEN = add_checksum(RECORD)


def test_what_was_written_comes_back() -> None:
    assert has_valid_checksum(WRITTEN)
    assert has_valid_checksum(dict(reversed(WRITTEN.items())))
    assert strip_checksum(WRITTEN) == RECORD


@pytest.mark.parametrize(
    "record", [RECORD, {}, {**WRITTEN, "step": 4}, {**WRITTEN, "more": 1}, {**WRITTEN, "sha256": None}, [WRITTEN], None]
)
def test_what_was_changed_is_noticed(record: Any) -> None:
    assert not has_valid_checksum(record)
