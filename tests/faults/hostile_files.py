"""Every file of a run, a sweep and a published model: wrong in each of its fields, and something else in its place.

Digests that a file holds of itself are computed again, as whoever changes a file on purpose would do.
"""

import dataclasses
import functools
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.hostile_runs import Places, trust
from tests.faults.originals import Originals
from tests.faults.sandbox import Case, Sandbox
from tests.faults.wrong_values import Wrong, some, wrong
from transformer.config import RunConfig, hash_config
from transformer.data.token_shards import ShardIndex
from transformer.data.tokenizers.tokenizer import RolesFile
from transformer.maps.store import StoreAttributes, WrittenSteps
from transformer.runs.checkpoint import LastSavedStep
from transformer.runs.checkpoint_files import Manifest
from transformer.runs.run_directory import RunStart
from transformer.storage.json_checksum import add_checksum, strip_checksum
from transformer.studies.ablations.calibration import Calibration
from transformer.studies.ablations.registration import Registration, hash_registration
from transformer.studies.ablations.study_metadata import StudyMetadata
from transformer.studies.sweeps.trial_store import AttemptRecord, OutcomeRecord, TrialRecord
from transformer.training.checkpoint_metadata import CheckpointMetadata
from transformer.training.rollback import RollbackRecord

_D = "--workdir={run}"
RUN_READERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "evaluate": ("evaluate", (_D,)),
    "generate": ("generate", (_D, "--target_language=de", "--text=one")),
    "train": ("train", (_D,)),
    "maps": ("maps", (_D,)),
    "maps of a text": ("maps", (_D, "--text=one", "--target_language=de")),
    "sizes": ("model_sizes", (_D,)),
    "scaling": ("scaling_laws", ("--runs={run}",)),
    "convert": ("convert", (_D, "--save_pretrained={d}/out")),
    "from": ("train", ("--config={o}/config.py", "--workdir={d}/new", "--config.initialize_from.run={run}")),
}
SWEEP_READERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "worker": ("sweep", ("--config={o}/config.py", _D, "--worker")),
    "sweep": ("sweep", ("--config={o}/config.py", _D, "--num_workers=1")),
    "ablation": ("ablate", ("--config={o}/config.py", _D, "--worker")),
}
MODEL_READERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "convert": ("convert", ("--from_pretrained={run}", "--workdir={d}/made")),
    "maps": ("maps", ("--from_pretrained={run}", "--text=one", "--output={d}/page.html")),
}
_SHARDS = ("--config={o}/language_config.py", "--config.task.shards_dir={run}")
SHARD_READERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tokenize": ("tokenize", (*_SHARDS, "--verify")),
    "train": ("train", (*_SHARDS, "--workdir={d}/new")),
}
READERS = {
    "translation": RUN_READERS,
    "sweep": SWEEP_READERS,
    "published": MODEL_READERS,
    "token shards": SHARD_READERS,
}


def _same(document: Any) -> Any:
    return document


def _sealed(document: Any) -> Any:
    return add_checksum(strip_checksum(document)) if isinstance(document, dict) else document


def _sealed_attributes(document: Any) -> Any:
    return {**document, "attributes": _sealed(document.get("attributes"))} if isinstance(document, dict) else document


def _manifest(document: Any) -> Any:
    if not isinstance(document, dict) or not {"leaves", "metadata"} <= document.keys():
        return document
    both = json.dumps([document["leaves"], document["metadata"]], sort_keys=True).encode()
    return {**document, "sha256": hashlib.sha256(both).hexdigest()}


def _registration(document: Any) -> Any:
    return {**document, "sha256": hash_registration(document)} if isinstance(document, dict) else document


def _trial(document: Any) -> Any:
    if (
        isinstance(document, dict)
        and isinstance(document.get("config"), dict)
        and isinstance(document.get("name"), str)
    ):
        document = {**document, "name": hash_config(document["config"])[:16]}
    return _sealed(document)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file: where it lies in an original, its schema, which object that is, its digest, who reads it."""

    original: str
    pattern: str
    schema: type | None
    within: tuple[str | int, ...]
    seal: Callable[[Any], Any]
    readers: tuple[str, ...]
    lines: bool = False
    """Whether it has a document a line, of which the first is changed."""

    def file(self, folder: Path) -> Path:
        """One file of the kind."""
        return sorted(folder.glob(self.pattern))[0]

    def document(self, folder: Path) -> Any:
        """What the file holds."""
        text = self.file(folder).read_text()
        return json.loads(text.partition("\n")[0] if self.lines else text)

    def spoil(self, folder: Path, case: Wrong) -> None:
        """Put the wrong document in its place."""
        text = case.text() if case.deep else Wrong(case.name, functools.partial(self.seal, case.document)).text()
        file = self.file(folder)
        rest = file.read_text().partition("\n")[2] if self.lines else ""
        file.write_text(f"{text}\n{rest}" if self.lines else text)


KINDS = (
    Kind("translation", "config.json", RunConfig, (), _same, ("sizes", "maps", "evaluate", "train", "scaling", "from")),
    Kind("translation", "environment.json", RunStart, (0,), _same, ("maps", "train", "scaling")),
    Kind("translation", "rollback.json", RollbackRecord, (), _sealed, ("train",)),
    Kind("translation", "checkpoints.json", LastSavedStep, (), _same, ("train",)),
    Kind(
        "translation",
        "checkpoints/*/manifest/metadata",
        Manifest,
        (),
        _manifest,
        ("evaluate", "sizes", "train", "from"),
    ),
    Kind(
        "translation",
        "checkpoints/*/manifest/metadata",
        CheckpointMetadata,
        ("metadata",),
        _manifest,
        ("train", "evaluate"),
    ),
    Kind("translation", "maps/zarr.json", StoreAttributes, ("attributes",), _sealed_attributes, ("maps", "train")),
    Kind("translation", "maps/written-1.json", WrittenSteps, (), _sealed, ("maps", "train")),
    Kind("translation", "maps/steps/*/zarr.json", None, (), _same, ("maps", "train")),
    Kind("translation", "metrics.jsonl", None, (), _same, ("maps", "scaling", "train"), lines=True),
    Kind("translation", "samples.jsonl", None, (), _same, ("maps", "train"), lines=True),
    Kind("translation", "heads.jsonl", None, (), _same, ("maps", "train"), lines=True),
    Kind("translation", "tokenizer_roles.json", RolesFile, (), _same, ("generate", "maps of a text", "evaluate")),
    Kind("translation", "tokenizer.json", None, (), _same, ("generate", "maps of a text")),
    Kind("translation", "data/**/dataset_info.json", None, (), _same, ("evaluate", "train")),
    Kind("translation", "data/**/features.json", None, (), _same, ("evaluate", "train")),
    Kind("translation", "checkpoints/*/_CHECKPOINT_METADATA", None, (), _same, ("evaluate", "sizes")),
    Kind("translation", "checkpoints/*/state/_METADATA", None, (), _same, ("evaluate", "generate", "from")),
    Kind("translation", "checkpoints/*/state/_sharding", None, (), _same, ("evaluate", "train")),
    Kind("translation", "checkpoints/*/state/array_metadatas/process_0", None, (), _same, ("evaluate", "train")),
    Kind("sweep", "sweep.json", None, (), _sealed, ("worker", "ablation")),
    Kind("sweep", "trials.jsonl", TrialRecord, (), _trial, ("worker", "sweep", "ablation"), lines=True),
    Kind("sweep", "trials/*/outcome.json", OutcomeRecord, (), _sealed, ("worker", "sweep")),
    Kind("sweep", "trials/*/attempts.jsonl", AttemptRecord, (), _sealed, ("worker",), lines=True),
    Kind("ablation", "about.json", StudyMetadata, (), _same, ()),
    Kind("ablation", "calibration.json", Calibration, (), _same, ()),
    Kind("ablation", "registration.json", Registration, (), _registration, ()),
    Kind("published", "config.json", None, (), _same, ("convert", "maps")),
    Kind("published", "tokenizer.json", None, (), _same, ("convert", "maps")),
    Kind("published", "tokenizer_config.json", None, (), _same, ("convert", "maps")),
    Kind("token shards", "tokens-*/index.json", ShardIndex, (), _same, ("tokenize", "train")),
    Kind("token shards", "tokenizer-*/tokenizer_roles.json", RolesFile, (), _same, ("tokenize", "train")),
)


def completed(folder: Path) -> None:
    """Give a run the files that one of a single process without head statistics does not have."""
    root = folder / "maps" / "zarr.json"
    group = json.loads(root.read_text())
    attributes = group["attributes"]
    attributes["writers"] = 2
    root.write_text(json.dumps(_sealed_attributes(group)))
    (folder / "maps" / "written-1.json").write_text(json.dumps(add_checksum({"steps": attributes["steps"]})))
    rewind = {"step": None, "skip": 0, "skipped_batches": [[5, 1]], "going_back_to": None}
    (folder / "rollback.json").write_text(json.dumps(add_checksum(rewind)))
    (folder / "heads.jsonl").write_text('{"step": 1, "site": "encoder/self", "entropy": [[0.5, 0.25]]}\n')


def fields(originals: Originals, seed: int, count: int | None = None) -> Iterator[Case]:
    """Every field of every file, wrong; or so many cases, as evenly over the files as may be."""
    made: list[list[Case]] = []
    for kind in KINDS:
        original = originals.root / kind.original
        if not original.exists():
            continue
        copied = originals.root / f"{kind.original} completed"
        if kind.original == "translation" and not copied.exists():
            shutil.copytree(original, copied)
            if (copied / "maps").exists():
                completed(copied)
        source = copied if copied.exists() else original
        if not list(source.glob(kind.pattern)):
            continue
        cases = list(wrong(kind.document(source), kind.schema, kind.within))
        if count is not None:
            cases = some(cases, -(-count // len(KINDS)), seed)
        made.append([_case(originals, source, kind, case, number) for number, case in enumerate(cases)])
    drawn = [case for group in made for case in group]
    yield from drawn if count is None else random.Random(seed).sample(drawn, min(count, len(drawn)))


def _case(originals: Originals, source: Path, kind: Kind, wrong_one: Wrong, number: int) -> Case:
    readers = READERS[kind.original]
    name = kind.readers[number % len(kind.readers)]
    command, words = readers[name]

    def prepare(folder: Path) -> list[str]:
        run = Path(shutil.copytree(source, folder / kind.original, symlinks=True))
        kind.spoil(run, wrong_one)
        trusted = trust(command, wrong_one.document, folder) if number // len(kind.readers) % 2 else []
        return [*trusted, *(word.format(run=run, d=folder, o=originals.root) for word in words)]

    return Case(f"{name}: {kind.pattern} {wrong_one.name[:80]!r}", command, prepare, (0, 1, 2))


def _pipe(file: Path, places: Places) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path, places: Places) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path, places: Places) -> None:
    file.unlink()
    (places.outside / "mine").write_text("mine")
    file.symlink_to(places.outside / "mine")


def _device(file: Path, places: Places) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _huge(file: Path, places: Places) -> None:
    os.truncate(file, 2**40)


def _no_text(file: Path, places: Places) -> None:
    file.write_bytes(bytes(range(256)) * 16)


IN_PLACE: Mapping[str, Callable[[Path, Places], None]] = {
    "a pipe": _pipe,
    "a folder": _folder,
    "a link": _link,
    "a device": _device,
    "2^40 zeros": _huge,
    "bytes": _no_text,
}


def in_place(originals: Originals, sandbox: Sandbox, seed: int, count: int | None = None) -> Iterator[Case]:
    """Something else in the place of each file of each original."""
    places, made = Places(sandbox), []
    for original, readers in READERS.items():
        source = originals.root / original
        files = (
            [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
            if source.exists()
            else []
        )
        for number, file in enumerate(files):
            for name, act in IN_PLACE.items():
                reader = list(readers)[(number + len(name)) % len(readers)]
                made.append(_placed(originals, source, file, (name, act), (reader, *readers[reader]), places))
    yield from made if count is None else random.Random(seed).sample(made, min(count, len(made)))


def _placed(
    originals: Originals,
    source: Path,
    file: Path,
    act: tuple[str, Callable[[Path, Places], None]],
    reader: tuple[str, str, Sequence[str]],
    places: Places,
) -> Case:
    name, command, words = reader

    def prepare(folder: Path) -> list[str]:
        run = Path(shutil.copytree(source, folder / source.name, symlinks=True))
        act[1](run / file, places)
        return [word.format(run=run, d=folder, o=originals.root) for word in words]

    return Case(f"{name}: {act[0]} in the place of {source.name}/{file}"[:150], command, prepare, (0, 1, 2))


def cases(originals: Originals, sandbox: Sandbox, seed: int, count: int | None = None) -> Iterator[Case]:
    """All of them, or about so many: of four, three with a wrong field."""
    yield from fields(originals, seed, None if count is None else 3 * count // 4)
    yield from in_place(originals, sandbox, seed, None if count is None else count - 3 * count // 4)
