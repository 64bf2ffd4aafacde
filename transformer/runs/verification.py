"""Reading a checkpoint back once it is committed, beside the steps that follow."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from transformer.runs.manifest import read_manifest
from transformer.runs.stored_arrays import changed
from transformer.storage import storage_of


class Verification:
    """A thread that reads a checkpoint back once it is committed; of several processes each reads its share.

    It calls `committed` once nothing more is written, whether the save has succeeded or not.
    """

    def __init__(
        self,
        manager: ocp.CheckpointManager,
        path: Path,
        step: int,
        manifest: Mapping[str, Any],
        committed: Callable[[], None] = lambda: None,
    ):
        self.path, self.step = path, step
        self._manager, self._manifest, self._committed = manager, manifest, committed
        self._wrong: str | None = "it was not verified"
        self._thread = threading.Thread(target=self._verify, name=f"verification of step {step}", daemon=True)
        self._thread.start()

    def result(self) -> str | None:
        """What is wrong with it, or None; waits until that is known."""
        self._thread.join()
        return self._wrong

    def _verify(self) -> None:
        try:
            self._manager.wait_until_finished()
        except BaseException:  # told where the saving thread waits
            return
        finally:
            self._committed()
        try:
            storage_of(self.path).sync_tree(self.path)
            read = read_manifest((self.path / "manifest" / "metadata").read_bytes())
            if read["leaves"] != self._manifest["leaves"]:
                self._wrong = "manifest/metadata is not what was saved"
                return
            mine = list(self._manifest["leaves"].items())[jax.process_index() :: jax.process_count()]
            self._wrong = changed(self.path / "state", dict(mine))
        except Exception as error:
            self._wrong = " ".join(str(error).split())[:300]
