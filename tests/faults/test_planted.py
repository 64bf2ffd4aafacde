"""The planted faults are faults of the code as it is: one that cannot be planted would pass for one that was noticed."""

import pytest

from tests.faults.planted import PLANTS


@pytest.mark.parametrize("name", PLANTS)
def test_a_fault_can_be_planted(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        PLANTS[name](patch)
