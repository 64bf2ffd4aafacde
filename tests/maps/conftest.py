"""A run directory as training leaves it behind: plausible maps, curves and samples, made in a moment."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels, Link

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
    labels: Labels
    maps: dict[int, dict[str, np.ndarray]]


def make_sites() -> tuple[Site, ...]:
    source, target, target_input = Axis("source"), Axis("target"), Axis("target_input")
    layers, heads = tuple(map(str, range(LAYERS))), tuple(map(str, range(HEADS)))
    return (
        Site("encoder/self", source, source, layers, heads),
        Site("decoder/self", target, target_input, layers, heads, causal=True),
        Site("decoder/cross", target, source, layers, heads),
    )


def make_labels() -> Labels:
    def parse(link: str) -> Link:
        query, key = link.rstrip("?").split("-")
        return Link(int(query), int(key), not link.endswith("?"))

    targets = tuple(tuple(target.split()) for _, _, target, _ in EXAMPLES)
    return Labels(
        tokens={
            "source": tuple(tuple(source.split()) for _, source, _, _ in EXAMPLES),
            "target": targets,
            "target_input": tuple(("<s>", *target[:-1]) for target in targets),
        },
        titles=tuple(title for title, *_ in EXAMPLES),
        links={"decoder/cross": tuple(tuple(map(parse, links.split())) for *_, links in EXAMPLES)},
    )


def make_maps(step: int, sites: tuple[Site, ...], labels: Labels) -> dict[str, np.ndarray]:
    """Heads that find their habit at different moments: aligned, diagonal, sinking or diffuse."""
    maps = {}
    for number, site in enumerate(sites):
        maps[site.name] = np.zeros((LAYERS, len(EXAMPLES), HEADS, PADDED, PADDED), np.float32)
        for layer, example, head in np.ndindex(LAYERS, len(EXAMPLES), HEADS):
            queries = len(labels.tokens[site.query.name][example])
            keys = len(labels.tokens[site.key.name][example])
            rng = np.random.default_rng([number, layer, head, example])
            habit = make_habit(site, labels, example, (layer * HEADS + head) % 5)
            onset = 150 * (1 + (layer * 7 + head * 3 + number * 2) % 6)
            strength = 7 / (1 + np.exp(-(step - onset) / 120))
            logits = strength * habit + rng.normal(size=(queries, keys)) * (1.1 - 0.4 * step / STEPS[-1])
            if site.causal:
                logits[np.triu_indices(queries, 1, keys)] = -np.inf
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            maps[site.name][layer, example, head, :queries, :keys] = weights
    return maps


def make_habit(site: Site, labels: Labels, example: int, kind: int) -> np.ndarray:
    queries = len(labels.tokens[site.query.name][example])
    keys = len(labels.tokens[site.key.name][example])
    rows, columns = np.mgrid[:queries, :keys]
    if site.name == "decoder/cross" and kind in (1, 3):
        habit = np.zeros((queries, keys))
        for query, key, sure in labels.links[site.name][example]:
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


def write_run(directory: Path, steps: tuple[int, ...] = STEPS) -> Run:
    sites, labels = make_sites(), make_labels()
    directory.mkdir(parents=True, exist_ok=True)
    store = MapStore.open(directory / "maps", sites, labels, "0f" * 32)
    maps = {}
    for step in steps:
        maps[step] = make_maps(step, sites, labels)
        store.write(step, maps[step])
    config = {"name": "demo", "steps": 1600, "model": {"layers": 3, "norm_placement": "pre"}, "seed": 0}
    (directory / "config.json").write_text(json.dumps(config))
    environment = {
        "devices": {"platform": "cpu", "kind": "cpu", "count": 1},
        "started": "2025-11-21T10:00:00",
    }
    (directory / "environment.json").write_text(json.dumps([environment]))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in make_metrics()))
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in make_samples()))
    return Run(directory, sites, labels, maps)


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
    return write_run(tmp_path_factory.mktemp("run"))
