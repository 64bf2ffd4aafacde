"""The command that trains one run of a study again, elsewhere and by itself."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.command import split_override
from launch.config_files import load_config
from transformer.installation import command_words

if TYPE_CHECKING:
    from transformer.studies.sweeps.trials import Trial


def retrain_command(
    file: str, words: Sequence[str], trial: "Trial", *, recorded: str, workdir: str, data_dir: str | None = None
) -> str:
    """A command line after which the run directory `workdir` holds the trial, trained from its beginning.

    It names the config file with the study's own `--config.KEY=VALUE` words and the trial's overrides, if they give
    exactly the trial's config. Overrides that no command line can express, such as a whole group, are taken from the
    config.json of the run in `recorded`. A run that had a part of this machine's cores gets as many again: on more it
    would differ in the last bits.
    """
    from transformer.overrides import as_flags
    from transformer.trust import trust_words

    start = [*_on_as_many_cores(recorded), *command_words("train")]
    where = [f"--workdir={workdir}", *([] if data_dir is None else [f"--data_dir={data_dir}"])]
    flags = as_flags(trial.overrides)
    if flags is not None and _config(file, [*words, *flags]) == trial.config:
        return shlex.join([*start, f"--config={file}", *words, *flags, *where])
    copied = [shlex.join(["mkdir", "-p", workdir]), shlex.join(["cp", f"{recorded}/config.json", workdir])]
    return " && ".join([*copied, shlex.join([*start, *where, *trust_words(trial.config)])])


def _on_as_many_cores(recorded: str) -> list[str]:
    from transformer.runs.run_directory import RunDirectory

    start = RunDirectory(Path(recorded)).facts()
    cores, machine = start.get("cpus"), os.cpu_count()
    if start.get("devices", {}).get("platform") != "cpu" or cores is None or machine is None or cores >= machine:
        return []
    return ["taskset", "-c", f"0-{cores - 1}" if cores > 1 else "0"]


def _config(file: str, words: Sequence[str]) -> Mapping[str, Any] | None:
    """The resolved config of a file with these words; None where they do not express it."""
    from transformer.config import UserError
    from transformer.studies.sweeps.trials import json_values
    from transformer.training.config import apply_text_overrides, resolve_config

    try:
        values = apply_text_overrides(load_config(file).to_dict(), map(split_override, words))
        return json_values(resolve_config(values).to_config())
    except UserError:
        return None
