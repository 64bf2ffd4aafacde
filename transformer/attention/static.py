"""Fields of a dataclass of arrays that are no arrays."""

import dataclasses
from typing import Any


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field that belongs to the structure of a pytree: known when a program is traced, another value another one."""
    return dataclasses.field(default=default, metadata={"static": True})
