"""A trial: one resolved config of a sweep, named by the hash of that config."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from transformer.config import RunConfig, UserError, from_config, hash_config
from transformer.overrides import describe_overrides
from transformer.runs.trust import check_trusted

_DIGITS = 16  # of the hash that names a trial: of a million trials two share a name once in 37 million sweeps


class Trial(NamedTuple):
    """One run of a sweep. Two trials with the same resolved config, which includes the seed, are the same trial.

    Attributes:
        name: Its directory: the first hexadecimal digits of the SHA-256 of the resolved config.
        overrides: The overrides of the base config.
        config: The resolved config.
    """

    name: str  # its directory: the first hexadecimal digits of the SHA-256 of the resolved config
    overrides: Mapping[str, Any]  # what makes it from the base
    config: Mapping[str, Any]  # resolved


def make_trial(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Trial:
    """Build a trial: resolve the base config with some overrides.

    Args:
        base: The base config.
        overrides: Values by dotted key, such as {"optimizer.learning_rate": 0.001}.

    Returns:
        The trial, named after its resolved config.

    Raises:
        UserError: If the config is invalid.
    """
    # jax comes with it; what only reads or runs trials does without.
    from transformer.training.config import apply_overrides, resolve_config

    try:
        config = resolve_config(apply_overrides(base, overrides)).to_config()
    except UserError as error:
        raise UserError(
            f"{error} (in the trial {describe_overrides(overrides)})" if overrides else str(error)
        ) from None
    return trial_from_config(to_json_values(overrides), to_json_values(config))


def trial_from_config(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> Trial:
    """Build the trial of a config that is already resolved.

    Args:
        overrides: The values by dotted key that produced it, as JSON values.
        config: The resolved config, as JSON values.

    Returns:
        The trial.
    """
    return Trial(hash_config(config)[:_DIGITS], overrides, config)


def overridden_keys(trials: Iterable[Trial]) -> list[str]:
    """Return the keys that any of these trials overrides, in order of first appearance."""
    return list(dict.fromkeys(key for trial in trials for key in trial.overrides))


def check_recorded_trial(trial: Trial, trusted: Collection[str]) -> None:
    """Check that a recorded trial has the config of a run, and names only trusted code.

    The sections of the config are checked when the trial is built.

    Args:
        trial: The trial, as read from the trial store.
        trusted: The names that the user trusts, see `transformer.runs.trust.check_trusted`.

    Raises:
        UserError: If the trial is not one that a sweep plans, or names code that is not trusted.
    """
    try:
        from_config(RunConfig, trial.config)
    except UserError as error:
        raise UserError(f"the trial {trial.name} is not one that a sweep plans: {error}") from error
    check_trusted(trial.config, trusted, training=True)


def to_json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON returns them, with lists for tuples."""
    return json.loads(json.dumps(values))
