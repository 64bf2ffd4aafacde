"""The table of the contracts: every toy, and every registered task on every registered model."""

from tests.contracts.library_cases import LIBRARY
from tests.contracts.project_cases import PROJECTS
from tests.contracts.toy_cases import TOYS

CASES = (*LIBRARY, *PROJECTS, *TOYS)
