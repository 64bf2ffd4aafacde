"""A mistake in a config is reported before what only training needs is imported: checkpoints, data sets, scores."""

import json
import subprocess
import sys

from tests.markdown import ROOT

HEAVY = ("orbax", "tensorflow_datasets", "tensorstore", "grain", "tensorboardX", "sacrebleu")
# Each in one process after the others: what one imports is there for all behind it.
REFUSED = (
    ("train", "experiments/demo.py", "--config.modle.width=3", "unknown key config.modle"),
    ("train", "experiments/demo.py", "--config.optimizer.algorithm=addam", "config.optimizer.algorithm='addam'"),
    ("train", "experiments/demo.py", "--config.steps=0", "config.steps=0 must be at least 1"),
    ("train", "experiments/demo.py", "--config.model.heads=3", "not divisible by config.model.heads=3"),
    ("train", "experiments/demo.py", "--config.checkpoint_every=7", "config.checkpoint_every=7"),
    ("ablate", "experiments/ablations/configs/norm_placement.py", "--config.modle=3", "unknown key config.modle"),
    (
        "sweep",
        "experiments/translation/configs/demo_learning_rate_sweep.py",
        "--config.checkpoint_every=7",
        "config.checkpoint_every=7",
    ),
)
PROGRAM = """
import contextlib, importlib, io, json, sys
from launch import cli

refused = []
for command, config, word, _ in json.loads(sys.argv[1]):
    module = importlib.import_module(f"launch.{command}")
    with contextlib.redirect_stderr(io.StringIO()) as written:
        code = cli.run(module.COMMAND, module.main, [f"--config={config}", "--workdir=new", word])
    heavy = sorted({name.partition(".")[0] for name in sys.modules} & set(json.loads(sys.argv[2])))
    refused.append([code, written.getvalue(), heavy])
print(json.dumps(refused))
"""


def test_a_mistake_is_reported_after_the_light_imports_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(REFUSED), json.dumps(HEAVY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for (command, _, word, message), (code, written, heavy) in zip(REFUSED, json.loads(done.stdout), strict=True):
        assert (code, heavy) == (2, []), (command, word)
        assert message in written
        assert written.count("\n") == 1
