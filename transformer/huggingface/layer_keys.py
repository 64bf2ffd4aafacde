"""Keys of config.json that differ between layers or models of one kind: rotary positions and attention windows."""

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from transformer.attention.rotary import NO_SCALING, RotaryScalingKind, rotated_features
from transformer.config import UserError, convert_value, shorten_value, to_config
from transformer.huggingface.conversion_spec import Config, without_keys

ROTARY_KEYS = frozenset({"rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor"})
"""The keys of config.json that `flatten_rotary` reads."""

LAYER_TYPE_KEYS = frozenset({"layer_types", "sliding_window"})
"""The keys of config.json that `windows_of_layers` reads."""

_BASE = 10000.0
# Our field of each key of a kind of scaled rotary positions.
_FACTOR = {"factor": "factor"}
_LENGTH = {"original_max_position_embeddings": "original_max_length"}
_SCALING_KEYS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": _FACTOR,
    "dynamic": _FACTOR,
    "llama3": {
        **_FACTOR,
        **_LENGTH,
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
    },
    "yarn": {
        **_FACTOR,
        **_LENGTH,
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
    "longrope": {
        **_FACTOR,
        **_LENGTH,
        "attention_factor": "attention_factor",
        "short_factor": "short_factors",
        "long_factor": "long_factors",
    },
}
_REQUIRED_KEYS = {"llama3": ("low_freq_factor", "high_freq_factor"), "longrope": ("short_factor", "long_factor")}
_OTHER_NAMES = {"su": "longrope"}  # of Phi 3's first files
_READ_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_YARN_MAGNITUDES = ("mscale", "mscale_all_dim")
# Of other kinds of scaling, or of training: a file of which nothing else is unusual has them.
_KNOWN_WITHOUT_EFFECT = {"factor", "finetuned", "original_max_position_embeddings", *_YARN_MAGNITUDES}
_KINDS_OF_LAYERS = {"full_attention", "sliding_attention"}


def flatten_rotary(config: Config, *, base: float = _BASE, fraction: float = 1.0) -> Config:
    """Return a config.json with its rotary positions in three keys, wherever the file has them.

    Args:
        config: The content of config.json, which may nest them.
        base: The base that the class has without the key.
        fraction: The part of a head's features that rotates without the key.

    Returns:
        The config with `rope_theta`, `partial_rotary_factor` and, as our config has it, `rope_scaling`.

    Raises:
        UserError: If they are of a kind that cannot be read.
    """
    name, rotary = rotary_section(config)
    stated = {"rope_theta": base, "partial_rotary_factor": fraction, **config, **rotary}
    scaling = read_scaling(rotary, config, f"config.json has {name}={shorten_value(rotary)}")
    return {
        **config,
        "rope_theta": stated["rope_theta"],
        "partial_rotary_factor": _whole_features(config, stated["partial_rotary_factor"]),
        "rope_scaling": scaling,
    }


def rotary_section(config: Config) -> tuple[str, Config]:
    """Return the key of config.json that has the rotary positions, and its value.

    Raises:
        UserError: If the value is no mapping.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return name, dict(convert_value(Mapping[str, Any], config.get(name) or {}, f"config.json: {name}"))


def scaling_kind(rotary: Mapping[str, Any]) -> str:
    """Return the kind of scaling that rotary positions name; `default` is none."""
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    return _OTHER_NAMES.get(kind, kind) if isinstance(kind, str) else repr(kind)


def unread_rotary_keys(config: Config, fields: Container[str]) -> list[str]:
    """Return the keys of rotary positions that change nothing, there as here.

    Args:
        config: The content of a readable config.json.
        fields: The fields of our config that its conversion gives.
    """
    name, rotary = rotary_section(config)
    kind = scaling_kind(rotary)
    if "local_rotary_base" in fields and name == "rope_parameters":
        read = _KINDS_OF_LAYERS
    else:
        read = _SCALING_KEYS[kind].keys() | _READ_KEYS | _KNOWN_WITHOUT_EFFECT
    unread = [f"{name}.{key}" for key in rotary.keys() - read]
    fraction = rotary.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if "rotary_fraction" not in fields and kind == "default" and fraction not in (None, 1.0):
        unread.append("partial_rotary_factor")
    return sorted(unread)


def _whole_features(config: Config, fraction: Any) -> float:
    """Return a part of a head's features as the library rounds it, which is down to whole features.

    Raises:
        UserError: If it is no number.
    """
    fraction = convert_value(float, fraction, "config.json: partial_rotary_factor")
    depth = convert_value(int | None, config.get("head_dim"), "config.json: head_dim")
    depth = depth or config["hidden_size"] // max(config["num_attention_heads"], 1)
    return int(depth * fraction) / max(depth, 1)


def read_scaling(rotary: Mapping[str, Any], config: Config, what: str) -> Config:
    """Return the scaling of rotary positions as our config has it.

    Args:
        rotary: The keys of the rotary positions.
        config: The content of config.json.
        what: What the file has, for messages.

    Raises:
        UserError: If it cannot be read.
    """
    kind = scaling_kind(rotary)
    if kind not in _SCALING_KEYS:
        raise UserError(f"{what}; of rotary positions, {', '.join(_SCALING_KEYS)} can be read")
    keys = _SCALING_KEYS[kind]
    if kind == "default":
        return to_config(NO_SCALING)
    length = config["max_position_embeddings"]
    original = rotary.get("original_max_position_embeddings", length)
    original = original if (file_length := config.get("original_max_position_embeddings")) is None else file_length
    if not isinstance(original, int) or original < 1:
        raise UserError(f"{what}; original_max_position_embeddings={original} must be 1 or more")
    factor = rotary.get("factor")
    if factor is None and kind in ("yarn", "longrope"):
        factor = length / original
    missing = [key for key in _REQUIRED_KEYS.get(kind, ()) if rotary.get(key) is None]
    missing += ["factor"] if factor is None else []
    if missing:
        raise UserError(f"{what}, without {', '.join(missing)}")
    if kind == "yarn" and rotary.get("attention_factor") is None:
        rotary = {**rotary, "attention_factor": _yarn_magnitude(rotary, factor)}
    is_plain_yarn = kind == "yarn" and rotary["attention_factor"] in (None, 1)
    if factor == 1 and (kind in ("linear", "llama3") or is_plain_yarn):
        return to_config(NO_SCALING)
    values = {ours: rotary[key] for key, ours in keys.items() if rotary.get(key) is not None}
    values |= {"kind": kind, "factor": factor}
    if kind != "linear":
        values["original_max_length"] = length if kind == "dynamic" else original
    return {**to_config(NO_SCALING), **values}


def _yarn_magnitude(rotary: Mapping[str, Any], factor: Any) -> float | None:
    """Return the factor on queries and keys that follows from `mscale` and `mscale_all_dim`; None without both.

    Raises:
        UserError: If either is no number, or if the ratio is not above 0.
    """
    weights = [convert_value(float | None, rotary.get(name), f"config.json: {name}") for name in _YARN_MAGNITUDES]
    factor = convert_value(float, factor, "config.json: factor")
    if not all(weights):
        return None
    if factor <= 1:
        return 1.0
    above, below = (0.1 * weight * math.log(factor) + 1 for weight in weights)
    if above <= 0 or below <= 0:
        raise UserError(f"config.json has mscale={weights[0]} and mscale_all_dim={weights[1]}, which give no factor")
    return above / below


def restore_rotary(config: Config) -> Config:
    """Return a config.json with the rotary positions of `flatten_rotary` as transformers reads them.

    Raises:
        UserError: If transformers would round the number of features that rotate otherwise.
    """
    ours = config["rope_scaling"]
    other_keys = without_keys(config, "rope_scaling", "partial_rotary_factor")
    if (fraction := config.get("partial_rotary_factor", 1.0)) != 1.0:
        depth = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if int(depth * fraction) != rotated_features(depth, fraction):
            raise UserError(f"config.model.rotary_fraction={fraction} of head depth {depth} is rounded otherwise there")
        other_keys["partial_rotary_factor"] = fraction
    if ours["kind"] == RotaryScalingKind.NONE.value:
        return other_keys
    keys = _SCALING_KEYS[ours["kind"]]
    if ours["kind"] == "dynamic" and ours["original_max_length"] != config["max_position_embeddings"]:
        raise UserError(
            f"config.model.rotary_scaling.original_max_length={ours['original_max_length']} is not max_length="
            f"{config['max_position_embeddings']}, as dynamic scaling has it there"
        )
    scaling = {key: ours[field] for key, field in keys.items() if ours[field] not in (None, ())}
    return {**other_keys, "rope_scaling": {"rope_type": ours["kind"], **scaling}}


def windows_of_layers(config: Config, layer_types: Sequence[str]) -> tuple[int, ...]:
    """Return the attention windows of the layers as our config has them, by the shortest period.

    Args:
        config: The content of config.json.
        layer_types: `sliding_attention` or `full_attention` for each layer.

    Raises:
        UserError: If a layer is of another kind, or if a layer slides without a window.
    """
    layers = convert_value(tuple[str, ...], layer_types, "config.json: layer_types")
    if len(layers) != config["num_hidden_layers"]:
        raise UserError(
            f"config.json has layer_types of {len(layers)} layers and num_hidden_layers={config['num_hidden_layers']}"
        )
    if unknown_kinds := sorted(set(layers) - {"sliding_attention", "full_attention"}):
        raise UserError(
            f"config.json has layer_types of {', '.join(unknown_kinds)}; full_attention and sliding_attention can be "
            "read"
        )
    if "sliding_attention" not in layers:
        return ()
    window = our_window(config["sliding_window"])
    return shortest_period(tuple(window if kind == "sliding_attention" else 0 for kind in layers))


def our_window(sliding_window: Any) -> int:
    """Return the window of a sliding layer: theirs includes the query's own position, ours does not.

    Raises:
        UserError: If there is none, or if it is too short.
    """
    if sliding_window is None or sliding_window < 2:
        raise UserError(f"config.json has sliding_window={sliding_window}; it must be at least 2, or null")
    return sliding_window - 1


def windows_of_all_layers(config: Config) -> tuple[int, ...]:
    """Return the attention windows of a model all of whose layers slide, as our config has them; empty if none does."""
    window = config["sliding_window"]
    return () if window is None else (our_window(window),)


def restore_sliding_window(windows: Sequence[int]) -> Config:
    """Return the key `sliding_window` of these windows.

    Raises:
        UserError: If they are not one for all layers.
    """
    if len(windows) > 1:
        raise UserError(f"config.model.attention_windows={windows} are not one for all layers")
    return {"sliding_window": windows[0] + 1 if windows else None}


def full_every(period: int, layers: int) -> list[str]:
    """Return the `layer_types` of a model in which every so-manieth layer sees all and the others slide."""
    return ["full_attention" if (number + 1) % period == 0 else "sliding_attention" for number in range(layers)]


def shortest_period[T](layers: tuple[T, ...]) -> tuple[T, ...]:
    """Return the shortest sequence whose whole repetitions are these layers."""
    lengths = (size for size in range(1, len(layers)) if len(layers) % size == 0)
    return next((layers[:size] for size in lengths if layers[:size] * (len(layers) // size) == layers), layers)


def restore_windows(config: Config, windows: Sequence[int]) -> Config:
    """Return the key `layer_types` of these windows, and `sliding_window` if there are any.

    Without a layer that slides the library still needs a window, and null is none: that of the class stands there.

    Raises:
        UserError: If there are windows of several sizes.
    """
    sizes = {window for window in windows if window}
    if len(sizes) > 1:
        raise UserError(f"config.model.attention_windows={tuple(windows)} are of several sizes")
    layers = config["num_hidden_layers"]
    period = tuple("sliding_attention" if window else "full_attention" for window in windows or (0,))
    kinds = [period[number % len(period)] for number in range(layers)]
    return {"layer_types": kinds} | ({"sliding_window": sizes.pop() + 1} if sizes else {})


def flatten_rotary_by_kind(config: Config, *, full_base: float, sliding_base: float) -> Config:
    """Return a config.json with the rotary positions of its full and of its sliding layers in keys of their own.

    Args:
        config: The content of config.json, in which `rope_parameters` may be nested by kind of layer.
        full_base: The base of full layers without the key.
        sliding_base: The base of sliding layers without the key.

    Returns:
        The config with `rope_theta` and `rope_scaling` of full layers and `rope_local_base_freq` of sliding ones.

    Raises:
        UserError: If sliding layers scale theirs, or if either is of a kind that cannot be read.
    """
    nested = convert_value(Mapping[str, Any], config.get("rope_parameters") or {}, "config.json: rope_parameters")
    full, sliding = (dict(nested.get(f"{kind}_attention") or {}) for kind in ("full", "sliding"))
    scaling = convert_value(Mapping[str, Any], config.get("rope_scaling") or {}, "config.json: rope_scaling")
    full |= scaling
    if "type" in scaling and "rope_type" not in scaling:
        raise UserError(
            f"config.json has rope_scaling={shorten_value(dict(scaling))}, whose type its class does not read: call it "
            "rope_type"
        )
    # Without scaling its class does not look for a part of the features that rotates.
    fraction = full.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if scaling_kind(full) != "default" and fraction not in (None, 1.0):
        raise UserError(f"config.json has partial_rotary_factor={shorten_value(fraction)}; only 1.0 can be read")
    if full.get("truncate", True) is not True:
        raise UserError(
            f"config.json has truncate={full['truncate']} in the rotary positions of full layers, where transformers "
            "does not look for it; only True can be read"
        )
    if sliding.get("rope_type", "default") != "default":
        raise UserError("config.json scales the rotary positions of sliding layers; only full ones can have that")
    return {
        **config,
        "rope_theta": full.get("rope_theta", full_base),
        "rope_local_base_freq": sliding.get("rope_theta", sliding_base),
        "rope_scaling": read_scaling(full, config, f"config.json has rotary positions {full}"),
    }


def restore_rotary_by_kind(config: Config) -> Config:
    """The inverse of `flatten_rotary_by_kind`."""
    restored = restore_rotary(without_keys(config, "rope_theta", "rope_local_base_freq"))
    scaling = restored.pop("rope_scaling", {"rope_type": "default"})
    if scaling.get("truncate", True) is not True:
        raise UserError("config.model.rotary_scaling.truncate=False is not true, as it always is there")
    kinds = {
        "full_attention": {"rope_theta": config["rope_theta"], **scaling},
        "sliding_attention": {"rope_type": "default", "rope_theta": config["rope_local_base_freq"]},
    }
    return {**restored, "rope_parameters": kinds}


def rotary_pattern_by_windows(windows: Sequence[int], *, sliding: str, full: str) -> tuple[str, ...]:
    """Return the rotary positions of the layers of a period by their windows; empty if all are `global`.

    Args:
        windows: The attention windows, as our config has them.
        sliding: The rotary positions of layers with a window.
        full: Those of the others.
    """
    pattern = tuple(sliding if window else full for window in windows or (0,))
    return () if set(pattern) == {"global"} else pattern


def check_rotary_pattern(config: Config, *, sliding: str, full: str) -> None:
    """Check that the rotary positions are those of `rotary_pattern_by_windows`.

    Raises:
        UserError: If they are not.
    """
    pattern = tuple(config["rotary_pattern"])
    usual = rotary_pattern_by_windows(config["windows"], sliding=sliding, full=full)
    if shortest_period(pattern) != shortest_period(usual):
        raise UserError(
            f"config.model.rotary_pattern={pattern} is not {sliding} in the layers with a window alone, and {full} in "
            "the others"
        )
