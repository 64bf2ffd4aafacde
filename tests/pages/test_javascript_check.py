"""The check of the pages' JavaScript in `make lint`, as it is where Node.js is not installed."""

import os
import shutil
import subprocess
from pathlib import Path


def test_lint_checks_the_scripts_and_says_in_one_line_where_it_cannot(root: Path, tmp_path: Path):
    assert ".ci/javascript/check" in (root / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        ["bash", root / ".ci/javascript/check"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "The scripts of the pages were not checked: that needs Node.js and npm.\n"
