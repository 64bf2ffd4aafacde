"""The page of a sentence: in place in a notebook, a file elsewhere."""

import dataclasses
import html
import sys
import tempfile
from pathlib import Path

from transformer.config import UserError
from transformer.maps.report import write_page
from transformer.storage import locate
from transformer.storage.failures import disk_failure

_HEIGHT = 820  # pixels of the frame in a notebook


@dataclasses.dataclass(frozen=True)
class Looked:
    """A page that needs nothing but a browser: its title, its text, and where it was written, if it was."""

    title: str
    page: str = dataclasses.field(repr=False)
    path: Path | None = None

    def saved(self, path: str | Path | None = None) -> "Looked":
        """The page in a file, by default a new one for temporary files; its path is printed.

        Errors: UserError for a file that cannot be written.
        """
        file = Path(tempfile.mkdtemp(prefix="headwise-")) / "look.html" if path is None else locate(path)
        try:
            write_page(file.absolute(), self.page)
        except OSError as error:
            if disk_failure(error) is not None:
                raise
            raise UserError(f"page={file} cannot be written: {error.strerror or error}") from error
        print(f"Open this page in a browser: {file.resolve()}")
        return dataclasses.replace(self, path=file.resolve())

    def _repr_html_(self) -> str:
        """The page in a frame of its own, where it may run its script and hand out files, and reach nothing else."""
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts allow-downloads" '
            f'title="{html.escape(self.title)}" style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )


def in_notebook() -> bool:
    """Whether a notebook shows what a cell returns."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
