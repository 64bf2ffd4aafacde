"""All claims, found by walking this folder: a module that defines `CLAIM` is a claim."""

import functools
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from experiments.claims.claim import Claim
from transformer.config import UserError

PACKAGE = "experiments.claims"


@functools.cache
def claims_by_module() -> Mapping[str, Claim]:
    """Return the claims in the order of their numbers, each by the name of its module, such as "softmax_saturation".

    Raises:
        UserError: If two claims have one number.
    """
    files = sorted(Path(__file__).parent.glob("*.py"))
    # What only measurements need may import jax, and is not imported here.
    names = [file.stem for file in files if "\nCLAIM = " in file.read_text(encoding="utf-8")]
    return sort_claims((name, importlib.import_module(f"{PACKAGE}.{name}").CLAIM) for name in names)


def claims() -> tuple[Claim, ...]:
    """Return the claims in the order of their numbers."""
    return tuple(claims_by_module().values())


def sort_claims(named_claims: Iterable[tuple[str, Claim]]) -> Mapping[str, Claim]:
    """Return claims by module, in the order of their numbers.

    Raises:
        UserError: If two claims have one number.
    """
    by_number: dict[int, str] = {}
    by_module = dict(sorted(named_claims, key=lambda pair: pair[1].number))
    for module, claim in by_module.items():
        if (earlier_module := by_number.setdefault(claim.number, module)) != module:
            raise UserError(
                f"{earlier_module}.py and {module}.py are both {claim.name}: give one of them another number"
            )
    return MappingProxyType(by_module)
