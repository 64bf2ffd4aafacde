"""Flipped bits, and files that are deleted, halved and emptied: each is noticed, or changes nothing that is read.

A case damages a copy of a run of two checkpoints in one place, and goes on with it up to where it would train. Noticed
is what is refused in one line or told in one; what is neither must have changed nothing.
"""

import collections
import contextlib
import io
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.outcome import Row
from tests.faults.subject import config, forked, trained, use_cache
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.runs.run_directory import RunDirectory
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import trial_from_config
from transformer.training import config as experiment
from transformer.training.restore import resume_run
from transformer.training.run_setup import set_up_runs

KINDS = ("deleted", "halved", "emptied")
STEPS = 10
# Files by what they are; a flip chooses one of these first, so that small files get their share.
GROUPS = {
    "checkpoint": "checkpoints/**/*",
    "config": "config.json",
    "tokenizer": "tokenizer*.json",
    "data": "text.txt",
    "ledger": "sweep/**/*.json*",
    "maps": "maps/**/*",
    "records": "*.jsonl",
}


class Case(NamedTuple):
    """A place that is damaged: a file, how, and where a bit is flipped."""

    group: str
    file: str
    kind: str
    place: float = 0.0
    bit: int = 0

    def damage(self, folder: Path) -> bool:
        """Damage it; False where there is nothing to damage."""
        path = folder / self.file
        content = path.read_bytes()
        match self.kind:
            case "deleted":
                path.unlink()
            case "halved":
                path.write_bytes(content[: len(content) // 2])
            case "emptied":
                path.write_bytes(b"")
            case _:
                if not content:
                    return False
                changed = bytearray(content)
                changed[int(self.place * len(content))] ^= 1 << self.bit
                path.write_bytes(changed)
        return True


class Found(NamedTuple):
    """What became of a damaged run: how it was noticed ("" if not), the step that served, and all that was read."""

    noticed: str
    step: int | None
    read: Any


def damages(folder: Path, flips: int, every: int = 1, seed: int = 0) -> list[Row]:
    """Deliver flips and damages of whole files, of which `every` takes only each so manieth."""
    sound = folder / "sound"
    values = config(folder, steps=STEPS, eval_every=5, keep_checkpoints=2)
    ended = forked(folder, trained, values, sound, folder / "cache")
    assert ended.code == 0, ended.said
    shutil.copy(values["task"]["dataset"], sound)  # what a case damages of it is put in its place
    forked(folder, _plan, sound / "sweep")
    ended = forked(folder, _deliver, sound, values, _cases(sound, flips, every, seed), limit=7200)
    assert ended.code == 0, ended.said[-2000:]
    rows = []
    for kind in ("flipped", *KINDS):
        counts = collections.Counter(outcome for found_kind, outcome, _ in ended.value if found_kind == kind)
        silent = [what for found_kind, outcome, what in ended.value if found_kind == kind and outcome == "silent"]
        stuck = [what for found_kind, outcome, what in ended.value if found_kind == kind and outcome == "stuck"]
        crashed = [what for found_kind, outcome, what in ended.value if found_kind == kind and outcome == "crashed"]
        for what in (*silent, *stuck, *crashed):
            print(f"{kind}: {what}", flush=True)
        measured = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        fault = f"{sum(counts.values())} {'bit flips' if kind == 'flipped' else f'files {kind}'}: " + ", ".join(GROUPS)
        rows.append(Row(fault, f"{measured}; {len(silent)} silent", not silent and not stuck and not crashed))
    return rows


def _cases(sound: Path, flips: int, every: int, seed: int) -> list[Case]:
    draw, files = random.Random(seed), {}
    for group, pattern in GROUPS.items():
        found = sorted(path for path in sound.glob(pattern) if path.is_file() and path.name != "lock")
        files[group] = [path.relative_to(sound).as_posix() for path in found]
        assert files[group], group
    groups = list(GROUPS)
    cases = []
    for number in range(flips):
        group = groups[number % len(groups)]
        cases.append(Case(group, draw.choice(files[group]), "flipped", draw.random(), draw.randrange(8)))
    whole = [Case(group, file, kind) for group in groups for file in files[group] for kind in KINDS]
    cases += whole[::every]
    draw.shuffle(cases)  # so that those that are done, where it is stopped, stand for all
    return cases


def _deliver(sound: Path, values: dict[str, Any], cases: Sequence[Case]) -> list[tuple[str, str, str]]:
    """Of each case its kind, its outcome, and what was said."""
    use_cache(sound.parent / "cache")
    run, outcomes = sound.parent / "damaged", []
    expected = _looked_at(sound, values)
    assert not expected.noticed, expected.noticed
    for case in cases:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(sound, run)
        if not case.damage(run):
            continue
        found = _looked_at(run, values)
        what = f"{case.file} {case.place:.3f} {case.bit}: {found.noticed[:200]}"
        outcomes.append((case.kind, _judged(case, found, expected), what))
        print(f"{len(outcomes)} of {len(cases)}: {case.group} {case.kind}: {outcomes[-1][1]}: {what}", flush=True)
    return outcomes


def _judged(case: Case, found: Found, expected: Found) -> str:
    if case.group == "checkpoint" and found.step is None:
        return "stuck"  # the older step is sound
    if found.step is not None and expected.step is not None and found.step < expected.step and found.noticed:
        return "told, an older step used"
    if found.noticed:
        word = found.noticed.partition(":")[0]
        return {"refused": "refused in one line", "crashed": "crashed"}.get(word, "told in one line")
    return "without effect" if (found.step, found.read) == (expected.step, expected.read) else "silent"


def _looked_at(run: Path, values: dict[str, Any]) -> Found:
    """The run as far as a start of it goes before it trains, and all that is read of it."""
    said = io.StringIO()
    step, read = None, None
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            step, leaves = _resumed(run, values)
            read = {"state": leaves, "maps": _maps(run), "ledger": _trial_store(run / "sweep")}
        except UserError as error:
            return Found(f"refused: {error}", step, None)
        except Exception as error:  # a crash in words of a library is no silence either
            return Found(f"crashed: {type(error).__name__}: {error}", step, None)
    return Found(said.getvalue(), step, read)


def _resumed(run: Path, values: dict[str, Any]) -> tuple[int, Any]:
    recorded = RunDirectory.open(run).config()
    with _data_of(run, Path(values["task"]["dataset"])):
        with set_up_runs([experiment.resolve_config(recorded)], [run]) as (components, (opened_run,)):
            resumed = resume_run(opened_run, components)
            assert resumed is not None
        manifest = json.loads((run / "checkpoints" / str(resumed.step) / "manifest" / "metadata").read_bytes())
    return resumed.step, manifest["leaves"]


@contextlib.contextmanager
def _data_of(run: Path, file: Path) -> Iterator[None]:
    """The data have the content of the copy's while the context lasts."""
    content = file.read_bytes()
    try:
        copy = run / file.name
        if copy.exists():
            file.write_bytes(copy.read_bytes())
        else:
            file.unlink()
        yield
    finally:
        file.write_bytes(content)


def _maps(run: Path) -> Any:
    store = MapStore.open_existing(run / "maps")
    read = {}
    for site in store.sites:
        read[site.name] = store.statistics(site.name).values.tobytes().hex()
        for step in store.steps:
            read[f"{site.name} {step}"] = store.read(site.name, step).tobytes().hex()
    return read, store.steps, repr(store.labels)


def _plan(folder: Path) -> None:
    trial_store = TrialStore.open(folder, {"metric": "validation/loss", "learning_rates": [0.1, 0.25, 0.5]})
    trials = [trial_from_config({"rate": number / 7}, {"seed": number}) for number in range(6)]
    trial_store.append_trials(trials)
    # Of what has begun nothing may be lost in silence; the others would be planned again.
    for trial in (trials[0], trials[-1]):
        with trial_store.hold_trial(trial) as lease:
            lease.record_start(0)


def _trial_store(folder: Path) -> Any:
    trial_store = TrialStore.open_existing(folder)
    return trial_store.facts(), [trial._asdict() for trial in trial_store.trials()]
