"""A run directory as training leaves it behind: plausible maps, curves and samples, made in a moment."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.speech.log_mel import SAMPLE_RATE
from experiments.speech.wav import encode_wav
from transformer.attention.capture import TopWeights, evenly_spaced_positions, max_pool_map
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.maps.capture_plan import StoredMaps, StoredResolutions, quantize_maps, statistic_names
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

STEPS = (100, 200, 400, 600, 800, 1000, 1300, 1600)
LAYERS, HEADS, PADDED = 3, 4, 20
EXAMPLES = (
    # title, source, target, links "query-key" where "?" makes a link a possible one
    (
        "number → de",
        "<2de> ▁twenty - one ▁thousand ▁three ▁hundred ▁and ▁forty - five </s>",
        "▁ein und zwanzig tausend drei hundert fünf und vierzig </s>",
        "0-3 1-1? 1-2? 2-1 3-4 4-5 5-6 6-10 7-7? 8-8",
    ),
    (
        "date → de",
        "<2de> ▁on ▁Friday , ▁May ▁the ▁seven teenth , ▁nineteen ▁eighty - four </s>",
        "▁am ▁Freitag , ▁dem ▁sieb zehn ten ▁Mai ▁neunzehnhundert vier und achtzig </s>",
        "0-1 1-2 2-3 3-5 4-6 5-7 6-7? 7-4 8-9 9-12 10-11? 11-10",
    ),
    (
        "time → de",
        "<2de> ▁half ▁past ▁seven ▁in ▁the ▁evening </s>",
        "▁halb ▁acht ▁am ▁Abend </s>",
        "0-1 0-2? 1-3 2-4 2-5? 3-6",
    ),
    (
        "amount → de",
        "<2de> ▁sixty - two ▁euros ▁and ▁thirty ▁cents </s>",
        "▁zwei und sechzig ▁Euro ▁und ▁dreißig ▁Cent </s>",
        "0-3 1-2? 2-1 3-4 4-5 5-6 6-7",
    ),
    (
        "date → fr",
        "<2fr> ▁Monday , ▁October ▁the ▁first , ▁two ▁thousand ▁six </s>",
        "▁lundi ▁premier ▁octobre ▁deux ▁mille ▁six </s>",
        "0-1 1-5 2-3 3-7 4-8 5-9",
    ),
    (
        "number → fr",
        "<2fr> ▁ninety - eight ▁thousand ▁four ▁hundred </s>",
        "▁quatre - vingt - dix - huit ▁mille ▁quatre ▁cents </s>",
        "0-1? 2-1? 4-1? 6-3 7-4 8-5 9-6",
    ),
    (
        "time → fr",
        "<2fr> ▁a ▁quarter ▁to ▁nine ▁in ▁the ▁morning </s>",
        "▁neuf ▁heures ▁moins ▁le ▁quart ▁du ▁matin </s>",
        "0-4 1-4? 2-3 3-1? 4-2 5-5 6-7",
    ),
    (
        "ordinal → fr",
        "<2fr> ▁the ▁forty - second ▁time </s>",
        "▁la ▁quarante - deux ième ▁fois </s>",
        "0-1 1-2 2-3 3-4 4-4? 5-5",
    ),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """A fake run: its directory, and the exact maps that its store was given."""

    directory: Path
    sites: tuple[Site, ...]
    labels: AxisLabels
    maps: dict[int, dict[str, np.ndarray]]


def make_sites() -> tuple[Site, ...]:
    source, target, target_input = Axis("source"), Axis("target"), Axis("target_input")
    layers, heads = tuple(map(str, range(LAYERS))), tuple(map(str, range(HEADS)))
    return (
        Site("encoder/self", source, source, layers, heads),
        Site("decoder/self", target, target_input, layers, heads, causal=True),
        Site("decoder/cross", target, source, layers, heads),
    )


def make_labels() -> AxisLabels:
    def parse(link: str) -> GoldAlignment:
        query, key = link.rstrip("?").split("-")
        return GoldAlignment(int(query), int(key), not link.endswith("?"))

    targets = tuple(tuple(target.split()) for _, _, target, _ in EXAMPLES)
    return AxisLabels(
        tokens={
            "source": tuple(tuple(source.split()) for _, source, _, _ in EXAMPLES),
            "target": targets,
            "target_input": tuple(("<s>", *target[:-1]) for target in targets),
        },
        titles=tuple(title for title, *_ in EXAMPLES),
        gold_alignments={"decoder/cross": tuple(tuple(map(parse, links.split())) for *_, links in EXAMPLES)},
    )


def make_maps(step: int, sites: tuple[Site, ...], labels: AxisLabels, seed: int = 0) -> dict[str, np.ndarray]:
    """Heads that find their habit at different moments: aligned, diagonal, sinking or diffuse."""
    maps = {}
    for number, site in enumerate(sites):
        maps[site.name] = np.zeros((LAYERS, len(EXAMPLES), HEADS, PADDED, PADDED), np.float32)
        for layer, example, head in np.ndindex(LAYERS, len(EXAMPLES), HEADS):
            queries = len(labels.tokens[site.query.name][example])
            keys = len(labels.tokens[site.key.name][example])
            rng = np.random.default_rng([number, layer, head, example, *([seed] if seed else [])])
            # Another seed finds the same habits in other heads, at other steps.
            own = (head + seed) % HEADS
            habit = make_habit(site, labels, example, (layer * HEADS + own) % 5)
            onset = 150 * (1 + (layer * 7 + own * 3 + number * 2 + seed) % 6)
            strength = 7 / (1 + np.exp(-(step - onset) / 120))
            logits = strength * habit + rng.normal(size=(queries, keys)) * (1.1 - 0.4 * step / STEPS[-1])
            if site.causal:
                logits[np.triu_indices(queries, 1, keys)] = -np.inf
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            maps[site.name][layer, example, head, :queries, :keys] = weights
    return maps


def make_habit(site: Site, labels: AxisLabels, example: int, kind: int) -> np.ndarray:
    queries = len(labels.tokens[site.query.name][example])
    keys = len(labels.tokens[site.key.name][example])
    rows, columns = np.mgrid[:queries, :keys]
    if site.name == "decoder/cross" and kind in (1, 3):
        habit = np.zeros((queries, keys))
        for query, key, sure in labels.gold_alignments[site.name][example]:
            habit[query, key] = 1.0 if sure else 0.75
        habit[-1, -1] = 1
        return habit if kind == 1 else 0.6 * habit
    if kind == 0:
        return np.exp(-np.square(rows * (keys - 1) / max(1, queries - 1) - columns) / 3)
    if kind == 1:
        return (columns == rows - 1) * 1.0
    if kind == 2:
        return (columns == 0) * 0.8
    if kind == 3:
        return np.exp(-np.abs(rows - columns - 1) / 2)
    return 0.25 * (columns == keys - 1)


def write_run(directory: Path, steps: tuple[int, ...] = STEPS, seed: int = 0) -> Run:
    sites, labels = make_sites(), make_labels()
    store = MapStore.open(directory / "maps", sites, labels, "0f" * 32)
    maps = {}
    for step in steps:
        maps[step] = make_maps(step, sites, labels, seed)
        store.write(step, make_kept(store, maps[step]))
    write_record(directory, "demo" if seed == 0 else f"demo, seed {seed}", seed)
    return Run(directory, sites, labels, maps)


def make_kept(store: MapStore, maps: dict[str, np.ndarray]) -> dict[str, StoredMaps]:
    """What training keeps of whole maps [layer, example, head, query, key], padded or not."""
    kept = {}
    for site in store.sites:
        level = store.levels(site.name)[-1]
        weights = maps[site.name]
        statistics = make_statistics(weights, site, store.labels)
        if level.name == "full":
            kept[site.name] = quantize_maps(
                weights[..., : level.num_queries, : level.num_keys], store.levels(site.name), statistics
            )
            continue
        pooled = max_pool_map(weights, level.query_block, level.key_block)
        rows, k = list(evenly_spaced_positions(weights.shape[-2], store.resolutions.num_rows)), store.resolutions.top_k
        order = np.argsort(-weights, axis=-1, kind="stable")[..., :k].astype(np.int32)
        top = TopWeights(order, np.take_along_axis(weights, order, axis=-1))
        kept[site.name] = quantize_maps(pooled, store.levels(site.name), statistics, weights[..., rows, :], top)
    return kept


def make_statistics(weights: np.ndarray, site: Site, labels: AxisLabels) -> dict[str, np.ndarray]:
    """Means over the rows of each example, of the statistics that this site's store has: [layer, example, head]."""
    found = {name: np.full(weights.shape[:3], np.nan, np.float32) for name in statistic_names(site, labels)}
    for example in range(weights.shape[1]):
        queries, keys = (len(labels.tokens[axis.name][example]) for axis in (site.query, site.key))
        own = weights[:, example, :, :queries, :keys].astype(np.float64)
        rows, columns = np.mgrid[:queries, :keys]
        values = {
            "entropy": -np.where(own > 0, own * np.log(np.where(own > 0, own, 1)), 0).sum(axis=-1).mean(axis=-1),
            "largest_weight": own.max(axis=-1).mean(axis=-1),
            "distance": make_distance(own, site),
            "first_token": own[..., 0].mean(axis=-1),
            "previous_token": (own * (columns == rows - 1)).sum(axis=(-2, -1)) / max(1, queries - 1),
            "diagonal": (own * (columns == rows)).sum(axis=-1).mean(axis=-1),
        }
        for name in found.keys() & values.keys():
            found[name][:, example] = values[name]
    return found


def make_distance(own_LxHxQxK: np.ndarray, site: Site) -> np.ndarray:
    """How far a head looks, in positions; on one grid in patches, without the class token on either side."""
    rows, columns = np.mgrid[: own_LxHxQxK.shape[-2], : own_LxHxQxK.shape[-1]]
    apart, axis = np.abs(rows - columns), site.key
    if site.query == axis and axis.shape is not None:
        own_LxHxQxK = own_LxHxQxK[..., axis.num_leading_positions :, axis.num_leading_positions :]
        places = np.indices(axis.shape).reshape(2, -1)
        apart = np.hypot(*(places[:, :, None] - places[:, None]))
    return ((own_LxHxQxK * apart).sum(axis=-1) / own_LxHxQxK.sum(axis=-1)).mean(axis=-1)


def write_record(directory: Path, name: str, seed: int = 0) -> None:
    """What a run writes beside its maps."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"name": name, "steps": 1600, "model": {"layers": 3, "norm_placement": "pre"}, "seed": seed}
    (directory / "config.json").write_text(json.dumps(config))
    environment = {
        "devices": {"platform": "cpu", "kind": "cpu", "count": 1},
        "started": "2025-11-21T10:00:00",
    }
    (directory / "environment.json").write_text(json.dumps([environment]))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in make_metrics()))
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in make_samples()))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def write_image_run(directory: Path) -> Run:
    """Two small images in four by four patches behind a class token: heads look at a bright disc, or nearby."""
    patches = Axis("patches", AxisKind.GRID, shape=(4, 4), stride=8.0, num_leading_positions=1)
    site = Site("encoder/self", patches, patches, ("0", "1"), ("0", "1", "2"))
    y, x = np.mgrid[:32, :32]
    discs = [np.exp(-(np.square(x - a) + np.square(y - b)) / 60) for a, b in ((9, 20), (22, 8))]
    images = np.stack([np.stack([40 + 200 * disc, 30 + 6 * x, 50 + 5 * y], axis=-1) for disc in discs])
    names = ("[CLS]", *(f"patch {row + 1},{column + 1}" for row in range(4) for column in range(4)))
    labels = AxisLabels(
        {"patches": (names,) * 2}, ("disc left", "disc right"), images={"patches": images.astype(np.uint8)}
    )
    light = np.stack([disc.reshape(4, 8, 4, 8).mean(axis=(1, 3)).reshape(16) for disc in discs])
    places = np.array([(index // 4, index % 4) for index in range(16)])
    near = -np.square(places[:, None] - places[None]).sum(axis=-1) / 2
    maps = {}
    store = MapStore.open(directory / "maps", (site,), labels, "0f" * 32)
    for step in (10, 40):
        logits = np.random.default_rng(step).normal(size=(2, 2, 3, 17, 17)) * 0.3
        logits[:, :, 0, :, 1:] += step / 8 * light[None, :, None, :]
        logits[:, :, 1, 1:, 1:] += step / 20 * near
        logits[:, :, 2, :, 0] += step / 20
        maps[step] = {site.name: softmax(logits)}
        store.write(step, make_kept(store, maps[step]))
    write_record(directory, "images")
    return Run(directory, (site,), labels, maps)


def write_agent_run(directory: Path) -> Run:
    """Two episodes of at most three steps, each step with an image of its own in two by two regions."""
    region = Axis("region", AxisKind.GRID, shape=(2, 2), stride=3.0)
    site = Site("agent/attention", Axis("step", AxisKind.STEPS), region, ("0",), ("0",))
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 6, 6, 3), np.uint8)
    steps = (("1 look", "2 wave", "3 wait"), ("1 look", "2 wave"))
    names = {"step": steps, "region": (region.names() or (),) * 2}
    labels = AxisLabels(names, ("a handshake", "no handshake"), images={"region": images})
    maps = {1: {site.name: np.full((1, 2, 1, 3, 4), 0.25, np.float32)}}
    store = MapStore.open(directory / "maps", (site,), labels, "0f" * 32)
    store.write(1, make_kept(store, maps[1]))
    write_record(directory, "agent")
    return Run(directory, (site,), labels, maps)


def spoken_tone(frames: int) -> np.ndarray:
    """A tone of so many frames of 0.04 seconds."""
    return 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(0.04 * SAMPLE_RATE) * frames) / SAMPLE_RATE)


def write_speech_run(directory: Path) -> Run:
    """Words that are heard one after another in up to 2.4 seconds of sound, a frame every 0.04 seconds."""
    frames, words = Axis("frames", AxisKind.FRAMES, stride=0.04), Axis("words")
    sites = (
        Site("encoder/self", frames, frames, ("0", "1"), ("0", "1")),
        Site("decoder/cross", words, frames, ("0", "1"), ("0", "1")),
    )
    lengths = (60, 45)
    said = (("▁the", "▁cat", "▁sat", "▁on", "▁the", "▁mat", "</s>"), ("▁good", "▁morning", "</s>"))
    spectrogram = np.full((2, 40, 240), -9.0, np.float32)
    rng = np.random.default_rng(0)
    for example, (length, tokens) in enumerate(zip(lengths, said, strict=True)):
        time, band = np.arange(4 * length), np.arange(40)[:, None]
        voice = np.sin(np.pi * time * (len(tokens) - 1) / (4 * length)) ** 2
        formants = sum(np.exp(-np.square(band - f - 3 * np.sin(time / 17)) / 4) for f in (6, 14, 26))
        spectrogram[example, :, : 4 * length] = -8 + 6 * voice * formants + 0.4 * rng.normal(size=(40, 4 * length))
    labels = AxisLabels(
        {"frames": tuple(tuple(f"frame {n}" for n in range(length)) for length in lengths), "words": said},
        ("six words", "two words"),
        spectrograms={"frames": spectrogram},
        sounds={"frames": tuple(encode_wav(spoken_tone(length)) for length in lengths)},
    )
    store = MapStore.open(directory / "maps", sites, labels, "0f" * 32)
    maps = {}
    for step in (10, 40):
        maps[step] = {}
        for site in sites:
            queries = 60 if site.query == frames else 7
            logits = rng.normal(size=(2, 2, 2, queries, 60)) * 0.5
            for example in range(2):
                own = lengths[example] if site.query == frames else len(said[example])
                center = (np.arange(queries)[:, None] + 0.5) * lengths[example] / own
                near = -np.square(np.arange(60) - center) / 18
                logits[:, example, 0] += step / 10 * np.maximum(near, -3)
                logits[:, example, ..., lengths[example] :] = -np.inf
            maps[step][site.name] = softmax(logits)
        store.write(step, make_kept(store, maps[step]))
    write_record(directory, "speech")
    return Run(directory, sites, labels, maps)


def write_long_run(directory: Path, positions: int = 500, cells: tuple[int, ...] = (64, 128)) -> Run:
    """A causal site that is too long to be kept whole: a sink, a band and a few far keys."""
    axis = Axis("text")
    site = Site("decoder/self", axis, axis, ("0", "1"), ("0", "1", "2"), causal=True)
    labels = AxisLabels({"text": (tuple(f"▁word{n}" for n in range(positions)),)}, ("long",))
    store = MapStore.open(directory / "maps", (site,), labels, "0f" * 32, StoredResolutions(cells, num_rows=4, top_k=5))
    rows, columns = np.mgrid[:positions, :positions]
    maps = {}
    for step in (10, 40):
        logits = np.random.default_rng(step).normal(size=(2, 1, 3, positions, positions))
        logits[:, :, 0, :, 0] += step / 6
        logits[:, :, 1] -= step / 400 * np.abs(rows - columns)
        logits[:, :, 2] += step / 5 * (columns == rows // 2)
        maps[step] = {site.name: softmax(np.where(columns > rows, -np.inf, logits))}
        store.write(step, make_kept(store, maps[step]))
    write_record(directory, "long")
    return Run(directory, (site,), labels, maps)


def make_metrics() -> list[dict]:
    rng = np.random.default_rng(0)
    lines: list[dict] = []
    for step in range(10, 1601, 10):
        loss = 0.25 + 5.6 * np.exp(-step / 260)
        rate = 2e-3 * min(step / 400, (400 / step) ** 0.5)
        noise = rng.normal(size=3)
        train = {
            "loss": loss + 0.06 * noise[0] * loss,
            "learning_rate": rate,
            "gradient_norm": 0.6 + 1.5 * np.exp(-step / 300) + 0.08 * abs(noise[1]),
            "tokens_per_second": 11_800 + 260 * noise[2],
        }
        lines.append({"step": step, "split": "train", **train})
        if step % 200 == 0:
            right = 1 / (1 + np.exp(-(step - 700) / 150))
            held = {
                "loss": loss * 1.05 + 0.02,
                "exact_match": right,
                "exact_match_de": right * 0.98,
                "exact_match_fr": min(1.0, right * 1.02),
                "bleu": 100 * (1 - 0.85 * (1 - right)),
            }
            lines.append({"step": step, "split": "validation", **held})
    lines.append({"step": 1600, "split": "test", "exact_match": 0.991, "bleu": 99.1})
    return lines


def make_samples() -> list[dict]:
    samples = []
    for step in range(200, 1601, 200):
        for number, (title, source, target, _) in enumerate(EXAMPLES):
            source_text, target_text = (
                " ".join(text.split()[text.startswith("<") : -1]).replace(" ", "").replace("▁", " ").strip()
                for text in (source, target)
            )
            wrong = number >= step // 200
            output = " ".join(target_text.split()[::-1]) if wrong else target_text
            record = {"step": step, "split": "validation", "source": source_text, "target": target_text}
            samples.append({**record, "output": output, "language": title[-2:]})
    return samples


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A finished run of three sites and eight steps."""
    return write_run(tmp_path_factory.mktemp("run") / "demo")


@pytest.fixture(scope="module")
def other_run(tmp_path_factory) -> Run:
    """The same run from another seed."""
    return write_run(tmp_path_factory.mktemp("other") / "demo, seed 1", seed=1)


@pytest.fixture(scope="module")
def agent_run(tmp_path_factory) -> Run:
    return write_agent_run(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="module")
def image_run(tmp_path_factory) -> Run:
    return write_image_run(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def speech_run(tmp_path_factory) -> Run:
    return write_speech_run(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> Run:
    return write_long_run(tmp_path_factory.mktemp("long"))
