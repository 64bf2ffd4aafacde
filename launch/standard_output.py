"""The standard output of a command, which may be a file on a disk that is full."""

import os
from typing import Any, TextIO


class StandardOutput:
    """A stream whose errors name it; one that is not `needed` says once that it fails, and then writes nowhere.

    That nobody reads a pipe any more is raised as it is.
    """

    def __init__(self, stream: TextIO, *, needed: bool):
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        """Write it, or nothing.

        Raises:
            OSError: If the stream is needed.
            BrokenPipeError: As described above.
        """
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or nothing.

        Raises:
            UserError: As `write`.
        """
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _failed(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise error
        # What is still buffered would be tried again at the end, and end the process with an error.
        redirect_to_devnull(self._stream)
        if self._needed:
            error.filename = "the standard output"
            raise error
        from transformer.runs.preemption import write_stderr

        write_stderr(f"the standard output cannot be written: {error.strerror}; the run goes on")


def redirect_to_devnull(stream: TextIO) -> None:
    """Let what is written to a stream of a file go nowhere, what is buffered as well."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
