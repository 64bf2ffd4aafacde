"""A process that writes maps is killed, for real and at any moment: whole steps stay, none twice, none lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.maps.killed_writer import CHECKPOINTED, open_store, weights_at
from transformer.maps.store import MapStore

KILLS = 4


def test_kill_9_and_resume_leave_every_step_once(tmp_path: Path, root: Path) -> None:
    """The writer goes on from its last checkpoint, every so many steps, as a training run does."""
    moments = random.Random(5)
    path = tmp_path / "maps"
    reached = 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.maps.killed_writer", str(path)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        start = int(writer.stdout.readline())
        assert start == reached // CHECKPOINTED * CHECKPOINTED
        # Until it is amid a later step; then at any moment of it.
        while int(writer.stdout.readline()) < start + CHECKPOINTED + 1:
            pass
        time.sleep(moments.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        steps = MapStore.open_existing(path).steps
        assert steps == tuple(range(1, len(steps) + 1))
        assert len(steps) >= start + CHECKPOINTED
        reached = len(steps)
    store = open_store(path)
    for step in store.steps:
        np.testing.assert_allclose(store.read("decoder/self", step)[0], weights_at(step)[:, 0], atol=0.005)
