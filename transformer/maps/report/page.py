"""The page of a run: one self-contained HTML file, which opens from a disk and requests nothing."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.maps.head_matching import match_heads
from transformer.maps.report.axis_metadata import axis_media_blocks, axis_metadata
from transformer.maps.report.head_ablation import head_ablation_payload
from transformer.maps.report.head_history import history_payload
from transformer.maps.report.payload import DataBlock, PagePayload, min_page_size, page_payload
from transformer.maps.report.role_descriptions import roles_data
from transformer.maps.report.run_data import config_entries, initial_view, read_samples
from transformer.maps.store import CorruptMapsError, MapStore
from transformer.pages.template import AssetFolder, render_scripted_page, with_shared_styles
from transformer.runs.metric_curves import read_curves, thin_curve
from transformer.runs.metric_definitions import find_definition
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import parse_path, storage_of

DEFAULT_BUDGET = 25_000_000  # bytes
FOLDER = AssetFolder("maps/report/web")
STYLES = (
    "head_grid.css",
    "head_roles.css",
    "attention_heatmap.css",
    "attention_lines.css",
    "neuron_view.css",
    "head_history.css",
    "images.css",
)
ENTRY = "report.js"
LIVE_RELOAD = "live_reload.js"  # only in a served page


def write_report(
    run_directory: Path,
    budget: int = DEFAULT_BUDGET,
    *,
    compare_to: Path | None = None,
    maps: Path | None = None,
    page: Path | None = None,
) -> Path:
    """Write the page of a run, made by `render`.

    Args:
        run_directory: The run directory.
        budget: The largest size of the page in bytes.
        compare_to: Another run's directory to compare with.
        maps: The store to show, by default the run's own.
        page: The file to write, by default the run's `report.html`.

    Returns:
        The path of the page.

    Raises:
        UserError: If the run has no metrics or no maps, `budget` is too small, or the runs cannot be compared.
    """
    text = render(run_directory, budget, compare_to=compare_to, maps=maps)
    return write_page(RunDirectory(parse_path(run_directory)).report_file if page is None else page, text)


def write_page(path: Path, text: str) -> Path:
    """Write a page atomically, so that no reader sees half of it, and return its path."""
    storage_of(path).replace(path, text.encode())
    return path


def render(
    run_directory: Path,
    budget: int = DEFAULT_BUDGET,
    *,
    compare_to: Path | None = None,
    maps: Path | None = None,
    version: str | None = None,
) -> str:
    """Render the page of a run: curves, samples, statistics of its heads and every stored map.

    If not all maps fit `budget`, evenly spaced steps of thumbnails stay, the first and the last among them, then as
    much of the finer levels as fits; the page lists what is left out. Steps whose maps are damaged are listed and not
    drawn.

    Args:
        run_directory: The run directory.
        budget: The largest size of the page in bytes.
        compare_to: Another run's directory, whose maps the page can be compared with.
        maps: The store to show, by default the run's own.
        version: The version of a served page, which asks its server for newer ones; None for a file.

    Returns:
        The HTML text.

    Raises:
        UserError: If the directory is no run, has no metrics or no maps, if `budget` is too small for one step, or if
            the two runs cannot be compared.
    """
    damaged: list[CorruptMapsError] = []
    while True:
        try:
            return _render_undamaged(run_directory, budget, compare_to, maps, version, damaged)
        except CorruptMapsError as error:
            if error.step is None or any(
                (error.path, error.step) == (known_error.path, known_error.step) for known_error in damaged
            ):
                raise
            damaged.append(error)


def _render_undamaged(
    run_directory: Path,
    budget: int,
    compare_to: Path | None,
    maps: Path | None,
    version: str | None,
    damaged: Sequence[CorruptMapsError],
) -> str:
    """Render the page without the damaged steps."""
    run = RunDirectory.open(run_directory)
    curves = read_curves(run)
    store = _complete_store(run.maps_dir if maps is None else maps, damaged)
    other = None if compare_to is None else _complete_store(RunDirectory(parse_path(compare_to)).maps_dir, damaged)
    facts = _store_facts(store) | _run_facts(run, curves) | {"damageMessages": [str(error) for error in damaged]}
    if compare_to is not None and other is not None:
        facts["otherRun"] = _other_run_facts(compare_to, store, other)
        if facts["otherRun"]["title"] == facts["title"]:
            # Two runs of one name differ in the folders that they are in.
            for run_facts, directory in ((facts["otherRun"], parse_path(compare_to)), (facts, run.path)):
                run_facts["title"] = f"{directory.resolve().parent.name}/{run_facts['title']}"
    facts["headAblation"] = head_ablation_payload(run, store.sites)
    facts["history"], blocks = history_payload(store, run, budget, other)
    return _render_within_budget(budget, facts, blocks, store, other, version)


def render_single_text(
    store: MapStore,
    title: str,
    config: Mapping[str, Any],
    parameters: int,
    budget: int = DEFAULT_BUDGET,
    *,
    projections: tuple[list[dict[str, Any]], list[DataBlock]] | None = None,
) -> str:
    """Render the page of texts that a model was given: the maps of a store with one step, without training data.

    Args:
        store: The maps, with one step.
        title: The title of the page.
        config: The config to show.
        parameters: The number of parameters.
        budget: The largest size of the page in bytes.
        projections: The value norms, queries and keys of the same pass, as
            `transformer.maps.report.projections.encode_projections` returns them.

    Returns:
        The HTML text.

    Raises:
        UserError: If `budget` is too small, or the model has no attention.
    """
    if not store.sites:
        raise UserError(f"{title} is a model without attention: it has no maps to show")
    facts = _store_facts(store) | {
        "title": title,
        "config": config_entries(config),
        "parameters": parameters,
        "singleText": True,
    }
    facts["history"] = {
        "codes": 0,
        "scales": {},
        "sites": [{"tables": [], "changes": []}] * len(store.sites),
        "roles": [],
    }
    facts["projections"], blocks = projections or (None, [])
    return _render_within_budget(budget, facts, blocks, store)


def _render_within_budget(
    budget: int,
    facts: dict[str, Any],
    blocks_without_maps: list[DataBlock],
    store: MapStore,
    other: MapStore | None = None,
    version: str | None = None,
) -> str:
    """Render the page of these facts and blocks, with as much of the maps as fits the budget."""
    blocks_without_maps = [*blocks_without_maps, *axis_media_blocks(store)]
    # The size of the page without maps is taken off their budget.
    bare = facts | {"sites": [_site_facts(store, number, {}) for number in range(len(store.sites))], "codes": 0}
    fixed_size = (
        len(_assemble_page(bare, blocks_without_maps, version).encode())
        + 1500 * len(store.sites)
        + 20 * len(store.steps)
    )
    maps_budget = budget - fixed_size
    payload = page_payload(store, maps_budget if other is None else maps_budget // 2)
    blocks = [*blocks_without_maps, *payload.blocks]
    enough = bool(payload.steps)
    if other is not None:
        theirs = page_payload(
            other, maps_budget - payload.num_bytes, "other", _nearest_steps(payload.steps, other.steps)
        )
        facts["otherRun"] |= {"steps": theirs.steps, "codes": theirs.num_codes, "sites": theirs.sites}
        blocks += theirs.blocks
        enough = enough and bool(theirs.steps)
    if not enough:
        min_size = min_page_size(store) if other is None else 2 * max(min_page_size(store), min_page_size(other))
        raise UserError(
            f"budget={budget} bytes is too small for one step of maps: give at least {fixed_size + min_size + 1000}"
        )
    return _assemble_page(facts | _payload_facts(store, payload), blocks, version)


def _complete_store(path: Path, damaged: Sequence[CorruptMapsError]) -> MapStore:
    store = MapStore.open_existing(path)
    for error in damaged:
        if error.path == store.path and error.step is not None:
            store.exclude_step(error.step)
    if damaged and not store.steps:
        raise damaged[0]
    if not store.sites:
        raise UserError(f"the map store {store.path} is of a model without attention, which has no maps to show")
    if not store.steps:
        raise UserError(f"the map store {store.path} has no complete step yet: let the run reach one, then ask again")
    return store


def _nearest_steps(steps: Sequence[int], candidates: Sequence[int]) -> list[int]:
    """Return the steps of `candidates` that are nearest to one of `steps`."""
    return sorted({min(candidates, key=lambda candidate: abs(candidate - step)) for step in steps})


def _store_facts(store: MapStore) -> dict[str, Any]:
    """Return all that the page shows of a store except the maps themselves, as plain JSON values."""
    return {
        "singleText": False,
        "configName": "",
        "configHash": store.config_hash,
        "device": None,
        "commit": None,
        "started": None,
        "curves": {},
        "metricMeanings": {},
        "samples": [],
        "damageMessages": [],
        "titles": store.labels.titles,
        "tokens": store.labels.tokens,
        "axes": axis_metadata(store),
        "steps": store.steps,
        "omittedSteps": [],
        "initialView": initial_view(store),
        "roles": roles_data(store),
        "headAblation": None,
        "otherRun": None,
        "projections": None,
    }


def _run_facts(run: RunDirectory, curves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that the page shows about the run that produced the maps."""
    config, environment = run.config(), run.facts()
    return {
        "title": run.path.resolve().name,
        "configName": str(config.get("name") or ""),
        "parameters": environment.get("parameters"),
        "device": environment.get("devices"),
        "commit": environment.get("commit"),
        "started": environment.get("started"),
        "config": _config_entries(run),
        "curves": _thin_curves(curves),
        "metricMeanings": _metric_meanings(curves),
        "samples": read_samples(run),
    }


def _config_entries(run: RunDirectory) -> list[tuple[str, str]]:
    """Return the entries of a run's config, and where it was branched off another run, if it was."""
    origin = run.branch_origin()
    return [*config_entries(run.config()), *([] if origin is None else [("branched_from", str(origin))])]


def _metric_meanings(names: Iterable[str]) -> dict[str, str]:
    """Return what each metric with a definition means, with its unit."""
    definitions = {name: find_definition(name) for name in names}
    return {
        name: definition.meaning.replace("`", "") + (f", in {definition.unit}" if definition.unit else "")
        for name, definition in definitions.items()
        if definition is not None
    }


def _thin_curves(curves: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {split: thin_curve(curve) for split, curve in splits.items()} for name, splits in curves.items()}


def _payload_facts(store: MapStore, payload: PagePayload) -> dict[str, Any]:
    return {
        "steps": payload.steps,
        "codes": payload.num_codes,
        "omittedSteps": sorted(set(store.steps) - set(payload.steps)),
        "sites": [_site_facts(store, number, entry) for number, entry in enumerate(payload.sites)],
    }


def _site_facts(store: MapStore, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    site = store.sites[number]
    return {
        "name": site.name,
        "query": site.query.name,
        "key": site.key.name,
        "layers": site.layers,
        "heads": site.heads,
        "causal": site.causal,
        "values": site.values.value,
        "goldAlignments": (store.labels.gold_alignments or {}).get(site.name),
        **entry,
    }


def _other_run_facts(directory: Path, store: MapStore, other: MapStore) -> dict[str, Any]:
    """Return the other run's title, config and curves, and which of its heads is most similar to each of ours.

    Raises:
        UserError: If the runs differ in modules, probe examples or coarsest levels, so that weights cannot be
            subtracted.
    """
    numbers = {site.name: number for number, site in enumerate(store.sites)}
    matches = match_heads(store, other)
    for site, theirs in zip(store.sites, other.sites, strict=True):
        if site.name != theirs.name:
            raise UserError(
                f"compare_to={directory} has {theirs.name} where this run has {site.name}: compare one model"
            )
        for axis in (site.query.name, site.key.name):
            if store.labels.tokens[axis] != other.labels.tokens.get(axis):
                raise UserError(
                    f"compare_to={directory} probed other examples (axis {axis!r} of {site.name}): compare runs of the "
                    "same data, tokenizer and probe"
                )
        own_level, level = (compared.levels(site.name)[0] for compared in (store, other))
        if own_level != level:
            raise UserError(
                f"compare_to={directory} keeps {site.name} in {level.num_queries} x {level.num_keys} cells "
                f"({level.name}) and this run in {own_level.num_queries} x {own_level.num_keys} ({own_level.name}): "
                "compare runs with maps of one size"
            )
    run = RunDirectory.open(directory)
    return {
        "title": directory.resolve().name,
        "config": _config_entries(run),
        "curves": _thin_curves(read_curves(run)),
        "matches": [
            [numbers[match.site], match.layer, match.head, match.other_layer, match.other_head, match.similarity]
            for match in matches
        ],
    }


def _assemble_page(facts: Mapping[str, Any], blocks: Iterable[DataBlock], version: str | None) -> str:
    first, later = _split_blocks(facts, blocks)
    other = f" minus {facts['otherRun']['title']}" if facts["otherRun"] else ""
    return render_scripted_page(
        f"{facts['title']}{other} · attention",
        FOLDER.read("report.html"),
        with_shared_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY, *([] if version is None else [LIVE_RELOAD])),
        facts,
        before_script=_block_elements(first),
        after_script=_block_elements(later),
        version=version,
    )


def _split_blocks(facts: Mapping[str, Any], blocks: Iterable[DataBlock]) -> tuple[list[DataBlock], list[DataBlock]]:
    """Split the blocks into those that the page opens with, before the script, and all others, after it."""
    view = facts["initialView"]
    place = f"-{len(facts['steps']) - 1}-{view['site']}-{view['example']}-"
    parts: tuple[list[DataBlock], list[DataBlock]] = ([], [])
    for block in blocks:
        # Of finer levels, which have a block a layer, the layer that is shown.
        layer = block.name.partition(place)[2].rpartition("-")[2]
        opens = block.name.startswith(f"maps{place}") and layer in ("full", "64", str(view["layer"]))
        parts[0 if opens else 1].append(block)
    return parts


def _block_elements(blocks: Iterable[DataBlock]) -> str:
    return "\n".join(f'<script type="text/plain" id="{block.name}">{block.text}</script>' for block in blocks)
