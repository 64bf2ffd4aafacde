"""The standard output of a command, which may be a file on a full disk."""

import os
from typing import Any, TextIO


class StandardOutput:
    """A stream that reports write errors: fatal ones by name if it is `needed`, else once, and then it writes nowhere.

    A broken pipe is always raised.

    Args:
        stream: The stream.
        needed: Whether the command has failed if the stream cannot be written.
    """

    def __init__(self, stream: TextIO, *, needed: bool):
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        """Write text, or nothing if the stream has failed.

        Raises:
            OSError: If writing fails and the stream is needed.
            BrokenPipeError: If nobody reads the stream.
        """
        try:
            self._stream.write(text)
        except OSError as error:
            self._handle_write_error(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or nothing if the stream has failed.

        Raises:
            OSError: If writing fails and the stream is needed.
            BrokenPipeError: If nobody reads the stream.
        """
        try:
            self._stream.flush()
        except OSError as error:
            self._handle_write_error(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _handle_write_error(self, error: OSError) -> None:
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
    """Redirect a stream of a file descriptor to /dev/null, including what is buffered."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
