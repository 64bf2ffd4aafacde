"""The command that trains one run of a study again, by itself and in another directory."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launch.command import split_override
from launch.config_files import load_config
from transformer.system.command_invocation import shell_command

if TYPE_CHECKING:
    from transformer.studies.sweeps.trials import Trial


def retrain_command(
    file: str, words: Sequence[str], trial: "Trial", *, recorded: str, workdir: str, data_dir: str | None = None
) -> str:
    """Return a command line that trains a trial from its first step in another run directory.

    It names the config file with the study's own `--config.KEY=VALUE` words and the trial's overrides, if they give
    exactly the trial's config. Overrides that no command line can express, such as a whole group, are taken from the
    recorded config.json. On CPUs, another number of cores than the run had changes its last bits.

    Args:
        file: The config file of the study.
        words: The study's `--config.KEY=VALUE` words.
        trial: The trial.
        recorded: The trial's run directory.
        workdir: The new run directory.
        data_dir: The folder of the data, if the study was given one.

    Returns:
        The command line.
    """
    from transformer.overrides import overrides_to_flags
    from transformer.runs.trust import trust_flags

    start = shell_command("train")
    directory_flags = [f"--workdir={workdir}", *([] if data_dir is None else [f"--data_dir={data_dir}"])]
    flags = overrides_to_flags(trial.overrides)
    if flags is not None and _resolve_config_file(file, [*words, *flags]) == trial.config:
        return shlex.join([*start, f"--config={file}", *words, *flags, *directory_flags])
    copied = [shlex.join(["mkdir", "-p", workdir]), shlex.join(["cp", f"{recorded}/config.json", workdir])]
    return " && ".join([*copied, shlex.join([*start, *directory_flags, *trust_flags(trial.config)])])


def _resolve_config_file(file: str, words: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the resolved config of a file with these words; None if they do not express it."""
    from transformer.config import UserError
    from transformer.studies.sweeps.trials import to_json_values
    from transformer.training.config import apply_text_overrides, resolve_config

    try:
        values = apply_text_overrides(load_config(file).to_dict(), map(split_override, words))
        return to_json_values(resolve_config(values).to_config())
    except UserError:
        return None
