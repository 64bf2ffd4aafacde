"""What the config of a run may make a process open or run, where nobody but the run's own config.json asks for it."""

import contextlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError, hash_config, refuse_single_text
from transformer.module_registry import is_project
from transformer.private_folders import NotPrivate, private_folder

# Keys of the task that name files, where the folder of the data does not hold them all.
_FILES = ("task.dataset", "task.validation_files", "task.test_files")


class Name(NamedTuple):
    """What a config names, and the dotted key by which it does."""

    key: str
    value: str


def check_trusted(
    config: Mapping[str, Any], trusted: Collection[str], *, said: Collection[str] = (), training: bool = False
) -> None:
    """Refuse a recorded config that names code, files or other runs outside the run that nobody vouches for.

    Whoever writes a config file or a command line has named what it opens; a run's config.json may be a stranger's.
    What this account has begun a run with (`remember`) it may open again.

    Args:
        config: the recorded config.
        trusted: the names that the user vouches for: modules by dotted path, files, folders, runs.
        said: the dotted keys that the user's own command line gives other values.
        training: whether the run is trained further, so that what it begins with is read too.

    Raises:
        UserError: with the flag that allows all that the config names, and for a section that is none.
        TypeError: for one name instead of several, every part of which would be trusted.
    """
    refuse_single_text(trusted, "trust")
    if "task.data_dir" in said:
        said = {*said, *_FILES}  # they are looked for in that folder alone
    code = [name for name in code_of(config) if name.key not in said]
    named = code + [name for name in outside_of(config, training=training) if name.key not in said]
    # A path may hold commas, at which --trust is cut.
    strange = [name for name in named if name.value not in trusted and not set(name.value.split(",")) <= set(trusted)]
    strange_code = [name for name in code if name in strange]
    if not strange or (not strange_code and _is_remembered(config)):
        return
    are = "is" if len(strange) == 1 else "are"
    what = (
        "code from outside this library that only the run's own config.json names"
        if strange_code
        else "outside the run, and nobody but the run's own config.json asks for it"
    )
    raise UserError(
        f"{' and '.join(f'config.{name.key}={name.value!r}' for name in strange)} {are} {what}: add "
        f"{shlex.quote(_trust(named))} if you know what it does"
    )


def trust_words(config: Mapping[str, Any]) -> list[str]:
    """The words by which a command that reads a run of this account is told to trust the code that its config names.

    Raises:
        UserError: for a section that is no group of keys.
    """
    code = code_of(config)
    return [_trust(code)] if code else []


def code_of(config: Mapping[str, Any]) -> list[Name]:
    """The modules outside this library and the projects of its checkout that a config names.

    Raises:
        UserError: for a section that is no group of keys.
    """
    names = [_name(config, "task.name"), _name(config, "model.family")]
    return [name for name in names if "." in name.value and not is_project(name.value)]


def outside_of(config: Mapping[str, Any], *, training: bool) -> list[Name]:
    """The files, folders and runs that a config makes a process open.

    Raises:
        UserError: for a section that is no group of keys.
    """
    folder, origin = _name(config, "task.data_dir"), _name(config, "initialize_from.run")
    if folder.value:
        names = [folder]  # the names of files lead to nothing outside of it
    else:
        said = [_name(config, key) for key in _FILES]
        names = [Name(key, file) for key, value in said for file in value.split(",") if _is_file(file)]
    return names + ([origin] if training and origin.value else [])


def names_in(config: Mapping[str, Any]) -> set[str]:
    """What somebody vouches for by writing this config: the code, the data set, the files and the run that it names."""
    names = [*code_of(config), *outside_of(config, training=True), _name(config, "task.dataset")]
    return {name.value for name in names if name.value}


def remember(config: Mapping[str, Any]) -> None:
    """Note that this account has begun a run of this config: what it names outside the run may be opened again.

    Where the account has no folder that is closed to others, nothing is noted, and --trust is asked for each time.
    """
    if not outside_of(config, training=True):
        return
    with contextlib.suppress(OSError, NotPrivate):
        (_remembered(make=True) / hash_config(config)).touch(mode=0o600)


def _is_remembered(config: Mapping[str, Any]) -> bool:
    try:
        return (_remembered(make=False) / hash_config(config)).is_file()
    except (OSError, NotPrivate):
        return False


def _remembered(*, make: bool) -> Path:
    """The folder with a file, named by its hash, for each config that this account has begun a run of.

    Raises:
        NotPrivate: where others could put a file there.
        OSError: where there is no such folder.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.environ.get("HOME", ""), ".local", "state")
    return private_folder(Path(state), "headwise", "begun", make=make)


def _trust(names: Sequence[Name]) -> str:
    return f"--trust={','.join(dict.fromkeys(name.value for name in names))}"


def _name(config: Mapping[str, Any], key: str) -> Name:
    section, _, last = key.partition(".")
    values = config.get(section) or {}
    if not isinstance(values, Mapping):
        raise UserError(f"config.{section}={values!r} must be a group of keys")
    value = values.get(last)
    return Name(key, "" if value is None else str(value))


def _is_file(name: str) -> bool:
    """Whether a data set's name is that of a file or a folder, or of something on another machine."""
    try:
        return "://" in name or (name != "" and os.path.lexists(os.path.expanduser(name)))
    except ValueError:  # as for a name with a zero byte
        return False
