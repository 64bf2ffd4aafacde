"""Files of a run on a disk whose operations fail: whole before, or whole after."""

import concurrent.futures
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer.config import UserError
from transformer.maps.capture_plan import StoredResolutions
from transformer.maps.store import MapStore
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk import REMOVED_SUFFIX, DiskStorage
from transformer.storage.storage import DirectoryInUse, DirectoryLost, FolderEntry
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.tasks.axis_labels import AxisLabels


@contextlib.contextmanager
def operation(name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """One operation of the system by another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, replacement)
        yield


def full_after(count: int) -> Callable[[int, Any], int]:
    """A disk with so many bytes left."""
    left, write = count, os.write

    def write_what_fits(descriptor: int, content: Any) -> int:
        nonlocal left
        fits = min(left, len(content))
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= fits
        return write(descriptor, content[:fits])

    return write_what_fits


def test_two_threads_that_append_to_one_file_are_no_other_process(tmp_path: Path):
    """The maps of a run are written by a thread of its own, into the events that its metrics go to as well."""
    file = DiskStorage().append_to(tmp_path / "m")
    write = os.write

    def slow_write(descriptor: int, content: Any) -> int:
        written = write(descriptor, content)
        time.sleep(0.001)  # the other thread asks how long the file is
        return written

    with operation("write", slow_write), concurrent.futures.ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(file.append, b"%d\n" % number) for number in range(40)]:
            done.result()
    file.close()
    assert sorted(map(int, (tmp_path / "m").read_bytes().split())) == list(range(40))


def test_a_line_is_written_whole_although_the_system_takes_it_by_parts(tmp_path: Path):
    write = os.write
    file = DiskStorage().append_to(tmp_path / "m")
    with operation("write", lambda descriptor, content: write(descriptor, content[:3])):
        file.append(b"a whole line\n")
        DiskStorage().replace(tmp_path / "n", b"a whole file\n")
    assert (tmp_path / "m").read_bytes() == b"a whole line\n"
    assert (tmp_path / "n").read_bytes() == b"a whole file\n"


@pytest.mark.parametrize("left", range(6))
def test_a_full_disk_leaves_whole_lines_and_the_next_one_is_no_part_of_a_torn_one(tmp_path: Path, left: int):
    file = DiskStorage().append_to(tmp_path / "m")
    file.append(b"one\n")
    with operation("write", full_after(left)), pytest.raises(OSError, match="No space left"):
        file.append(b"second\n")
    assert (tmp_path / "m").read_bytes() == b"one\n"
    file.append(b"three\n")
    assert (tmp_path / "m").read_bytes() == b"one\nthree\n"


def test_what_could_not_be_taken_back_at_once_is_taken_back_before_the_next_line(tmp_path: Path):
    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = DiskStorage().append_to(tmp_path / "m")
    with (
        operation("write", full_after(2)),
        operation("ftruncate", fails),
        pytest.raises(OSError, match="No space left"),
    ):
        file.append(b"one\n")
    assert (tmp_path / "m").read_bytes() == b"on"
    file.append(b"two\n")
    assert (tmp_path / "m").read_bytes() == b"two\n"


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "rename"])
def test_a_failed_replacement_leaves_the_old_content_and_nothing_beside(tmp_path: Path, name: str):
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    DiskStorage().replace(tmp_path / "m", b"old")
    with operation(name, fails):
        try:
            DiskStorage().replace(tmp_path / "m", b"new")
        except OSError:
            content = b"old"
        else:
            assert name == "rename"  # which a replacement does not call
            content = b"new"
    assert (tmp_path / "m").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failure_names_its_file(tmp_path: Path, name: str):
    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = DiskStorage().append_to(tmp_path / "m")
    for act in (
        lambda: file.append(b"a line\n") or file.flush(),
        lambda: DiskStorage().replace(tmp_path / "m", b"all of it"),
    ):
        with operation(name, fails), pytest.raises(OSError, match="Input/output error") as raised:
            act()
        assert raised.value.filename == str(tmp_path / "m")


def test_flushing_and_renaming_reach_the_disk(tmp_path: Path):
    synced: list[bool] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    with operation("fsync", seen):
        file = DiskStorage().append_to(tmp_path / "m")
        assert synced == [True]  # the folder: the file is new
        file.append(b"one\n")
        file.flush()
        assert synced == [True, False]
        DiskStorage().replace(tmp_path / "n", b"content")
        assert synced == [True, False, False, True]
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_bytes(b"")
        DiskStorage().sync_tree(tmp_path / "folder")
        assert synced[4:] == [False, True, True]
        DiskStorage().move_tree(tmp_path / "folder", tmp_path / "moved")
        assert synced[7:] == [True]


def test_a_folder_that_is_being_removed_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "file").write_bytes(b"")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            DiskStorage().remove_tree(tmp_path / "5")
    assert [path.name for path in tmp_path.iterdir()] == [f"5{REMOVED_SUFFIX}"]
    (tmp_path / "5").mkdir()
    DiskStorage().remove_tree(tmp_path / "5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("was", ["absent", "empty", "begun"])
def test_of_a_claim_in_which_nothing_was_begun_nothing_stays(tmp_path: Path, was: str):
    folder = tmp_path / "run"
    if was != "absent":
        folder.mkdir()
    with DiskStorage().claim(folder, "lock"):
        assert (folder / "lock").is_file()
        if was == "begun":
            (folder / "config.json").write_text("{}")
    assert folder.exists() == (was != "absent")
    left = sorted(each.name for each in folder.glob("*"))
    assert left == (["config.json", "lock"] if was == "begun" else [])


@pytest.mark.parametrize("gone", ["the file", "the folder"])
def test_a_lock_that_its_holder_removes_before_it_is_taken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
):
    folder, opened, removed = tmp_path / "run", os.open, []

    def open_and_remove(path: Any, *more: Any) -> int:
        descriptor = opened(path, *more)
        if Path(path).name == "lock" and not removed:
            removed.append(path)
            os.unlink(path)
            if gone == "the folder":
                os.rmdir(folder)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_remove)
    with DiskStorage().claim(folder, "lock"):
        assert removed
        assert (folder / "lock").is_file()
        with pytest.raises(DirectoryInUse), DiskStorage().claim(folder, "lock"):
            pass
        assert (folder / "lock").is_file()


def test_who_has_waited_may_begin_in_the_folder_before_it_is_let_go(tmp_path: Path):
    folder, unlink = tmp_path / "planning", os.unlink

    def unlink_and_wait(path: Any, *given: Any, **options: Any) -> None:
        unlink(path, *given, **options)
        (folder / "lock").touch()  # another process is as quick

    with operation("unlink", unlink_and_wait), DiskStorage().claim(folder, "lock"):
        pass
    assert [file.name for file in folder.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a\\b", r"tensorstore takes a \\ for a /"),
        ("a.__lock", r"tensorstore keeps names that end in \.__lock for its locks"),
        ("a.__lock/run", "tensorstore keeps names"),
        ("gs:", "orbax takes a name that ends in gs:"),
        ("logs:/run", "orbax takes a name that ends in gs:"),
        ("\udcff", "its name is not UTF-8"),
        ("/s3/runs/a", "etils takes what lies under /gs, /s3, /az, /hf for buckets"),
    ],
)
def test_a_path_that_a_library_takes_for_another_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, says: str
):
    path = tmp_path / name
    with pytest.raises(UserError, match=says), RunDirectory.claim(path, {}):
        pass
    with pytest.raises(UserError, match=says), TrialStore.open(path, {}):
        pass
    assert not any(tmp_path.iterdir())
    # By a link it is the same path.
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(UserError, match=says):
        DiskStorage().key_value_store(tmp_path / "link")


def test_who_has_lost_the_lock_changes_nothing_of_what_the_next_one_writes(tmp_path: Path):
    """As a process that was stopped while its lock was removed, and wakes when another one trains there."""
    run = tmp_path / "run"
    with DiskStorage().claim(run, "lock"):
        file = DiskStorage().append_to(run / "m")
        file.append(b"one\n")
        checkpoints = Checkpoints(run / "checkpoints", max_to_keep=1)
        checkpoints.save(1, {"a": np.ones(3)}, {})
        checkpoints.close()
        # The next one's:
        (run / "lock").unlink()
        (run / "lock").write_bytes(b"another process\n")
        with (run / "m").open("ab") as other:
            other.write(b"two\nthree\n")
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        writes: list[Callable[[], Any]] = [
            lambda: file.append(b"four\n"),
            lambda: file.rewrite(lambda content: b""),
            lambda: DiskStorage().replace(run / "m", b""),
            lambda: DiskStorage().replace(run / "maps" / "zarr.json", b""),
            lambda: DiskStorage().remove_tree(run / "checkpoints"),
            lambda: DiskStorage().move_tree(run / "checkpoints", run / "moved"),
            lambda: Checkpoints(run / "checkpoints", max_to_keep=1).save(2, {"a": np.ones(3)}, {}),
            lambda: MapStore(run / "maps", (), AxisLabels({}, ()), "", StoredResolutions(), {}).write(1, {}),
        ]
        for write in writes:
            with pytest.raises(DirectoryLost, match=r"run is no longer held by this run: its lock file was removed"):
                write()
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        # What lies elsewhere is its own.
        DiskStorage().replace(tmp_path / "other", b"1")
    assert (run / "lock").read_bytes() == b"another process\n"


def test_what_another_process_wrote_is_not_cut_off(tmp_path: Path):
    file = DiskStorage().append_to(tmp_path / "m")
    file.append(b"one\n")
    with (tmp_path / "m").open("ab") as other:
        other.write(b"two\n")
    with pytest.raises(DirectoryLost, match="was written by another process"):
        file.append(b"three\n")
    assert (tmp_path / "m").read_bytes() == b"one\ntwo\n"
    # One that was cut is no longer: nothing is filled up with zeros.
    (tmp_path / "m").write_bytes(b"")
    file.append(b"four\n")
    assert (tmp_path / "m").read_bytes() == b"four\n"


def test_a_file_with_other_names_is_written_anew(tmp_path: Path):
    for name in ("m", "lock"):
        (tmp_path / name).write_bytes(b"one\n")
        os.link(tmp_path / name, tmp_path / f"{name}-copy")
    file = DiskStorage().append_to(tmp_path / "m")
    file.append(b"two\n")
    with DiskStorage().claim(tmp_path, "lock"):
        assert (tmp_path / "lock").read_bytes().startswith(b"process ")
    assert (tmp_path / "m").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "m-copy").read_bytes() == (tmp_path / "lock-copy").read_bytes() == b"one\n"


def test_a_folder_is_listed_without_links_and_pipes(tmp_path: Path):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "b").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"123")
    os.utime(tmp_path / "a", (1e9, 1e9))
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    listed = DiskStorage().list_folder(tmp_path)
    assert listed == [FolderEntry("a", False, 3, 1e9), FolderEntry("folder", True, 0, 0.0)]
    (tmp_path / "link").unlink()
    (tmp_path / "folder link").unlink()
    assert DiskStorage().tree_size(tmp_path) == 8
    assert DiskStorage().tree_size(tmp_path / "absent") == 0
    with pytest.raises(FileNotFoundError):
        DiskStorage().list_folder(tmp_path / "absent")


def test_a_lock_is_asked_without_the_right_to_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened, open_file = [], os.open
    with DiskStorage().claim(tmp_path / "run", "lock"):
        monkeypatch.setattr(
            os, "open", lambda path, flags, *more: opened.append(flags) or open_file(path, flags, *more)
        )
        assert DiskStorage().is_claimed(tmp_path / "run", "lock")
        monkeypatch.undo()
        (tmp_path / "run" / "file").touch()
    assert opened == [os.O_RDONLY]
    assert not DiskStorage().is_claimed(tmp_path / "run", "lock")
