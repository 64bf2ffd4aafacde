"""What a recorded config may make a process open or run, if only the run's own config.json asks for it."""

import contextlib
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import COMPILER_FLAGS, UserError, hash_config, refuse_single_text
from transformer.system.module_registry import is_project_module
from transformer.system.private_folders import NotPrivateError, private_folder

# Keys of the task that may name files outside of the folder of the data.
_FILES = ("task.dataset", "task.validation_files", "task.test_files")
# Keys that may name a module, and by section the names of such keys at any depth.
_MODULES = ("task.name", "model.family")
_NESTED_MODULES = {"optimizer": "schedule", "optimizers": "schedule", "model": "score"}


class NamedResource(NamedTuple):
    """Something that a config names, and its dotted key."""

    key: str
    value: str


def check_trusted(
    config: Mapping[str, Any], trusted: Collection[str], *, source: Collection[str] = (), training: bool = False
) -> None:
    """Refuse a recorded config that names code, files or other runs that the user does not trust.

    A user who writes a config file or a command line has chosen what it opens; a run's config.json may be a stranger's.
    Files and runs of a config with which this account has started a run (`remember_config`) are trusted.

    Args:
        config: The recorded config.
        trusted: The names that the user trusts: modules by dotted path, files, folders, runs.
        source: The dotted keys that the user's own command line sets.
        training: Whether the run is trained further, so that its source of initial parameters is read too.

    Raises:
        UserError: If something is not trusted, with the flag that would trust it, or a section is not a group of keys.
        TypeError: If `trusted` is a single text.
    """
    refuse_single_text(trusted, "trust")
    if "task.data_dir" in source:
        source = {*source, *_FILES}  # files are then read from that folder only
    code = [name for name in external_modules(config) if name.key not in source]
    paths = [name for name in external_paths(config, training=training) if name.key not in source]
    untrusted_paths = _untrusted(paths, trusted)
    if untrusted_paths and _is_remembered(config):
        paths, untrusted_paths = [], []
    reasons = {
        "code from outside this library that only the run's own config.json names": _untrusted(code, trusted),
        "outside the run, and nobody but the run's own config.json asks for it": untrusted_paths,
    }
    refusals = [
        f"{' and '.join(f'config.{name.key}={name.value!r}' for name in names)} {'are' if names[1:] else 'is'} {what}"
        for what, names in reasons.items()
        if names
    ]
    if refusals:
        trust = shlex.quote(_trust_flag([*code, *paths]))
        raise UserError(f"{'; '.join(refusals)}: add {trust} if you know what it does")


def _untrusted(names: Sequence[NamedResource], trusted: Collection[str]) -> list[NamedResource]:
    # A path may contain commas, which separate names in --trust.
    return [name for name in names if name.value not in trusted and not set(name.value.split(",")) <= set(trusted)]


def trust_flags(config: Mapping[str, Any]) -> list[str]:
    """Return the flags with which a command on this run trusts the code that its config names; [] if it names none.

    Raises:
        UserError: If a section is not a group of keys.
    """
    code = external_modules(config)
    return [_trust_flag(code)] if code else []


def external_modules(config: Mapping[str, Any]) -> list[NamedResource]:
    """Return the modules that a config names outside of this library and the projects of its checkout.

    Raises:
        UserError: If a section is not a group of keys.
    """
    names = [_named_resource(config, key) for key in _MODULES]
    for section, name in _NESTED_MODULES.items():
        names += _values_named(name, config.get(section), section)
    return [name for name in names if "." in name.value and not is_project_module(name.value)]


def external_paths(config: Mapping[str, Any], *, training: bool) -> list[NamedResource]:
    """Return the files, folders and runs that a config makes a process open, and compiler flags, which may name files.

    Args:
        config: The config.
        training: Whether the run is trained, so that its source of initial parameters and its flags are read too.

    Raises:
        UserError: If a section is not a group of keys.
    """
    folder, origin = _named_resource(config, "task.data_dir"), _named_resource(config, "initialize_from.run")
    shards = _named_resource(config, "task.shards_dir")
    if folder.value:
        names = [folder]  # file names cannot lead out of it
    else:
        named_keys = [_named_resource(config, key) for key in _FILES]
        # With token shards a data set may be a pattern, which names no one file.
        names = [
            NamedResource(key, file)
            for key, value in named_keys
            for file in value.split(",")
            if _names_file(file) or (shards.value and file)
        ]
    names += [shards] if shards.value else []
    flags = [NamedResource(key, str(config.get(key) or "")) for key in COMPILER_FLAGS]
    return names + [name for name in (origin, *flags) if training and name.value]


def named_resources(config: Mapping[str, Any]) -> set[str]:
    """Return all that a user trusts by writing this config: the code, data set, files and run that it names.

    Raises:
        UserError: If a section is not a group of keys.
    """
    names = [*external_modules(config), *external_paths(config, training=True), _named_resource(config, "task.dataset")]
    return {name.value for name in names if name.value}


def remember_config(config: Mapping[str, Any]) -> None:
    """Record that this account has started a run of this config, so that what it names may be opened again.

    If the account has no folder that is closed to others, nothing is recorded, and --trust is needed each time.
    """
    if not external_paths(config, training=True):
        return
    with contextlib.suppress(OSError, NotPrivateError):
        (_remembered_configs_folder(make=True) / hash_config(config)).touch(mode=0o600)


def _is_remembered(config: Mapping[str, Any]) -> bool:
    try:
        return (_remembered_configs_folder(make=False) / hash_config(config)).is_file()
    except (OSError, NotPrivateError):
        return False


def _remembered_configs_folder(*, make: bool) -> Path:
    """Return the folder with a file, named by its hash, for each config with which this account has started a run.

    Raises:
        NotPrivate: If others could put a file there.
        OSError: If there is no such folder.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.environ.get("HOME", ""), ".local", "state")
    return private_folder(Path(state), "headwise", "begun", create=make)


def _trust_flag(names: Sequence[NamedResource]) -> str:
    return f"--trust={','.join(dict.fromkeys(name.value for name in names))}"


def _named_resource(config: Mapping[str, Any], key: str) -> NamedResource:
    section, _, last = key.partition(".")
    values = config.get(section) or {}
    if not isinstance(values, Mapping):
        raise UserError(f"config.{section}={values!r} must be a group of keys")
    value = values.get(last)
    return NamedResource(key, "" if value is None else str(value))


def _values_named(name: str, values: Any, prefix: str) -> Iterator[NamedResource]:
    """Yield the texts under the keys of this name in nested values."""
    # Not by dotted keys: names may have dots, and two keys then have one path.
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if key == name and isinstance(value, str):
            yield NamedResource(f"{prefix}.{key}", value)
        yield from _values_named(name, value, f"{prefix}.{key}")


def _names_file(name: str) -> bool:
    """Whether a data set's name is that of a file or folder, or a URL."""
    try:
        return "://" in name or (name != "" and os.path.lexists(os.path.expanduser(name)))
    except ValueError:  # as for a name with a zero byte
        return False
