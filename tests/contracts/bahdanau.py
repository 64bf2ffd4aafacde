"""The family of docs/guides/your_own_model.md, as it stands on the page."""

from tests.documented import GUIDES, files

exec(compile(files()["lab/bahdanau.py"], str(GUIDES / "your_own_model.md"), "exec"))
