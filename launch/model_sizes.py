"""List published model sizes and training costs, or the parameters of a trained run."""

import dataclasses
import functools
import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.text_table import align_columns
from transformer.config import UserError, lookup_by_name
from transformer.system.terminal import format_size

if TYPE_CHECKING:
    from transformer.costs.cache_memory import CacheMemory
    from transformer.training.run_loading import TrainedModelSize

COST_FLAGS = ("training_tokens", "flops_per_second", "dollars_per_device_hour")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSizesArguments(Arguments):
    """The arguments of `model_sizes`."""

    name: str | None = flag("list this model only (default: all)")
    workdir: str | None = flag(
        "a run directory: print the sizes of that run",
        excludes=("name", *COST_FLAGS, "published_trainings"),
        because="it prints a run, and no published model",
    )
    trust: tuple[str, ...] = trust_flag(needs=("workdir",), because="it is about the code of a run")
    training_tokens: float | None = flag("estimate the cost for this many tokens (default: as published)")
    flops_per_second: float | None = flag("FLOPs per second that one device sustains, to estimate device-days")
    dollars_per_device_hour: float | None = flag(
        "dollars per device-hour (default with --published_trainings: 1)",
        needs=("flops_per_second", "published_trainings"),
    )
    cache_length: int | None = flag(
        "print the memory of the cache of decoding for texts of so many positions, with --name in bfloat16",
        needs=("name", "workdir"),
        because="it is of one model",
    )
    cache_batch_size: int = flag("texts that are decoded at once (default: 1)", 1, needs=("cache_length",))
    published_trainings: bool = flag(
        "list published training runs, with BLEU: devices x hours x FLOP/s, and the published FLOPs",
        False,
        excludes=("name", "training_tokens", "flops_per_second"),
        because="it lists what was published, and estimates nothing",
    )
    json: bool = flag("print JSON: a list of sizes, or the object of a run", False)

    @property
    def costs(self) -> Mapping[str, float | None]:
        """The values of the flags of costs, by name."""
        return {
            "training_tokens": self.training_tokens,
            "flops_per_second": self.flops_per_second,
            "dollars_per_device_hour": self.dollars_per_device_hour,
        }


COMMAND = Command(
    name="model_sizes",
    description=(
        "List the published models that --config.model.size names: shape, parameters as counted and as published, "
        "training FLOPs, and source. With --workdir print the parameters of a trained run by part of its model, from "
        "its latest checkpoint. With --flops_per_second, --training_tokens or --dollars_per_device_hour print what "
        "training each would cost; with --published_trainings what published trainings did cost."
    ),
    example="--name=gpt2-xl",
    arguments=ModelSizesArguments,
)
COLUMNS = (
    "name",
    "family",
    "layers",
    "width",
    "heads",
    "parameters",
    "published",
    "off",
    "FLOPs/token",
    "training FLOPs",
    "citation",
)
LEFT_ALIGNED = ("name", "family", "citation")
FLOPS_NOTE = (
    "FLOPs/token: training, 3 x the forward FLOPs that one more row of the context adds, divided by its length: 6 for "
    "every weight of the token, and 12 L H D T for attention over T positions. The whole query-key matrix is counted, "
    "masked or not. A token of an encoder-decoder is a source and a target token."
)


def main(arguments: ModelSizesArguments) -> None:
    """Count and print the sizes or costs."""
    for name, value in arguments.costs.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name}={value} must be above 0 and finite")
    if arguments.workdir is not None:
        from transformer.training.run_loading import measure_run_cache, measure_trained_model_size

        trained = measure_trained_model_size(arguments.workdir, arguments.trust)
        cache = _measure_cache(
            arguments, lambda *sizes: measure_run_cache(arguments.workdir or "", *sizes, trusted=arguments.trust)
        )
        entry, text = run_size_entry(trained) | cache, format_run_sizes(trained) + _format_cache(cache)
        print(json.dumps(entry, indent=2) if arguments.json else text)
        return
    if arguments.published_trainings:
        published = published_training_entries(
            1.0 if arguments.dollars_per_device_hour is None else arguments.dollars_per_device_hour
        )
        print(json.dumps(published, indent=2) if arguments.json else format_columns(published))
        return
    from transformer.models.registry import published_sizes

    if arguments.name is not None:
        lookup_by_name(arguments.name, published_sizes(), "--name")
    entries = [size_entry(name) for name in ([arguments.name] if arguments.name is not None else published_sizes())]
    if any(value is not None for value in arguments.costs.values()):
        costs = [
            training_cost_entry(
                cost_entry, arguments.training_tokens, arguments.flops_per_second, arguments.dollars_per_device_hour
            )
            for cost_entry in entries
        ]
        estimates = [cost_entry for cost_entry in costs if cost_entry["tokens"] is not None]
        if not estimates:
            raise UserError("the number of training tokens is not published: pass --training_tokens")
        print(json.dumps(estimates, indent=2) if arguments.json else format_columns(estimates))
        return
    cache = {}
    if arguments.name is not None:
        from transformer.costs.model_sizes import published_cache

        cache = _measure_cache(arguments, functools.partial(published_cache, arguments.name))
        entries = [entries[0] | cache]
    print(json.dumps(entries, indent=2) if arguments.json else format_size_table(entries) + _format_cache(cache))


def _measure_cache(
    arguments: ModelSizesArguments, measure: Callable[[int, int], "CacheMemory | None"]
) -> dict[str, dict[str, Any]]:
    """Return the cache of decoding by name, if it is asked for.

    Raises:
        UserError: If a size is below 1, or the model does not decode.
    """
    if arguments.cache_length is None:
        return {}
    for name in ("cache_length", "cache_batch_size"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name}={getattr(arguments, name)} must be at least 1")
    memory = measure(arguments.cache_batch_size, arguments.cache_length)
    if memory is None:
        raise UserError(f"--cache_length={arguments.cache_length}: this model does not decode, and has no cache")
    return {"cache": memory._asdict()}


def _format_cache(cache: Mapping[str, Mapping[str, Any]]) -> str:
    if not cache:
        return ""
    sizes = cache["cache"]
    texts = "1 text" if sizes["batch_size"] == 1 else f"{sizes['batch_size']:,} texts"
    return (
        f"\ncache of decoding: {sizes['num_bytes']:,} bytes ({format_size(sizes['num_bytes'])}) for {texts} of "
        f"{sizes['length']:,} positions, {sizes['bytes_per_token']:,} bytes a token, {sizes['dtype']}"
    )


def training_cost_entry(
    size: dict[str, Any],
    tokens: float | None,
    flops_per_second: float | None,
    dollars_per_device_hour: float | None,
) -> dict[str, Any]:
    """Return the estimated cost of training a model size, with its published FLOPs.

    Args:
        size: The model size, as `size_entry` returns it.
        tokens: The number of training tokens, by default as published.
        flops_per_second: The FLOPs per second that one device sustains, for device-days.
        dollars_per_device_hour: The price of a device-hour, for dollars.

    Returns:
        Plain values; without numbers if the training tokens are unknown.
    """
    from transformer.costs.training_cost import estimate_training_cost

    tokens = size["training_tokens"] if tokens is None else tokens
    entry = {"name": size["name"], "parameters": size["parameters"], "tokens": tokens}
    if tokens is None:
        return entry
    cost = estimate_training_cost(
        size["parameters"],
        tokens,
        size["flops_per_token"],
        flops_per_second=flops_per_second,
        dollars_per_device_hour=dollars_per_device_hour,
    )
    return entry | {
        "6 N D": cost.approximate_flops,
        "counted": cost.counted_flops,
        "published": size["training_flops"],
        "device-days": cost.device_days,
        "dollars": cost.dollars,
    }


def published_training_entries(dollars_per_device_hour: float) -> list[dict[str, Any]]:
    """Return published training runs: BLEU, FLOPs from devices and hours, published FLOPs, and rental cost."""
    from transformer.costs.training_cost import PUBLISHED_TRAININGS

    return [
        {
            "name": training.name,
            "BLEU": training.bleu,
            "devices": training.num_devices,
            "device": training.device_name,
            "hours": training.hours,
            "FLOPs": training.estimated_flops,
            "published FLOPs": training.published_flops,
            "dollars": training.estimate_dollars(dollars_per_device_hour),
            "source": training.source,
        }
        for training in PUBLISHED_TRAININGS
    ]


def format_columns(entries: list[dict[str, Any]]) -> str:
    """Format entries with the same keys as aligned columns: text to the left, numbers to the right."""
    text_columns = {name for entry in entries for name, value in entry.items() if isinstance(value, str)}
    heading = dict(zip(entries[0], entries[0], strict=True))
    return align_columns(
        [heading, *({name: _format_value(value) for name, value in entry.items()} for entry in entries)], text_columns
    )


def _format_value(value: Any) -> str:
    """Format a number: integers with thousands separators, large ones in scientific notation."""
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= value < 1e12 or value == int(value) < 1e12 else f"{value:.4g}"


def size_entry(name: str) -> dict[str, Any]:
    """Return a model size as plain values."""
    from transformer.config import to_config
    from transformer.costs.model_sizes import model_size
    from transformer.models.registry import published_sizes

    size, counted = published_sizes()[name], model_size(name)
    values = size.config_values
    layers = [values[key] for key in ("layers", "encoder_layers", "decoder_layers") if key in values]
    return {
        "name": name,
        "family": size.family,
        "layers": sum(layers),
        "width": values["width"],
        "heads": values["heads"],
        "feed_forward": values["feed_forward"],
        "vocabulary": size.vocab_size,
        "context": size.context_length,
        "parameters": counted.num_parameters,
        "parameters_without_norms_and_biases": counted.num_matrix_parameters,
        "published_parameters": size.published_parameters,
        "flops_per_token": counted.flops_per_token,
        "training_flops": size.training_flops,
        "training_tokens": size.training_tokens,
        "citation": size.citation,
        "notes": list(size.notes),
        "values": to_config(values),
    }


def format_size_table(entries: list[dict[str, Any]]) -> str:
    """Return the entries as aligned columns, with their notes below."""
    lines = [align_columns([dict(zip(COLUMNS, COLUMNS, strict=True)), *map(_format_row, entries)], LEFT_ALIGNED)]
    lines += ["", *textwrap.wrap(FLOPS_NOTE, 116)]
    names_of_note: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry["notes"]:
            names_of_note.setdefault(note, []).append(entry["name"])
    for note, names in names_of_note.items():
        lines += textwrap.wrap(f"{', '.join(names)}: {note}.", 116, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def run_size_entry(sizes: "TrainedModelSize") -> dict[str, Any]:
    """Return the sizes of a run as plain values."""
    return {
        "family": sizes.family_name,
        "task": sizes.task_name,
        "step": sizes.step,
        "parameters": sizes.num_parameters,
        "active_parameters": sizes.num_active_parameters,
        "parts": dict(sizes.num_parameters_by_part),
        "state": sizes.num_state_elements,
        "flops_per_step": sizes.flops,
    }


def format_run_sizes(sizes: "TrainedModelSize") -> str:
    """Return the parts of a run's model as aligned columns, the total, and the FLOPs of a step."""
    parts = {**sizes.num_parameters_by_part, "total": sizes.num_parameters}
    name, count = max(map(len, ("part", *parts))), max(len("parameters"), len(f"{sizes.num_parameters:,}"))
    lines = [f"{sizes.family_name} on {sizes.task_name}, checkpoint of step {sizes.step}"]
    lines += [f"{'part':<{name}}  {'parameters':>{count}}   share"]
    lines += [
        f"{part:<{name}}  {size:>{count},}  {100 * size / max(sizes.num_parameters, 1):5.0f}%"
        for part, size in parts.items()
    ]
    if sizes.num_active_parameters != sizes.num_parameters:
        lines += [f"of which {sizes.num_active_parameters:,} are active for a token, by its selected experts"]
    if sizes.num_state_elements:
        lines += [f"and {sizes.num_state_elements:,} numbers of state, which is not trained"]
    computed = "unknown: they cannot be counted before it runs"
    if sizes.flops is not None:
        computed = f"{sizes.flops:.3e} over the config's largest batch"
    return "\n".join([*lines, f"FLOPs of a training step: {computed}"])


def _format_row(entry: dict[str, Any]) -> dict[str, str]:
    parameters, published = entry["parameters"], entry["published_parameters"]
    sides = [str(entry["values"][key]) for key in ("encoder_layers", "decoder_layers") if key in entry["values"]]
    return {
        "name": entry["name"],
        "family": entry["family"],
        "layers": "+".join(sides) or str(entry["layers"]),
        "width": str(entry["width"]),
        "heads": str(entry["heads"]),
        "parameters": f"{parameters:,}",
        "published": "-" if published is None else _format_count(published),
        "off": "-" if published is None else f"{100 * (parameters / published - 1):+.1f}%",
        "FLOPs/token": _format_scientific(entry["flops_per_token"]),
        "training FLOPs": _format_scientific(entry["training_flops"]),
        "citation": entry["citation"],
    }


def _format_count(count: float) -> str:
    """Format a count as papers do: 1542M, but 1.3B."""
    return f"{count / 1e6:g}M" if count < 1e9 or count % 1e8 else f"{count / 1e9:g}B"


def _format_scientific(number: float | None) -> str:
    return "-" if number is None else f"{number:.2e}"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
