"""Runs, sweeps and published models that a stranger has made: what is read of them names no code and no other place."""

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.hostile_words import declared
from tests.faults.originals import Originals
from tests.faults.sandbox import Case, Sandbox
from transformer.config import UserError
from transformer.runs.trust import external_paths

DEEP = "[" * 100_000
READERS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("evaluate", ()),
    ("generate", ("--target_language=de", "--text=one")),
    ("train", ()),
    ("maps", ()),
    ("maps", ("--text=one", "--target_language=de")),
    ("ablate_heads", ("--num_batches=1",)),
    ("model_sizes", ()),
    ("scaling_laws", ()),
    (
        "alignment_error_rate",
        ("--source_text={d}/s", "--target_text={d}/s", "--alignments={d}/l", "--target_language=de"),
    ),
    ("convert", ("--save_pretrained={d}/out",)),
)
Spoil = Callable[[Path, "Places"], None]


class Places:
    """Where a case may do harm: `canary`, the file that code writes, and `outside`, a folder that is not the case's."""

    def __init__(self, sandbox: Sandbox):
        self.canary, self.outside = sandbox.canary, sandbox.outside

    def code(self, folder: Path, module: str) -> None:
        """Lay a module beside the run which, imported, writes the canary."""
        (folder / f"{module}.py").write_text(
            f"open({str(self.canary)!r}, 'w').close()\nclass Feature: pass\nclass Builder: pass\nTASK = FAMILY = None\n"
        )


def _json(file: str, change: Callable[[Any], Any]) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        for path in sorted(run.glob(file)):
            value = json.loads(path.read_text())
            path.write_text(json.dumps(change(value)))

    return spoil


def _with(key: str, value: Any) -> Callable[[Any], Any]:
    """A change of a nested object: the value at a dotted key."""

    def change(whole: Any) -> Any:
        *groups, last = key.split(".")
        held = whole
        for group in groups:
            held = held[group]
        held[last] = value
        return whole

    return change


def _text(file: str, content: bytes) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        for path in sorted(run.glob(file)):
            path.write_bytes(content)

    return spoil


def _link(name: str) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        target = places.outside / "mine"
        target.write_text("mine")
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)

    return spoil


def _feature(key: str) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        places.code(run.parent, "hostile_feature")
        _json("data/**/features.json", _with(key, "hostile_feature.Feature"))(run, places)
        _json("data/**/dataset_info.json", _with("moduleName", "hostile_feature"))(run, places)

    return spoil


def _folder_set(run: Path, places: Places) -> None:
    """A data set that lies beside the run and names code."""
    _feature("pythonClassName")(run, places)
    (info,) = run.glob("data/**/dataset_info.json")
    shutil.copytree(info.parent, run.parent / "x")
    _json("config.json", _with("task.dataset", "./x"))(run, places)


def _family(section: str, key: str) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        places.code(run.parent, "hostile_family")
        (run.parent / "hostile_package").mkdir()
        places.code(run.parent / "hostile_package", "inner")
        _json("config.json", _with(f"{section}.{key}", "hostile_package.inner"))(run, places)

    return spoil


def _data(name: str) -> Spoil:
    def spoil(run: Path, places: Places) -> None:
        shutil.rmtree(run / "data")
        _json("config.json", _with("task.dataset", name))(run, places)

    return spoil


_WRONG = {"a list": b"[1, 2]", "deep": DEEP.encode(), "no UTF-8": b'{"\xff": 1}', "empty": b"", "a number": b"1" * 9999}
_WRONG |= {"null": b"null", "cut off": b'{"name": "x', "NaN": b'{"a": NaN}'}
_READ = ("config.json", "maps/zarr.json", "tokenizer.json", "tokenizer_roles.json", "environment.json", "metrics.jsonl")
_READ += ("samples.jsonl", "heads.jsonl", "maps/**/zarr.json", "data/**/dataset_info.json", "data/**/features.json")
_READ += ("checkpoints/*/**/_METADATA", "checkpoints/*/*.json", "checkpoints/*/_CHECKPOINT_METADATA")
# A run that these spoil may be read all the same: by commands that do not read them, and without what is damaged.
HARMLESS: dict[str, Spoil] = {
    **{f"a feature's class in {key}": _feature(key) for key in ("pythonClassName",)},
    "a feature's class": _feature("featuresDict.features.note.pythonClassName"),
    "a text feature's class": _feature("featuresDict.features.en.pythonClassName"),
    "a data set beside it": _folder_set,
    "a data set beside it, trusted": _folder_set,
    **{f"{file} {what}": _text(file, content) for file in _READ for what, content in _WRONG.items()},
    **{
        f"its data set {name[:30]!r}{trusted}": _data(name)
        for trusted in ("", ", trusted")
        for name in (
            "huggingface:stas/openwebtext",
            "someone:set",
            "https://example.org/x",
            "gs://bucket/x",
            "wmt14_translate/de-en",
            "lm1b",
            "/dev/zero",
            "/etc/passwd",
            "a\0b",
            "../" * 50,
            "x" * 5000,
            "phrases/train=99999999999999999999",
        )
    },
    "a shard outside": _json(
        "data/**/dataset_info.json",
        lambda info: {**info, "splits": [{**split, "filepathTemplate": "/etc/passwd"} for split in info["splits"]]},
    ),
    "shards that are short": _text("data/**/*.array_record*", b"x" * 100),
    "escapes in its name": _json("config.json", _with("name", "\x1b[2J\x07\n<script>alert(1)</script>")),
    "a page in its samples": _text("samples.jsonl", b'{"step": 1, "split": "test", "source": "</script><script>x"}\n'),
}
REFUSED: dict[str, Spoil] = {
    "a task of its own": _family("task", "name"),
    "a family of its own": _family("model", "family"),
    "a family that is a module of Python": _json("config.json", _with("model.family", "os.path")),
    "a log that is a link": _link("log.txt"),
    "a lock that is a link": _link("lock"),
    "maps that are a link": _link("maps"),
    "checkpoints that are a link": _link("checkpoints"),
    "data that are a link": _link("data"),
    "a config that is a link": _link("config.json"),
    "a page that is a link": _link("report.html"),
}
# Of the config alone, which all but the pages of maps resolve.
CONFIG: dict[str, Spoil] = {
    f"config.{key}={str(value)[:30]}": _json("config.json", _with(key, value))
    for key, value in {
        "steps": 10**20,
        "seed": -1,
        "task": [],
        "model": "x",
        "optimizer": None,
        "model.width": 1_000_000,
        "model.norm_epsilon": 1e300,
        "task.bucket_lengths": [10**20],
        "task.vocab_size": -1,
        "precision": {"parameters": "object"},
        "maps": {"max_megabytes": -1.0},
        "sharding": {"data": 10**9},
        "optimizer.learning_rate": 1e999,
        "unheard_of": 1,
        "model.family": ["x"],
        "task.dataset": {"a": 1},
        "task.name": 3,
    }.items()
}


def runs(originals: Originals, sandbox: Sandbox) -> Iterator[Case]:
    """Every reader of every spoilt run."""
    places = Places(sandbox)
    # Trains to its end where nothing stops it, so that it is also seen to write nothing elsewhere.
    for spoilt, codes in ((HARMLESS, (0, 2)), (REFUSED, (2,)), (CONFIG, (0, 2))):
        for name, spoil in spoilt.items():
            for command, more in READERS:
                trusted = name.endswith(", trusted")

                def prepare(
                    folder: Path,
                    spoil: Spoil = spoil,
                    command: str = command,
                    more: tuple[str, ...] = more,
                    trusted: bool = trusted,
                ) -> list[str]:
                    run = originals.copy("translation", folder)
                    (folder / "s").write_text("one\ntwo\n")
                    (folder / "l").write_text("0-0\n0-0\n")
                    spoil(run, places)
                    trusted_names = (
                        trust(command, json.loads((run / "config.json").read_text()), folder) if trusted else []
                    )
                    return [f"--workdir={run}", *(word.format(d=folder) for word in more), *trusted_names]

                # A page of maps and the sizes need neither the code nor the data set that a config names, and a text
                # is read without the data set.
                stored = command == "maps" and not more
                without_code = (stored and "own" in name) or ((stored or command == "model_sizes") and "module" in name)
                of = f"{command}{' --text' if command == 'maps' and more else ''}"
                yield Case(f"{of}: a run with {name}", command, prepare, (0, 2) if without_code else codes)


def trust(command: str, config: Any, folder: Path) -> list[str]:
    """The word of a user of `folder` who vouches for the files that a config names: they are read.

    They vouch for no code, and for nothing on other machines.
    """
    if "trust" not in {flag.name for flag in declared(command).flags} or not isinstance(config, dict):
        return []
    try:
        with contextlib.chdir(folder):
            named = [name.value for name in external_paths(config, training=True) if "://" not in name.value]
    except UserError:  # the config has a section that is none
        return []
    return [f"--trust={','.join(named)}"] if named else []


def _line(change: Mapping[str, Any]) -> Spoil:
    def spoil(sweep: Path, places: Places) -> None:
        places.code(sweep.parent, "hostile_family")
        lines = [json.loads(line) for line in (sweep / "trials.jsonl").read_text().splitlines()]
        shutil.rmtree(sweep / "trials", ignore_errors=True)
        (sweep / "trials.jsonl").write_text("".join(json.dumps({**line, **change}) + "\n" for line in lines))

    return spoil


def _honest_hash(run: Path, places: Places) -> None:
    """A trial of a stranger's code under the name that its config has."""
    from transformer.studies.sweeps.trials import trial_from_config

    places.code(run.parent, "hostile_family")
    (run.parent / "hostile_package").mkdir()
    places.code(run.parent / "hostile_package", "inner")
    lines = []
    for line in (run / "trials.jsonl").read_text().splitlines():
        trial = json.loads(line)
        config = {**trial["config"], "model": {**trial["config"]["model"], "family": "hostile_package.inner"}}
        lines.append(json.dumps(trial_from_config(trial["overrides"], config)._asdict()))
    shutil.rmtree(run / "trials", ignore_errors=True)
    (run / "trials.jsonl").write_text("\n".join([*lines, ""]))


def _programs(run: Path, places: Places) -> None:
    """Compiled programs that lie in a sweep: code that nobody may run."""
    (run / "compiled").mkdir()
    for number in range(3):
        (run / "compiled" / f"jit_step-{number:064x}-cache").write_bytes(b"\x00" * 1000)


SWEEPS: dict[str, Spoil] = {
    "a trial outside": _line({"name": "../../../outside/trial"}),
    "a trial at an absolute place": _line({"name": "/var/hostile"}),
    "a trial that is no name": _line({"name": {"a": 1}}),
    "a trial without a config": _line({"config": None}),
    "a trial of a stranger's code": _honest_hash,
    "lines that are lists": _text("trials.jsonl", b"[]\n"),
    "lines that are deep": _text("trials.jsonl", DEEP.encode() + b"\n"),
    "lines that are no UTF-8": _text("trials.jsonl", b"\xff\xfe\n"),
    "lines that are empty": _text("trials.jsonl", b"\n\n\n"),
    **{f"sweep.json {what}": _text("sweep.json", content) for what, content in _WRONG.items()},
    "trials that are a link": _link("trials"),
    "a planning folder that is a link": _link("planning"),
    "outcomes that are lists": _text("trials/*/outcome.json", b"[]"),
    "outcomes without a state": _text("trials/*/outcome.json", b"{}"),
    "attempts that are none": _text("trials/*/attempts.jsonl", b"{}\n[]\nnull\n"),
}


def sweeps(originals: Originals, sandbox: Sandbox) -> Iterator[Case]:
    """Sweeps that a stranger has made."""
    places = Places(sandbox)
    for name, spoil in SWEEPS.items():
        for command in ("sweep", "ablate"):

            def prepare(folder: Path, spoil: Spoil = spoil) -> list[str]:
                sweep = originals.copy("sweep", folder)
                spoil(sweep, places)
                return [f"--config={originals.config}", f"--workdir={sweep}", "--worker"]

            codes = (0, 2) if name.startswith(("outcomes", "attempts", "sweep.json")) else (2,)
            yield Case(f"{command}: a sweep with {name}", command, prepare, codes)


def cases(originals: Originals, sandbox: Sandbox, seed: int, each: int | None = None) -> Iterator[Case]:
    """All of them, or of each kind so many that the seed draws."""
    for made in (list(runs(originals, sandbox)), list(sweeps(originals, sandbox))):
        yield from made if each is None or each >= len(made) else random.Random(seed).sample(made, each)
