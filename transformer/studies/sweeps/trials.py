"""A trial: one resolved config of a sweep, named by the hash of that config."""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from transformer.config import RunConfig, UserError, from_config, hash_config
from transformer.overrides import describe
from transformer.trust import check_trusted

_DIGITS = 16  # of the hash that names a trial: of a million trials two share a name once in 37 million sweeps


class Trial(NamedTuple):
    """One run of a sweep. Two with the same resolved config (its seed is in it) are the same trial."""

    name: str  # its directory: the first hexadecimal digits of the SHA-256 of the resolved config
    overrides: Mapping[str, Any]  # what makes it from the base
    config: Mapping[str, Any]  # resolved


def make_trial(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Trial:
    """The trial that the overrides make of a base config.

    Raises:
        UserError: Naming the overrides, for an invalid config.
    """
    # jax comes with it; what only reads or runs trials does without.
    from transformer.training.config import apply_overrides, resolve_config

    try:
        config = resolve_config(apply_overrides(base, overrides)).to_config()
    except UserError as error:
        raise UserError(f"{error} (in the trial {describe(overrides)})" if overrides else str(error)) from None
    return trial_of_config(json_values(overrides), json_values(config))


def trial_of_config(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> Trial:
    """The trial of a config that is resolved already, both as plain values."""
    return Trial(hash_config(config)[:_DIGITS], overrides, config)


def check_recorded(trial: Trial, trusted: Collection[str]) -> None:
    """Refuse a trial that a ledger recorded unless its config is one of a run, and all code that it names is trusted.

    The sections of the config are checked when the trial is built.

    Raises:
        UserError: Naming the trial.
    """
    try:
        from_config(RunConfig, trial.config)
    except UserError as error:
        raise UserError(f"the trial {trial.name} is not one that a sweep plans: {error}") from error
    check_trusted(trial.config, trusted, training=True)


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they come back from JSON: tuples are lists."""
    return json.loads(json.dumps(values))
