"""Every experiment's config is whole and says no more than it must, and its docstring says how to run it."""

import ast
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.command import split_override
from launch.config_files import load_config
from tests.experiments.variants import CHECKOUT, FILES, arguments_of
from transformer.config import UserError, flatten_config
from transformer.models.published_sizes import PUBLISHED_SIZES as SIZES
from transformer.overrides import SchemaValue, find_key, override_flag, value_keys
from transformer.training.config import apply_text_overrides, config_schema, format_as_flags, resolve_config

NAMES = [f"{file.relative_to(CHECKOUT)}{argument}" for file in FILES for argument in arguments_of(file)]


@functools.cache
def values_of(name: str) -> dict[str, Any]:
    return load_config(str(CHECKOUT / name)).to_dict()


@functools.cache
def whole_of(name: str) -> dict[str, Any]:
    return resolve_config(values_of(name)).to_config()


@functools.cache
def keys_of(name: str) -> frozenset[str]:
    return frozenset(value_keys(config_schema(values_of(name))))


def test_there_are_experiments() -> None:
    assert len(FILES) >= 8


def test_every_config_but_the_demo_lies_in_the_configs_of_its_project() -> None:
    assert [file.name for file in FILES if file.parent.name != "configs"] == ["demo.py"]


@pytest.mark.parametrize("name", NAMES)
def test_a_config_resolves(name: str) -> None:
    assert resolve_config(whole_of(name)).to_config() == whole_of(name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_docstring_gives_the_command_and_the_time_or_the_machine(file: Path) -> None:
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    assert f"python -m launch.train --config={file.relative_to(CHECKOUT)}" in said
    assert any(word in said for word in ("minute", "hour", "accelerator", "GPU", "TPU"))
    assert not re.search(r"[^\\]\n {4,}--", said), "a command that goes on needs a backslash to be pasted"


def bases(file: Path) -> Iterator[str]:
    """The experiments that a file begins with: those that it imports, and those that they import."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments"):
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = CHECKOUT / f"{str(module).replace('.', '/')}.py"
                if path.is_file():
                    yield str(path)
                    yield from bases(path)


# Keys that stay although they equal their defaults, each with why.
KEPT = {"wmt14.py": {"optimizer.warmup_steps": "the learning rate beside it is computed from it"}}


@functools.cache
def differing(name: str) -> dict[str, bool]:
    """The keys that a config states, and whether with another value than the default."""
    values = load_config(name).to_dict()
    tree, resolved = config_schema(values), flatten_config(resolve_config(values).to_config())
    nodes = {key: find_key(tree, key) for key in flatten_config(values)}
    return {key: isinstance(node, SchemaValue) and node.default != resolved[key] for key, node in nodes.items()}


def needless(file: Path, kept: Mapping[str, str]) -> list[str]:
    """The keys that a config file states although they equal their defaults.

    Such a key is needed where another argument of the file gives it another value, and where the file takes back what
    an experiment that it begins with says.
    """
    needed = {key for base in bases(file) for key, differs in differing(base).items() if differs} | set(kept)
    found = [differing(f"{file}{argument}") for argument in arguments_of(file)]
    return sorted(key for key in found[0] if key not in needed and not any(keys[key] for keys in found))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_states_only_what_differs_from_the_defaults(file: Path) -> None:
    where = file.relative_to(CHECKOUT)
    kept = KEPT.get(file.name, {})
    assert needless(file, kept) == [], f"{where} states keys that equal their defaults: remove them"
    assert set(kept) <= set(needless(file, {})), f"{where}: what KEPT names is no exception"


def test_what_a_config_need_not_state_is_named(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(
        "from experiments import demo\n"
        "def get_config():\n"
        "    config = demo.get_config()\n"
        "    config.head_statistics_every = 0\n"  # takes back what the demo says
        "    config.keep_checkpoints = 2\n"
        "    config.model.score = 'scaled_dot'\n"
        "    config.parameter_averages = {}\n"
        "    return config\n"
    )
    assert needless(file, {}) == ["keep_checkpoints", "model.score", "parameter_averages"]
    assert needless(file, {"keep_checkpoints": "why"}) == ["model.score", "parameter_averages"]


NAMED = re.compile(r"--config\.([a-z_]+(?:\.[a-z_]+)*)(?:=([^\s`]+))?")


@functools.cache
def named_in_commands() -> list[dict[str, str | None]]:
    """The overrides that the page names, each alone; those of the mesh together, which they describe together."""
    found = NAMED.findall((CHECKOUT / "docs/guides/commands.md").read_text(encoding="utf-8"))
    pairs = {(key, {"": None, "N": "7"}.get(value, value)) for key, value in found if key != "key"}
    mesh = {key: value for key, value in pairs if key.startswith("sharding.")}
    return [mesh, *({key: value} for key, value in sorted(pairs, key=str) if key not in mesh)]


def test_the_overrides_of_the_commands_page_are_found() -> None:
    named = named_in_commands()
    assert {"model.score": "additive"} in named
    assert {"head_statistics_every": "7"} in named
    assert {"sharding.rules", "sharding.fsdp", "sharding.tensor"} <= set(named[0])
    known = {key for name in NAMES for key in keys_of(name)}
    assert {key for overrides in named for key in overrides} <= known


def whole(values: Any) -> dict[str, Any] | str:
    """The whole config, or why it is refused."""
    try:
        return flatten_config(resolve_config(values).to_config())
    except UserError as refused:
        return str(refused)


@pytest.mark.parametrize("name", NAMES)
def test_every_override_of_the_commands_page_works(name: str) -> None:
    values, before, known = values_of(name), flatten_config(whole_of(name)), keys_of(name)
    sizes = {size for size, published in SIZES.items() if published.family == before["model.family"]}
    for overrides in named_in_commands():
        if not set(overrides) <= known:
            continue
        if "model.size" in overrides and (not before.get("model.size") or overrides["model.size"] not in sizes):
            continue
        # A key that the page names without a value is set to the one that it has.
        words = {
            key: override_flag("", before[key]).partition("=")[2] if text is None else text
            for key, text in overrides.items()
        }
        after = whole(apply_text_overrides(values, words.items()))
        if isinstance(after, str):
            # Not every score and backend goes with the positions and the dropout of every model, nor LoRA with
            # attention without projections.
            assert overrides.keys() <= {"model.score", "model.backend", "model.lora.rank"}
            assert all(f"config.{key}={text} " in after for key, text in words.items())
            continue
        for key, text in words.items():
            assert override_flag(key, after[key]) == f"--config.{key}={text}"
        changed = {key for key in after if after[key] != before.get(key)}
        if "model.size" not in overrides:
            # A model that departs from its size has none; nothing else changes.
            assert changed <= {*overrides, "model.size"}
            assert after.get("model.size") in (None, before.get("model.size"))


def test_setting_any_key_to_its_present_value_changes_nothing() -> None:
    # What it does depends on the task, family and size, and on what the config says of the group of the key: each such
    # case is tried once.
    tried: set[str] = set()
    wrong: list[str] = []
    for name in NAMES:
        values, expected = values_of(name), whole_of(name)
        for key, value in flatten_config(expected).items():
            section, *groups = key.split(".")[:-1] or [key]
            chosen = (
                {word: values.get(section, {}).get(word) for word in ("name", "family", "size")} if "." in key else {}
            )
            group = functools.reduce(lambda part, word: (part or {}).get(word), groups, values.get(section, {}))
            identity = json.dumps([chosen, groups and group, key, value], sort_keys=True)
            if value == {} or identity in tried:
                continue
            tried.add(identity)
            word = override_flag(key, value).partition("=")[2]
            try:
                found = apply_text_overrides(values, [(key, word)])
                assert {**found, section: None} == {**values, section: None}
                if resolve_config(found).to_config() != expected:
                    wrong.append(f"{name} {key}={word}")
            except UserError as error:
                wrong.append(f"{name} {key}={word}: {error}")
    assert len(tried) > 1500
    assert wrong == []


def words_of(page: str) -> list[tuple[str, str]]:
    return [split_override(word) for word in shlex.split(page, comments=True)]


@pytest.mark.parametrize("name", NAMES)
def test_the_shown_config_is_the_whole_config_as_words(name: str) -> None:
    expected = whole_of(name)
    page = format_as_flags(values_of(name))
    words = words_of(page)
    keys = [key for key, _ in words]
    assert sorted(keys) == sorted(key for key, value in flatten_config(expected).items() if value != {})
    empty = {"task": {}, "model": {}, "optimizer": {}}
    assert resolve_config(apply_text_overrides(empty, words)).to_config() == expected
    marked = {word.split("=")[0] for word in re.findall(r"--config\.(\S+=.*?) +# \*", page)}
    assert marked == {key for key, differs in differing(str(CHECKOUT / name)).items() if differs}


def test_show_config_is_a_page_and_no_run(tmp_path: Path) -> None:
    words = [f"--config={CHECKOUT / 'experiments/demo.py'}", "--config.model.score=additive", "--data_dir=there"]
    done = subprocess.run(
        [sys.executable, "-m", "launch.train", *words, "--show_config"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert dict(words_of(done.stdout))["model.score"] == "additive"
    lines = {line.split("=")[0]: line for line in done.stdout.splitlines()}
    assert lines["--config.model.score"].endswith("# *> default scaled_dot")
    assert lines["--config.task.data_dir"].endswith("=there" + " " * 24 + "# *> default none")
    assert lines["--config.steps"].endswith("# *")
    assert lines["--config.model.heads"].endswith("# * default 8")
    assert "#" not in lines["--config.keep_checkpoints"]
