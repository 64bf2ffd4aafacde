"""`launch.replay`: branches that are what they say, and mistakes told in one line before anything is trained."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from launch import cli, maps, replay
from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.run_directory import RunDirectory
from transformer.training import branch, build, driver, partitioning
from transformer.training.config import resolve_config
from transformer.training.replay import Replay, open_replay
from transformer.training.update_guard import TrainingDiverged

CONFIG: dict[str, Any] = {**small_run.CONFIG, "name": "parent", "seed": 3}
TRUST = f"--trust={CONFIG['task']['dataset']}"


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Sharding has its tests; eight fake devices would make these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps with checkpoints of 4 and 8."""
    directory = tmp_path_factory.mktemp("runs") / "parent"
    driver.train(resolve_config(CONFIG), directory)
    return directory


def call(*words: str) -> int:
    return cli.run(replay.COMMAND, replay.main, [*words, TRUST])


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a call with a mistake prints."""
    capsys.readouterr()
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def arrays(folder: Path, step: int, opened: Replay) -> dict[str, np.ndarray]:
    with Checkpoints.open_read_only(folder / "checkpoints") as checkpoints:
        return numbers(checkpoints.read(step).restore(opened.components.abstract_state))


def numbers(state: Any) -> dict[str, np.ndarray]:
    plain = state._replace(key=jax.random.key_data(state.key))
    return {name: np.asarray(leaf) for name, leaf in leaves_by_path(plain).items()}


def test_a_branch_without_changes_is_the_run_itself(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps its first checkpoint, from which it can be replayed, and its page is compared with the run."""
    folder = tmp_path / "same"
    words = ("--config.checkpoint_every=2", "--config.keep_checkpoints=1")
    assert call(f"--workdir={run}", "--step=2", f"--branch={folder}", *words) == 0
    assert "step 8, validation: loss" in capsys.readouterr().out
    assert RunDirectory(folder).saved_steps() == [2, 8]
    with open_replay(run, [CONFIG["task"]["dataset"]]) as opened:
        ours, theirs = arrays(folder, 8, opened), arrays(run, 8, opened)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].tobytes(), name
    later = [record for record in without_clock(run) if record["step"] > 2]
    assert without_clock(folder) == later
    stored = [MapStore.open_existing(path / "maps") for path in (folder, run)]
    assert stored[0].steps == (4, 6, 8)
    (site,) = stored[0].sites
    assert np.array_equal(*(store.read(site.name, 6) for store in stored))

    origin = RunDirectory(folder).branch_origin()
    assert origin is not None
    assert (Path(origin.run), origin.step, origin.left_out_batches) == (run.resolve(), 2, ())
    assert origin.overrides == {"checkpoint_every": 2, "keep_checkpoints": 1}
    with open_replay(folder, [CONFIG["task"]["dataset"]]) as opened:
        assert opened.start_before(5).step == 2
        with pytest.raises(UserError, match="has no checkpoint at or before this step; its first is of step 2"):
            opened.start_before(1)
    assert cli.run(maps.COMMAND, maps.main, [f"--workdir={folder}"]) == 0
    assert f"compared with {run.resolve()}, which it was branched off" in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert "branched_from" in page
    assert "parent at step 2: config.checkpoint_every=2, config.keep_checkpoints=1" in page
    assert '"otherRun": null' not in page
    # It is a run like any other: training it again finds nothing to do.
    driver.train(resolve_config(RunDirectory(folder).config()), folder)
    assert "complete at step 8: nothing to train" in capsys.readouterr().out


def test_batches_are_left_out_and_all_others_keep_their_order(run: Path, tmp_path: Path) -> None:
    """The branch is the run's own step over the batches before 5, then over 7, 8 and 9."""
    folder = tmp_path / "without"
    assert call(f"--workdir={run}", f"--branch={folder}", "--without=5:7", "--config.checkpoint_every=2") == 0
    with open_replay(run, [CONFIG["task"]["dataset"]]) as opened:
        source = opened.components.task.training_batches(3)
        step = build.make_jitted_train_step(opened.experiment, opened.components)
        state = opened.components.init_state(jax.random.key(3))
        for number in (0, 1, 2, 3, 4, 7, 8, 9):
            batch = partitioning.shard_batch(source[number], opened.components.placement)
            state, _ = step(state, batch, (int(state.step) + 1) % 2 == 0)
        ours, expected = arrays(folder, 8, opened), numbers(state)
        theirs = arrays(run, 8, opened)
    assert any(array.tobytes() != theirs[name].tobytes() for name, array in ours.items())
    for name, array in ours.items():
        assert array.tobytes() == expected[name].tobytes(), name
    origin = RunDirectory(folder).branch_origin()
    assert origin is not None
    assert (origin.step, origin.left_out_batches) == (5, (5, 7))
    assert str(origin).endswith("at step 5: config.checkpoint_every=2, without batches 5 to 6")
    # A branch of it leaves them out as well.
    again = tmp_path / "again"
    assert call(f"--workdir={folder}", f"--branch={again}", "--step=6", "--without=8:9") == 0
    record = json.loads((again / "rollback.json").read_text())
    assert record["skipped_batches"] == [[5, 2], [8, 1]]


def test_a_value_of_the_optimizer_and_the_seed_are_those_of_the_branch(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "slower"
    words = ("--config.optimizer.learning_rate=0.001", "--config.seed=4")
    assert call(f"--workdir={run}", "--step=4", f"--branch={folder}", *words) == 0
    rates = [
        {record["step"]: record["learning_rate"] for record in without_clock(path, "train")} for path in (run, folder)
    ]
    assert rates[1].keys() == {6, 8}
    for number, rate in rates[1].items():
        assert rate == pytest.approx(0.1 * rates[0][number], rel=1e-6)
    config = json.loads((folder / "config.json").read_text())
    assert (config["seed"], config["optimizer"]["learning_rate"]) == (4, 0.001)
    with open_replay(folder, [CONFIG["task"]["dataset"]]) as opened:
        state = opened.start_before(4).state
        assert np.array_equal(jax.random.key_data(state.key), jax.random.key_data(jax.random.key(4)))
        batch = opened.batch_of_step(5)["tokens"]
        assert np.array_equal(batch, opened.components.task.training_batches(4)[4]["tokens"])


def test_the_command_of_a_run_that_diverges_replays_a_step_that_was_not_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizer = {**CONFIG["optimizer"], "learning_rate": 1e38}
    config = {**CONFIG, "optimizer": optimizer, "update_guard": {"max_consecutive_skips": 1}}
    with pytest.raises(TrainingDiverged) as diverged:
        driver.train(resolve_config(config), tmp_path / "run")
    words = shlex.split(str(diverged.value).rpartition("is named by: ")[2])
    assert words[1:3] == ["-m", "launch.replay"]
    assert f"--step={diverged.value.first}" in words
    assert cli.run(replay.COMMAND, replay.main, [*words[3:], f"--output={tmp_path / 'step'}"]) == 0
    assert f"step {diverged.value.first} of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "replay needs --step, --bisect or --branch; for example: "),
        (("--step=9",), "--step=9 is not a step of RUN, which has made steps 0 to 8"),
        (("--step=3", "--config.seed=2"), "--config.seed=2 changes the run, which is replayed as it was: add --branch"),
        (("--step=3", "--config=experiments/demo.py"), "replay takes no config, the run directory holds the run's own"),
        (("--step=3", "--example=8"), "--example=8 is not in the batch of step 3, whose examples are 0 to 7"),
        (("--step=3", "--output=RUN/out"), "lies in the run directory, where a replay writes nothing"),
        (("--bisect=copying",), "--bisect=copying is no role of a head: choose one of induction, previous_token"),
        (("--bisect=induction", "--head=9.9"), "--head=9.9 is no head of this model"),
        (("--bisect=induction", "--site=nowhere"), "--site=nowhere is no attention module of this model"),
        (("--example=3",), "--example=3 needs --step"),
        (("--without=3:5", "--step=3"), "--without=3:5 needs --branch"),
        (("--branch=NEW",), "--branch needs the step from which it continues: add --step=S"),
        (("--branch=NEW", "--step=9"), "--step=9 is not a step of RUN"),
        (("--branch=NEW", "--step=4", "--without=3:6"), "the run had trained on batch 3 before step 4"),
        (("--branch=NEW", "--without=6:6"), "--without=6:6 leaves no batch out"),
        (("--branch=NEW", "--without=6"), "--without=6 must be FROM:TO"),
        (("--branch=RUN", "--step=4"), "--branch=RUN holds a run already"),
        (("--branch=NEW", "--step=4", "--no_verify"), "--no_verify has no effect on --branch: omit one of them"),
        (("--branch=NEW", "--step=4", "--example=1"), "--example has no effect on --branch: omit one of them"),
        (("--branch=NEW", "--step=4", "--config.steps=3"), "--config.steps=3 is less than --step=4"),
        (
            ("--branch=NEW", "--step=4", "--config.model.width=32"),
            "--config.model.width=32 changes the training state: ",
        ),
        (("--branch=NEW", "--step=4", "--config.model.layers=2"), "--config.model.layers=2 changes the training state"),
        (("--branch=NEW", "--step=4", "--config.optimizer.algorithm=sgd"), "changes the training state: optimizers"),
        (("--branch=NEW", "--step=4", "--config.model.haeds=2"), "config.model.haeds"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...],
    says: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    new = tmp_path / "new"

    def fill(text: str) -> str:
        return text.replace("RUN", str(run)).replace("NEW", str(new))

    assert fill(says) in refusal(capsys, f"--workdir={run}", *map(fill, words))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_and_what_is_being_trained_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is missing; make a run with" in refusal(capsys, f"--workdir={tmp_path / 'gone'}", "--step=3")
    with RunDirectory.lock(run):
        assert "is being trained by another process" in refusal(capsys, f"--workdir={run}", "--step=3")


def test_a_branch_that_cannot_be_written_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with a config and without its checkpoint would be trained from step 0."""

    class Full(Checkpoints):
        def save(self, *arguments: Any) -> None:
            assert not (tmp_path / "new" / "config.json").exists()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(branch, "Checkpoints", Full)
    assert call(f"--workdir={run}", "--step=4", f"--branch={tmp_path / 'new'}") == 1
    assert not (tmp_path / "new").exists()


def test_the_files_of_a_replay_are_named_after_run_and_step(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(f"--workdir={run}", "--step=3") == 0
    said = capsys.readouterr().out
    assert f"step 3 of {run}, replayed from step 0\n" in said
    assert re.search(r"^bit-identical to what ran: .* the checkpoint of step 4 are equal$", said, re.MULTILINE)
    assert (tmp_path / "parent-step-3" / "replay.json").is_file()
    assert "is not an empty folder: name a new one" in refusal(capsys, f"--workdir={run}", "--step=3")


def test_the_last_common_step_is_compared() -> None:
    ours = [{"step": 8, "split": "train", "loss": 1.5, "accuracy": 0.5}, {"step": 9, "split": "train", "loss": 1.0}]
    theirs = [{"step": 8, "split": "train", "loss": 2.0, "accuracy": None}]
    assert replay.describe_last_differences(ours, theirs) == ["step 8, train: loss 1.5000 (-0.5000)"]
    assert replay.describe_last_differences(ours, []) == []
