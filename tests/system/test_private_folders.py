"""Folders whose content is trusted are refused where others could write to them, or exchange them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer.system.private_folders import NotPrivateError, private_folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that only its user can write to."""
    home = tmp_path / "homes" / "user"
    home.mkdir(parents=True)
    return home


def test_it_is_made_and_closed_to_all_others(home: Path) -> None:
    folder = private_folder(home / ".cache", "headwise", "compiled")
    assert folder == home / ".cache" / "headwise" / "compiled"
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    folder.chmod(0o755)  # others could read, and none write
    folder.parent.chmod(0o755)
    assert private_folder(home / ".cache", "headwise", "compiled") == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_is_only_looked_for_is_not_made(home: Path) -> None:
    with pytest.raises(FileNotFoundError):
        private_folder(home / ".state", "headwise", create=False)
    assert list(home.iterdir()) == []
    private_folder(home / ".state", "headwise")
    assert private_folder(home / ".state", "headwise", create=False) == home / ".state" / "headwise"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
@pytest.mark.parametrize("name", [".cache", ".cache/headwise", ".cache/headwise/compiled", "."])
def test_what_others_may_write_to_is_refused(home: Path, mode: int, name: str) -> None:
    private_folder(home / ".cache", "headwise", "compiled")
    (home / name).chmod(mode)
    if mode & stat.S_ISVTX and "headwise" not in name:  # as /tmp: nobody can exchange what is the user's
        private_folder(home / ".cache", "headwise", "compiled")
        return
    with pytest.raises(NotPrivateError, match=f"others may write to .* .mode {mode:04o}.") as caught:
        private_folder(home / ".cache", "headwise", "compiled")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["headwise", "headwise/compiled"])
def test_a_link_in_the_place_of_the_folder_is_refused(home: Path, name: str) -> None:
    private_folder(home / ".cache", "headwise", "compiled")
    (home / ".cache" / name).rename(home / "elsewhere")
    (home / ".cache" / name).symlink_to(home / "elsewhere")
    with pytest.raises(NotPrivateError, match="is a link"):
        private_folder(home / ".cache", "headwise", "compiled")


def test_a_file_in_the_place_of_the_folder_is_an_error(home: Path) -> None:
    private_folder(home / ".cache", "headwise")
    (home / ".cache" / "headwise" / "compiled").touch()
    with pytest.raises(OSError, match="compiled"):
        private_folder(home / ".cache", "headwise", "compiled")


@pytest.mark.parametrize("absolute", [True, False])
def test_a_cache_on_another_disk_is_followed_and_what_leads_there_is_checked(home: Path, absolute: bool) -> None:
    disk = home.parent / "disk" / "user"
    disk.mkdir(parents=True)
    (home / ".cache").symlink_to(disk if absolute else Path("..") / "disk" / "user")
    assert private_folder(home / ".cache", "headwise").samefile(disk / "headwise")
    disk.parent.chmod(0o777)  # another could put a folder of his own there
    with pytest.raises(NotPrivateError, match=f"others may write to {disk.parent}"):
        private_folder(home / ".cache", "headwise")


def test_links_that_go_in_a_circle_are_an_error(home: Path) -> None:
    (home / "a").symlink_to(home / "b")
    (home / "b").symlink_to(home / "a")
    with pytest.raises((OSError, NotPrivateError)):
        private_folder(home / "a" / "c", "headwise")


@pytest.mark.parametrize("name", [".", ".cache", ".cache/headwise", ".cache/headwise/compiled", "link"])
def test_what_belongs_to_another_user_is_refused(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "link").symlink_to(home)
    private_folder(home / "link" / ".cache", "headwise", "compiled")
    lstat: Callable[[Path], os.stat_result] = Path.lstat
    theirs = home if name == "." else home / name

    def lstat_of_another(path: Path) -> os.stat_result:
        facts = list(lstat(path))
        if os.path.normpath(path).replace("/link/", "/") == str(theirs):
            facts[4] = 12345
        return os.stat_result(facts)

    monkeypatch.setattr(Path, "lstat", lstat_of_another)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        private_folder(home / "link" / ".cache", "headwise", "compiled")
