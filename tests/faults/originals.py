"""What hostile cases are made of: small runs, token shards, a sweep and a published model, made once and copied."""

import dataclasses
import functools
import json
import os
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.sandbox import call

ROOT = Path(__file__).resolve().parents[2]
_COMMON: dict[str, Any] = {
    "name": "small",
    "steps": 2,
    "log_every": 1,
    "eval_every": 0,
    "maps_every": 0,
    "checkpoint_every": 0,
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 1},
}
TRANSLATION: dict[str, Any] = {
    **_COMMON,
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocab_size": 200,
        "bucket_lengths": [48],
        "tokens_per_batch": 8 * 48,
        "num_decoded_examples": 1,
        "num_probe_examples": 2,
        "num_beams": 1,
    },
    "model": {
        "family": "encoder_decoder",
        "vocab_size": 200,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "width": 8,
        "heads": 2,
        "feed_forward": 16,
        "max_length": 48,
    },
}
# The run's own data are what TFDS prepared, which a stranger's run may hold.
PREPARED: dict[str, Any] = {**TRANSLATION, "task": {**TRANSLATION["task"], "dataset": "greetings"}}
LANGUAGE: dict[str, Any] = {
    **_COMMON,
    "task": {
        "name": "language_modeling",
        "dataset": str(ROOT / "LICENSE"),
        "tokenizer": "bytes",
        "context_length": 16,
        "batch_size": 4,
        "num_probe_examples": 2,
        "probe_length": 8,
    },
    "model": {
        "family": "decoder",
        "vocab_size": 264,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "max_length": 36,
    },
}
_FILE = """
import json
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(json.loads({text!r}))


def get_sweep(sweep):
    return sweep.choice("seed", [1, 2])
"""


@dataclasses.dataclass(frozen=True)
class Originals:
    """The originals in a folder: `translation` and `language` are runs, `published` a folder as Hugging Face's."""

    root: Path

    @property
    def config(self) -> Path:
        """A config file of translation, with a sweep."""
        return self.root / "config.py"

    def copy(self, name: str, folder: Path) -> Path:
        """A copy of an original in a case's folder."""
        return Path(shutil.copytree(self.root / name, folder / name, symlinks=True))


def make(root: Path) -> Originals:
    """The originals, made where they are missing.

    Raises:
        RuntimeError: If a command fails, of which the tests of those commands say more.
    """
    originals = Originals(root)
    root.mkdir(parents=True, exist_ok=True)
    for name, config in (("config", TRANSLATION), ("prepared_config", PREPARED), ("language_config", LANGUAGE)):
        (root / f"{name}.py").write_text(_FILE.format(text=json.dumps(config)))
    made = {
        "translation": (
            "train",
            f"--config={root}/prepared_config.py",
            f"--workdir={root}/translation",
            f"--data_dir={root}/prepared",
        ),
        "language": ("train", f"--config={root}/language_config.py", f"--workdir={root}/language"),
        "published": ("convert", f"--workdir={root}/language", f"--save_pretrained={root}/published"),
        "token shards": (
            "tokenize",
            f"--config={root}/language_config.py",
            f"--config.task.shards_dir={root}/token shards",
        ),
        "sweep": ("sweep", f"--config={root}/config.py", f"--workdir={root}/sweep", "--worker"),
    }
    for name, (command, *words) in made.items():
        if not (root / name).exists():
            _in_a_process(root / f"{name}.log", functools.partial(_called, root, command, words))
    if (root / "prepared").exists():
        _keep_data(root / "prepared", root / "translation")
    return originals


def _called(root: Path, command: str, words: Sequence[str]) -> int:
    if f"--data_dir={root}/prepared" in words:
        from tests.greetings import prepare

        prepare(root / "prepared")
    return call(command, words)


def _keep_data(data: Path, run: Path) -> None:
    """Let the run hold its data itself, as one does that prepared them."""
    data.rename(run / "data")
    config = json.loads((run / "config.json").read_text())
    config["task"]["data_dir"] = None
    (run / "config.json").write_text(json.dumps(config))


def make_quickly(root: Path) -> Originals:
    """Originals that are not trained: a run with its data and tokenizer, and a sweep, of a model beyond any machine.

    What reads such a run ends with a refusal, after it has read all that a stranger may have written.
    """
    originals = Originals(root)
    model = {**TRANSLATION["model"], "feed_forward": 2**31 - 1}
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.py").write_text(_FILE.format(text=json.dumps({**TRANSLATION, "model": model})))
    # Not here: what is forked from a process whose libraries have threads may crash.
    _in_a_process(root / "log", functools.partial(_untrained, root, {**PREPARED, "model": model}))
    return originals


def _untrained(root: Path, config: Mapping[str, Any]) -> int:
    from launch import sweep
    from launch.flag_parsing import parse_arguments
    from tests.greetings import prepare
    from transformer.runs.run_directory import write_json
    from transformer.tasks.translation_data import load_encoded_splits
    from transformer.training.config import resolve_config

    experiment = resolve_config(config)
    run = root / "translation"
    prepare(run / "data")
    load_encoded_splits(experiment.task, run)
    write_json(run / "config.json", experiment.to_config())
    sweep._open_sweep(parse_arguments(sweep.COMMAND, [f"--config={root}/config.py", f"--workdir={root}/sweep"]))
    return 0


def _in_a_process(log: Path, act: Callable[[], int]) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            os.environ["XDG_STATE_HOME"] = str(log.parent / "state")
            for number in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            code = act()
        except BaseException:
            log.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{log.stem} cannot be made: {log.read_text()[-2000:]}")
