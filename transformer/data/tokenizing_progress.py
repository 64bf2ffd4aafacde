"""The progress of tokenizing: a bar on a terminal, elsewhere a line at the beginning, every half minute and the end."""

import sys
import time
from types import TracebackType
from typing import Self

import rich.console
import rich.progress

from transformer.data.tokenize_corpus import TokenizingProgress
from transformer.system.terminal import is_watched, raw_terminal_stream

_SECONDS_BETWEEN_LINES = 30.0


class TokenizingProgressBar:
    """Shows the progress of one corpus after another while its context lasts."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._bar: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._printed: dict[str, float] = {}
        if is_watched(self._stream):
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.BarColumn(bar_width=24),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("shards"),
                rich.progress.TimeRemainingColumn(),
                console=rich.console.Console(file=raw_terminal_stream(self._stream)),
            )

    def __call__(self, name: str, progress: TokenizingProgress) -> None:
        """Show how far a corpus is.

        Args:
            name: The name of the corpus.
            progress: Its progress.
        """
        num_finished, total = progress.num_shards, progress.total_shards
        if self._bar is not None:
            if name not in self._tasks:
                self._bar.start()
                self._tasks[name] = self._bar.add_task(f"tokenizing {name}", total=total)
            self._bar.update(self._tasks[name], completed=num_finished)
            return
        now = time.monotonic()
        if name not in self._printed or num_finished == total or now >= self._printed[name] + _SECONDS_BETWEEN_LINES:
            self._printed[name] = now
            print(f"tokenizing {name}: {num_finished} of {total} shards, {progress.num_tokens:,} tokens", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
