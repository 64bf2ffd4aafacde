"""The recipes: every command is one that its launcher takes, and each recipe runs as far as this machine can."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from launch.flag_parsing import parse_arguments
from tests.interpret.conftest import write_gpt2
from tests.markdown import FENCE, commands

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "recipes.md"
# What makes each recipe small enough for a test, beside its own words.
SMALL = [
    "--config.steps=2",
    "--config.log_every=1",
    *(f"--config.{name}_every=2" for name in ("eval", "maps", "checkpoint")),
    "--config.head_statistics_every=0",
    *("--config.model.width=16", "--config.model.heads=2", "--config.model.scan_unroll=1"),
]
PAIRS = ["--config.task.tokens_per_batch=256", "--config.task.vocab_size=100"]
TINY = {
    "runs/book": ["--config.model.layers=1", "--config.model.feed_forward=32"],
    "runs/pairs": PAIRS,
    # The model of the folder that the test writes.
    "runs/lora": [
        *("--config.model.layers=2", "--config.model.kv_heads=2", "--config.model.head_dim=8"),
        *("--config.model.feed_forward=64", "--config.model.max_length=32", "--config.model.vocab_size=263"),
        *("--config.task.context_length=16", "--config.task.batch_size=8", "--config.task.probe_length=16"),
    ],
    "runs/rates": [*PAIRS, "--num_trials=2"],
    "runs/norms": [*PAIRS, "--seeds=1"],
    "runs/long": [
        *("--config.model.layers=1", "--config.model.kv_heads=1", "--config.model.feed_forward=32"),
        *("--config.model.max_length=36", "--config.task.context_length=32", "--config.task.probe_length=16"),
        *("--config.model.vocab_size=300", "--config.task.vocab_size=300", "--config.sharding.fsdp=1"),
        "--config.precision.compute=float32",
    ],
    "long_context.py": [],
    "gpt.py": ["--config.model.layers=1", "--config.task.context_length=64", "--config.task.batch_size=16"],
}


def sections(page: str) -> dict[str, str]:
    """The recipes by their titles."""
    return {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}


def files(page: str) -> dict[str, str]:
    """The files that the page shows, by the name in their first line."""
    shown = [text for kind, text in FENCE.findall(page) if kind == "python"]
    return {text.splitlines()[0].removeprefix("# "): text for text in shown}


@pytest.fixture
def beside(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the checkout's experiments and the files that the page names, small ones."""
    (tmp_path / "experiments").symlink_to(root / "experiments")
    for name, text in files(PAGE.read_text(encoding="utf-8")).items():
        (tmp_path / name).write_text(text)
    for name, count in (("train", 200), ("dev", 8), ("test", 8)):
        for language, word in (("en", "the fox sleeps"), ("de", "der Fuchs ruht")):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{word} {n} {name}\n" for n in range(count)))
    (tmp_path / "book.txt").write_text("".join(f"The fox number {n} sleeps and the dog wakes.\n" for n in range(400)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))
    return tmp_path


def launcher(module: str) -> ModuleType:
    return importlib.import_module(module)


def words_of(words: Sequence[str]) -> list[str]:
    """A command's words: of a launcher of clusters those of the train command, which stand behind --."""
    return list(words[words.index("--") + 1 :] if "--" in words else words)


def test_every_command_of_the_page_is_one_that_its_launcher_takes(beside: Path) -> None:
    (beside / "runs/tuned").mkdir(parents=True)
    (beside / "runs/tuned/config.json").write_text(json.dumps({"name": "a run that convert has made"}))
    found = commands(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 25
    for module, words in found:
        behind = words_of(words)
        command = launcher("launch.train" if behind != list(words) else module).COMMAND
        arguments = parse_arguments(command, behind)
        if command.takes_config and arguments.config_file:
            assert arguments.config["steps"] > 0  # every key is one of the schema
        if behind != list(words):
            parse_arguments(launcher(module).COMMAND, words[: words.index("--")])


def test_a_planted_fault_is_found() -> None:
    text = "```\npython -m launch.train --x \\\n --text='a b'  # note\nssh a \"b && python -m launch.x --c > d\"\n```\n"
    assert commands(text) == [("launch.train", ["--x", "--text=a b"]), ("launch.x", ["--c"])]


def tiny(module: str, words: Sequence[str]) -> list[str]:
    """Further words that make a command of the page one of seconds."""
    if module == "launch.convert" and any(word.startswith("--from_pretrained=") for word in words):
        return ["--steps=2", "--context_length=16", "--batch_size=4"]
    if module not in ("launch.train", "launch.sweep", "launch.ablate", "launch.compile") or not takes_config(words):
        return []
    return [*(SMALL if module != "launch.compile" else ()), *TINY[title_of(words)]]


def takes_config(words: Sequence[str]) -> bool:
    return any(word.startswith("--config=") for word in words)


def title_of(words: Sequence[str]) -> str:
    return next(name for name in TINY if any(word.endswith(name) for word in words))


@pytest.mark.slow
@pytest.mark.parametrize("title", sections(PAGE.read_text(encoding="utf-8")))
def test_a_recipe_runs(title: str, beside: Path) -> None:
    write_gpt2(beside / "gpt2")
    one_device = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    for module, words in commands(sections(PAGE.read_text(encoding="utf-8"))[title]):
        if any(word.startswith("--workdir=gs://") for word in words) and "--dry_run" not in words:
            continue  # needs a bucket
        smaller = tiny(module, words)
        # A command says each flag once: what makes it small replaces what the page says.
        replaced = {word.partition("=")[0] for word in smaller}
        own_words = [word for word in words if word.partition("=")[0] not in replaced]
        command = [sys.executable, "-m", module, *own_words, *smaller]
        done = subprocess.run(command, cwd=beside, env=one_device, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout[-500:], done.stderr[-500:])
