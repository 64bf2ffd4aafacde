"""What is known of a published model: the values that it fixes, what its paper prints of it, and where."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Size:
    """One published model.

    `values` are the keys of `family`'s config that it fixes: its architecture, nothing of how it is trained.
    `vocabulary` and `context` (positions) are those that its parameters and operations are counted with, and
    `counted` are further keys for the count alone, where the published number leaves a head out. `published` is the
    number of parameters that its source prints; `training_flops` and `training_tokens` likewise, None where it prints
    none. `notes` say what differs from the source. `stated` is the count by formula of a family that is not built here.
    """

    family: str
    values: Mapping[str, Any]
    vocabulary: int
    context: int
    citation: str
    published: float | None = None
    training_flops: float | None = None
    training_tokens: float | None = None
    notes: tuple[str, ...] = ()
    counted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stated: int | None = None
