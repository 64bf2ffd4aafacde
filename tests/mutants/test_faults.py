"""The table of planted faults fits the tree of today, and the runner tells what became of one."""

import ast
from pathlib import Path

import pytest

from tests.mutants.fault import Fault
from tests.mutants.faults import FAULTS, LEAST
from tests.mutants.run import Verdict, chosen, judge


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_its_tests_are_there(fault: Fault, root: Path) -> None:
    text = (root / fault.file).read_text()
    planted = fault.planted_in(text)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (root / file).is_file(), f"fault {fault.name!r} names {file}, which is not there"
        if name:
            there = f"def {name.partition('[')[0]}(" in (root / file).read_text()
            assert there, f"fault {fault.name!r} names {test}, which is not there"


def test_each_part_of_the_project_has_its_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 44
    for rooms, least in LEAST.items():
        assert sum(fault.room in rooms for fault in FAULTS) >= least, rooms


@pytest.mark.parametrize("text", ["nothing of it", "a = 1\na = 1\n"])
def test_a_fault_that_does_not_fit_is_named(text: str) -> None:
    fault = Fault("some", "transformer/some.py", "a = 1", "a = 2", "Nothing.", ())
    with pytest.raises(ValueError, match=r"fault 'some': .* transformer/some.py"):
        fault.planted_in(text)


@pytest.mark.parametrize(
    ("code", "output", "verdict", "by"),
    [
        (0, "3 passed", Verdict.ESCAPED, ""),
        (1, "FAILED tests/a/test_b.py::test_c[x - y] - assert 1 == 2\n", Verdict.CAUGHT, "tests/a/test_b.py::test_c"),
        (1, "ERROR tests/a/test_b.py::test_c - ValueError: no\n", Verdict.CAUGHT, "tests/a/test_b.py::test_c"),
        (2, "ERROR tests/a/test_b.py - ImportError: no\n", Verdict.BROKEN, "tests/a/test_b.py"),
        (4, "ERROR: file or directory not found", Verdict.BROKEN, ""),
        (None, "", Verdict.TIMED_OUT, ""),
    ],
)
def test_what_became_of_a_fault(code: int | None, output: str, verdict: Verdict, by: str) -> None:
    assert judge(code, output) == (verdict, by)


def test_an_unknown_fault_is_refused_with_the_nearest() -> None:
    assert [fault.name for fault in chosen(["causal-edge"])] == ["causal-edge"]
    with pytest.raises(SystemExit, match="causal-edge"):
        chosen(["causal-egde"])
