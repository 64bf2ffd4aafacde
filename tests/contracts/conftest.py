"""What the tests of a file of the contracts share: one program a case on one device, whichever of them asks first."""

import dataclasses
import functools
from typing import Protocol

import pytest

from tests.contracts.alone import Alone
from tests.contracts.cases import CASES


class MakeAlone(Protocol):
    """A case by its name; its parameters are a tree where the case or the caller keeps it."""

    def __call__(self, name: str, *, keeps_tree: bool = False) -> Alone: ...


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> MakeAlone:
    """A case on one device, assembled once: tests come case by case, and its programs go with it."""

    @functools.lru_cache(maxsize=1)
    def made(name: str, *, keeps_tree: bool = False) -> Alone:
        (case,) = (case for case in CASES if case.name == name)
        if keeps_tree:
            case = dataclasses.replace(case, keeps_tree=True)
        return Alone(case, tmp_path_factory.mktemp("alone"))

    return made
