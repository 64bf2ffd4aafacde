"""The task of docs/guides/your_own_model.md, as it stands on the page."""

from tests.documented import PAGE, files

exec(compile(files()["lab/sorting.py"], str(PAGE), "exec"))
