"""JSON objects that hold their own SHA-256, so that damage is noticed when they are read."""

from collections.abc import Mapping
from typing import Any

from transformer.config import hash_config

_CHECKSUM = "sha256"


def add_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its SHA-256 added."""
    return {**record, _CHECKSUM: hash_config(record)}


def has_valid_checksum(record: Any) -> bool:
    """Whether the object matches its SHA-256."""
    return isinstance(record, Mapping) and record.get(_CHECKSUM) == hash_config(strip_checksum(record))


def strip_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object without its SHA-256."""
    return {key: value for key, value in record.items() if key != _CHECKSUM}
