"""JSON objects that hold the SHA-256 of themselves, so that a changed bit is noticed when they are read."""

from collections.abc import Mapping
from typing import Any

from transformer.config import hash_of

_SEAL = "sha256"


def add_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its own SHA-256."""
    return {**record, _SEAL: hash_of(record)}


def has_valid_checksum(record: Any) -> bool:
    """Whether it is what was sealed."""
    return isinstance(record, Mapping) and record.get(_SEAL) == hash_of(strip_checksum(record))


def strip_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its SHA-256."""
    return {key: value for key, value in record.items() if key != _SEAL}
