"""Every mutant can be planted, and it is known which tests see it (python -m tests.mutants.run)."""

import json
import shutil
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Mutant, all_mutants
from tests.mutants.run import LEAST_SEEN, RESULTS, files_to_run


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name[:100])
def test_a_mutant_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, tmp_path / mutant.file)
    mutant.apply(tmp_path)
    for name in mutant.tests:
        assert (ROOT / name).exists(), name
    assert files_to_run(mutant)


def test_nearly_all_mutants_are_seen() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results) == [mutant.name for mutant in all_mutants()]
    assert sum(tests is not None for tests in results.values()) >= LEAST_SEEN * len(results)
