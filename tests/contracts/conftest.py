"""What the tests of a file of the contracts share: one program a case on one device, whichever of them asks first."""

import functools
from collections.abc import Callable

import pytest

from tests.contracts.alone import Alone
from tests.contracts.cases import CASES


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Alone]:
    """A case by its name, on one device, assembled once: tests come case by case, and its programs go with it."""

    @functools.lru_cache(maxsize=1)
    def made(name: str) -> Alone:
        return Alone(next(case for case in CASES if case.name == name), tmp_path_factory.mktemp("alone"))

    return made
