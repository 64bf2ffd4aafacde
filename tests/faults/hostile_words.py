"""Wrong words: flags of every command, keys of the config, config files, and names that no terminal should show."""

import random
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from launch.command import Command, Flag
from tests.faults.originals import Originals
from tests.faults.sandbox import COMMANDS, Case, Sandbox, module_name

NUMBERS = ("100000000000000000000", "-1", "nan", "inf", "1e400", "", "0x10", "9" * 5000, "١٢x")
TEXTS = ("", "\x1b[31mred\nsecond line", "x/../y", "x" * 5000, "\udcff", "/dev/null", "/proc/self/mem", "~nobody/x")
# What begins to measure or to compile before it can know that there is no end to it.
_ENDLESS = {
    ("experiments.benchmarks.run", "rounds"),
    ("benchmark_layers", "seeds"),
    ("benchmark_layers", "repeats"),
    ("benchmark_backends", "repeats"),
}
# Words that make a call right but for one more.
RIGHT = {
    "train": ("--config={o}/config.py", "--workdir={d}/new", "--show_config"),
    "evaluate": ("--workdir={d}/translation",),
    "generate": ("--workdir={d}/translation", "--target_language=de", "--text=one", "--no_maps"),
    "maps": ("--workdir={d}/translation",),
    "ablate_heads": ("--workdir={d}/translation", "--num_batches=1"),
    "alignment_error_rate": (
        "--workdir={d}/translation",
        "--source_text={d}/s",
        "--target_text={d}/s",
        "--alignments={d}/l",
        "--target_language=de",
    ),
    "model_sizes": ("--workdir={d}/translation",),
    "convert": ("--workdir={d}/new", "--from_pretrained={o}/published"),
    # Its trials end at once, as their data set is none.
    "sweep": ("--config={o}/config.py", "--workdir={d}/new", "--worker", "--config.task.dataset=/dev/null"),
    "ablate": ("--config={o}/config.py", "--workdir={d}/new"),
    "compile": ("--config={o}/config.py", "--topology=cpu:1"),
    "experiments.benchmarks.run": ("--name=none",),
    "benchmark_backends": ("--sequence_lengths=0",),
    "benchmark_layers": ("--sequence_lengths=0",),
    "experiments.pods.compile_experiments": ("--filter=none-has-this-in-its-name", "--results_file={d}/pods.json"),
    "clusters.local": ("--dry_run", "--", "--config={o}/config.py", "--workdir={d}/new"),
    "scaling_laws": ("--runs={d}/translation",),
    "experiments.reproduce": ("--name=no/record",),
    "experiments.claims.__main__": ("--only=none",),
    # The text of a translation, which has no token shards: a corpus would be tokenized for each word.
    "tokenize": ("--config={o}/config.py",),
}
_RUNS = ("evaluate", "generate", "maps", "ablate_heads", "alignment_error_rate", "model_sizes")


def declared(command: str) -> Command:
    """The declaration of a command."""
    return import_module(module_name(command)).COMMAND


def prepared(originals: Originals, command: str, more: Callable[[Path], Sequence[str]]) -> Callable[[Path], list[str]]:
    """What prepares a call that is right but for the words of `more`."""

    def prepare(folder: Path) -> list[str]:
        if command in _RUNS:
            originals.copy("translation", folder)
            (folder / "s").write_text("one\n")
            (folder / "l").write_text("0-0\n")
        said = list(more(folder))
        right = [word.format(o=originals.root, d=folder) for word in RIGHT[command]]
        return _joined(right, said)

    return prepare


def _joined(right: Sequence[str], said: Sequence[str]) -> list[str]:
    names = {word.partition("=")[0] for word in said}
    kept = [word for word in right if word.partition("=")[0] not in names]
    place = kept.index("--") if "--" in kept else len(kept)
    return [*kept[:place], *said, *kept[place:]]


def flags(originals: Originals) -> Iterator[Case]:
    """Every flag of every command with values that it cannot have."""
    for command in COMMANDS:
        for flag in declared(command).flags:
            for value in _values(flag):
                if (command, flag.name) in _ENDLESS and value.isascii() and value.isdigit():
                    continue
                word = f"--{flag.name}={value}"
                # Only some are mistakes: a text may be anything. None is a reason to crash.
                codes = (2,) if flag.value_type in (int, float) and value != "-1" else (0, 2, 3)
                more = lambda folder, word=word: [word]  # noqa: E731
                yield Case(f"{command} {word[:40]!r}", command, prepared(originals, command, more), codes)
        for word in ("--no_such_flag=1", "stray", "--", "-x", "--workdir", "--\x1b[31m=1", f"--{'y' * 9000}"):
            more = lambda folder, word=word: [word]  # noqa: E731
            yield Case(f"{command} {word[:40]!r}", command, prepared(originals, command, more), (0, 2))


def _values(flag: Flag) -> Sequence[str]:
    if flag.value_type in (int, float):
        finite = [value for value in NUMBERS if value != "100000000000000000000" or flag.value_type is int]
        return finite
    return () if flag.value_type is bool else TEXTS


def keys(originals: Originals) -> Iterator[Case]:
    """Every number of the config with values that it cannot have, and every text with some that it should not."""
    from tests.faults.originals import TRANSLATION
    from transformer.overrides import SchemaValue, find_key, value_keys
    from transformer.training.config import config_schema

    tree = config_schema(TRANSLATION)
    for key in value_keys(tree):
        node = find_key(tree, key)
        kind = str(getattr(node, "hint", "")) if isinstance(node, SchemaValue) else ""
        number = "int" in kind or "float" in kind
        for value in NUMBERS if number else TEXTS:
            word = f"--config.{key}={value}"
            least = "100000000000000000000" if "float" in kind else "-1"
            wrong = number and "tuple" not in kind and value not in ("-1", least)
            more = lambda folder, word=word: [word]  # noqa: E731
            name = f"train {word[:60]!r}"
            yield Case(name, "train", prepared(originals, "train", more), (2,) if wrong else (0, 2))


_HEAD = "from ml_collections import ConfigDict\n"
FILES = {
    "exits": b"raise SystemExit(0)\n",
    "exits within": b"def get_config():\n    raise SystemExit(0)\n",
    "recurses": b"def get_config():\n    return get_config()\n",
    "is no UTF-8": b"\xff\xfe\x00x",
    "holds a null byte": b"x = 1\x00\n",
    "is no Python": b"def get_config(:\n",
    "returns a list": b"def get_config():\n    return []\n",
    "returns an empty config": f"{_HEAD}def get_config():\n    return ConfigDict()\n".encode(),
    "says a page": b"def get_config():\n    raise ValueError('x' * 100_000)\n",
    "says escapes": b"def get_config():\n    raise ValueError('\\x1b[2J\\x07\\n\\u202e')\n",
    "cannot be printed": b"class E(Exception):\n    def __str__(self): raise ValueError('no')\ndef get_config():\n    raise E\n",
    "asks for arguments": b"def get_config(a, b):\n    return a\n",
    "has no get_config": b"pass\n",
    "is empty": b"",
    "holds itself": f"{_HEAD}c = ConfigDict()\nc.c = c\ndef get_config():\n    return c\n".encode(),
    "holds functions": f"{_HEAD}def get_config():\n    return ConfigDict({{'name': print, 'steps': len}})\n".encode(),
    "has sections that are none": f"{_HEAD}def get_config():\n    return ConfigDict({{'task': 3, 'model': 'x'}})\n".encode(),
    "has numbers as keys": f"{_HEAD}def get_config():\n    return ConfigDict({{'task': {{}}, 'model': {{1: 2}}}})\n".encode(),
}


def files(originals: Originals) -> Iterator[Case]:
    """Config files that are not what they should be."""
    for command in ("train", "sweep", "ablate", "compile"):
        for name, content in FILES.items():

            def more(folder: Path, content: bytes = content) -> list[str]:
                (folder / "wrong.py").write_bytes(content)
                return [f"--config={folder}/wrong.py"]

            yield Case(f"{command}: a config file that {name}", command, prepared(originals, command, more))
        for name in (".", "/dev/null", "none.py", "x" * 5000, "\x1b[31m\n.py", "wrong.py:\x1b", "/"):
            more = lambda folder, name=name: [f"--config={name}"]  # noqa: E731
            yield Case(f"{command} --config={name[:40]!r}", command, prepared(originals, command, more))


def too_large(originals: Originals) -> Iterator[Case]:
    """Models and batches beyond any machine: refused before anything compiles."""
    for key, value in {
        "model.width": 1_000_000,
        "model.feed_forward": 2_000_000_000,
        "model.vocab_size": 2_000_000_000,
    }.items():
        words = [f"--config={originals.config}", f"--config.{key}={value}"]
        prepare = lambda folder, words=words: [*words, f"--workdir={folder}/new"]  # noqa: E731
        yield Case(f"train --config.{key}={value}", "train", prepare)


def values(originals: Originals) -> Iterator[Case]:
    """Every number of the config at 0 and below, up to where a run would begin, which a model beyond any machine does not."""
    from tests.faults.originals import TRANSLATION
    from transformer.overrides import SchemaValue, find_key, value_keys
    from transformer.training.config import config_schema

    tree = config_schema(TRANSLATION)
    for key in value_keys(tree):
        kind = str(getattr(node, "hint", "")) if isinstance(node := find_key(tree, key), SchemaValue) else ""
        if "int" not in kind and "float" not in kind:
            continue
        for value in ("0", "-1", "-1,2", "2147483647") if "tuple" in kind else ("0", "-1", "2147483647"):
            beyond = [] if key == "model.feed_forward" else ["--config.model.feed_forward=2147483647"]
            words = [f"--config={originals.config}", *beyond, f"--config.{key}={value}"]
            prepare = lambda folder, words=words: [*words, f"--workdir={folder}/new"]  # noqa: E731
            yield Case(f"train: the value {key}={value}", "train", prepare)


def planted(sandbox: Sandbox) -> Iterator[tuple[Case, str]]:
    """Config files that do what a case must not, each with the property of `Seen` that tells of it."""
    code = {
        "executed": f"open({str(sandbox.canary)!r}, 'w').close()",
        "written": f"open({str(sandbox.outside / 'file')!r}, 'w').close()",
        "connections": "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError: pass",
        "processes": "import subprocess\nsubprocess.run(['true'])",
        "tracebacks": "import sys\nprint('Traceback (most recent call last)', file=sys.stderr)",
    }
    for seen, text in code.items():

        def prepare(folder: Path, text: str = text) -> list[str]:
            (folder / "wrong.py").write_text(text)
            return [f"--config={folder}/wrong.py", f"--workdir={folder}/new"]

        yield Case(f"planted: {seen}", "train", prepare), seen


def cases(originals: Originals, seed: int, each: int | None = None) -> Iterator[Case]:
    """All of them, or of each kind so many that the seed draws; of the flags some of every command."""
    drawn = random.Random(seed)
    if each is None:
        yield from flags(originals)
    else:
        of = {command: [] for command in COMMANDS}
        for case in flags(originals):
            of[case.command].append(case)
        for made in of.values():
            yield from drawn.sample(made, min(len(made), -(-each // len(of))))
    for kind in (keys, values, files, too_large):
        made = list(kind(originals))
        yield from made if each is None or each >= len(made) else drawn.sample(made, each)
