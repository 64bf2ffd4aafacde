"""The task of docs/guides/your_own_task.md, as it stands on the page."""

from tests.documented import GUIDES, files

exec(compile(files()["lab/sorting.py"], str(GUIDES / "your_own_task.md"), "exec"))
