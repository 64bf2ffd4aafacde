"""Where compiled programs are kept for the user's next command, and where they are not."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from launch import compilation_cache
from tests.faults import damaged_programs


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The environment that a command leaves, begun with these variables; jax is not imported yet."""
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(
        compilation_cache,
        "enable_cache_in",
        lambda folder, environment: environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder)),
    )

    def made(**environment: str) -> dict[str, str]:
        environment = {"HOME": str(tmp_path), **environment}
        compilation_cache.enable_user_cache(environment, tmp_path)
        return environment

    return made


def describe(root: Path, *lines: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text("".join(line + "\n" for line in lines))


def test_each_kind_of_processor_has_a_folder_that_is_the_users_alone(kept, tmp_path):
    describe(tmp_path, "model name\t: one", "flags\t\t: avx2", "cpu MHz\t\t: 1", "model name\t: one", "flags\t\t: avx2")
    first = Path(kept()["JAX_COMPILATION_CACHE_DIR"])
    assert first.parent == tmp_path / ".cache" / "headwise"
    assert first.stat().st_mode & 0o777 == 0o700
    assert kept()["JAX_COMPILATION_CACHE_MAX_SIZE"] == str(4 * 2**30)
    describe(tmp_path, "model name\t: one", "flags\t\t: avx2", "cpu MHz\t\t: 2")
    assert Path(kept()["JAX_COMPILATION_CACHE_DIR"]) == first
    describe(tmp_path, "model name\t: one", "flags\t\t: avx2 avx512f")
    assert Path(kept()["JAX_COMPILATION_CACHE_DIR"]) != first
    elsewhere = kept(XDG_CACHE_HOME=str(tmp_path / "x"))["JAX_COMPILATION_CACHE_DIR"]
    assert Path(elsewhere).is_relative_to(tmp_path / "x")


def test_what_the_user_names_stays_and_what_others_may_write_is_not_used(kept, tmp_path, capsys):
    own = kept(JAX_COMPILATION_CACHE_DIR="own")
    assert own["JAX_COMPILATION_CACHE_DIR"] == "own"
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in own
    (tmp_path / "file").touch()
    for absent in ({"HOME": str(tmp_path / "file")}, {"HOME": ""}):
        assert "JAX_COMPILATION_CACHE_DIR" not in kept(**absent)
    assert capsys.readouterr().err == ""
    folder = Path(kept()["JAX_COMPILATION_CACHE_DIR"])
    for level in (folder, folder.parent, folder.parent.parent):
        level.chmod(0o777)
        assert "JAX_COMPILATION_CACHE_DIR" not in kept()
        level.chmod(0o700)
        said = capsys.readouterr().err
        assert said.startswith(f"compiled programs are not kept: others may write to {level} (mode 0777)")
        assert said.count("\n") == 1
    folder.parent.rename(tmp_path / "elsewhere")
    folder.parent.symlink_to(tmp_path / "elsewhere")
    assert "JAX_COMPILATION_CACHE_DIR" not in kept()
    assert f"{folder.parent} is a link" in capsys.readouterr().err


# Compiled in the first process, found in the second, which says nothing of it.
PROGRAM = """
from launch.compilation_cache import enable_user_cache
enable_user_cache()
import jax, jax.monitoring
events = []
jax.monitoring.register_event_listener(lambda name, **more: events.append(name.rpartition("/")[2]))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x @ x)(jax.numpy.ones((3, 3)))
print("cache_hits" in events)
"""


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(root, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}
    for name in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    words = [sys.executable, "-c", PROGRAM]
    said = [subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True) for _ in range(2)]
    assert [each.stdout for each in said] == ["False\n", "True\n"], said[1].stderr
    assert "cache" not in said[1].stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        damaged_programs._flip,
        pytest.param(damaged_programs._folder, marks=pytest.mark.slow),
        pytest.param(damaged_programs._times, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_program_is_compiled_and_kept_again(tmp_path, damage):
    damaged_programs.run(tmp_path)
    whole = damaged_programs.run(tmp_path)
    assert whole.hits > whole.misses == 0
    assert damaged_programs.faults_of(tmp_path, whole, damage, random.Random(1)) == []
