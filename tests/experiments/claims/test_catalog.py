"""The claims of `experiments.claims`: their numbers, and that each is whole."""

import dataclasses

import pytest

from experiments.claims.catalog import claims, claims_by_module, sort_claims
from transformer.config import UserError


def test_claims_are_in_the_order_of_their_numbers() -> None:
    numbers = [claim.number for claim in claims()]
    assert numbers == sorted(numbers)


def test_two_claims_with_one_number_are_refused() -> None:
    module, claim = next(iter(claims_by_module().items()))
    twin = dataclasses.replace(claim, title="another")
    with pytest.raises(UserError, match=rf"{module}.py and twin.py are both {claim.name}"):
        sort_claims([(module, claim), ("twin", twin)])
