"""Every planted fault can be planted: one that names what is gone would pass for one that was noticed."""

import pytest

from tests.faults.planted import PLANTS


@pytest.mark.parametrize("name", PLANTS)
def test_a_fault_can_be_planted(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        PLANTS[name](patch)
