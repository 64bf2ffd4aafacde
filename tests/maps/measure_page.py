"""How large and how quick pages are, in a real browser: `make pages`. Prints figures; asserts nothing.

Two stores: 50 steps of 12 x 12 causal heads of 64 x 64, and one step of 24 x 16 heads of 8,192 positions, pooled.
"""

import csv
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from transformer.attention.capture import TopWeights
from transformer.attention.sites import Axis, Site
from transformer.maps.capture_plan import StoredResolutions, quantize_maps
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

REPEATS = 5
SPREAD = 1.5  # standard deviation of the logits

# Milliseconds from a key to the frame in which its maps are drawn.
PRESS = """async (key) => {
    const before = document.body.dataset.shown;
    const began = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    while (document.body.dataset.shown === before || document.body.dataset.shown !== location.hash)
        await new Promise((done) => setTimeout(done, 0));
    const drawn = performance.now();
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return [drawn - began, performance.now() - began];
}"""
PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Rows that sum to one."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def causal_run(folder: Path, *, steps: int, layers: int, heads: int, positions: int) -> Path:
    """Heads whose logits drift from step to step, each row a softmax over what it may see."""
    names = tuple(map(str, range(max(layers, heads))))
    site = Site("decoder/self", Axis("tokens"), Axis("tokens"), names[:layers], names[:heads], causal=True)
    labels = AxisLabels({"tokens": (tuple(f"token{n}" for n in range(positions)),)}, ("a text",))
    store = MapStore.open(folder / "maps", (site,), labels, "abc")
    rng = np.random.default_rng(0)
    hidden = np.where(np.tri(positions), 0, -np.inf)
    logits = rng.normal(size=(layers, 1, heads, positions, positions))
    for step in range(steps):
        drift = rng.normal(size=logits.shape)
        logits = 0.9 * logits + np.sqrt(1 - 0.9**2) * drift
        store.write(step * 100, {site.name: quantize_maps(softmax(SPREAD * logits + hidden), store.levels(site.name))})
    return records(folder, steps)


def long_run(folder: Path, *, layers: int, heads: int, positions: int, cells: int) -> Path:
    """Maps too long to be whole: what the pyramid, some rows and the top of each row leave of them."""
    names = tuple(map(str, range(max(layers, heads))))
    site = Site("decoder/self", Axis("tokens"), Axis("tokens"), names[:layers], names[:heads], causal=True)
    labels = AxisLabels({"tokens": (tuple(f"token{n}" for n in range(positions)),)}, ("a long text",))
    sides = tuple(64 << power for power in range(8) if 64 << power <= cells)
    store = MapStore.open(folder / "maps", (site,), labels, "abc", StoredResolutions(sides, num_rows=8, top_k=8))
    rng = np.random.default_rng(1)
    block = positions // cells
    # The largest of each block of a softmax row over so many positions, drawn directly: nobody holds the whole map.
    coarse = np.exp(SPREAD * (rng.normal(size=(layers, 1, heads, cells, cells)) + 2)) / (positions * 4)
    coarse = np.minimum(1, np.where(np.tri(cells), coarse, 0)).astype(np.float32)
    rows = softmax(SPREAD * rng.normal(size=(layers, 1, heads, 8, positions)))
    keys = np.sort(rng.integers(0, positions, (layers, 1, heads, positions, 8)), axis=-1).astype(np.int32)
    largest = -np.sort(-rng.random((layers, 1, heads, positions, 8), np.float32) / 50, axis=-1)
    assert block == store.levels(site.name)[-1].query_block
    kept = quantize_maps(coarse, store.levels(site.name), {}, rows, TopWeights(keys, largest))
    store.write(0, {site.name: kept})
    return records(folder, 1)


def records(folder: Path, steps: int) -> Path:
    """The rest of a run directory."""
    lines = [{"step": step * 100, "split": "train", "loss": 5 / (1 + step)} for step in range(max(steps, 2))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps({"name": folder.name}))
    return folder


def opened(browser: Browser, path: Path) -> tuple[Page, dict[str, float]]:
    """A fresh page, with milliseconds to its first paint, until its maps are drawn, and until all of it is."""
    page = browser.new_page(viewport={"width": 1360, "height": 1000})
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("body[data-shown]", timeout=60_000)
    whole = page.evaluate("performance.now()")
    page.wait_for_timeout(300)
    drawn = page.evaluate("performance.getEntriesByName('maps drawn')[0].startTime")
    return page, {"first paint": page.evaluate(PAINT), "maps drawn": drawn, "all drawn": whole}


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def furthest(page: Page, store: MapStore, folder: Path) -> float:
    """The largest difference between what the page says of its open head and what is stored."""
    address = {part.split("=")[0]: part.split("=")[1] for part in page.evaluate("location.hash.slice(1)").split("&")}
    with page.expect_download() as downloading:
        page.click("#export-csv")
    downloading.value.save_as(folder / "head.csv")
    stored = store.read("decoder/self", int(address["step"]))[0, int(address["layer"]), int(address["head"])]
    rows = list(csv.DictReader((folder / "head.csv").read_text(encoding="utf-8-sig").splitlines()))
    return max(abs(float(row["weight"]) - stored[place(row, "query"), place(row, "key")]) for row in rows)


def place(row: Mapping[str, str], side: str) -> int:
    """The position that a row of the export names."""
    return int(row[side]) - 1


def measure(folder: Path, browser: Browser, name: str, path: Path) -> dict[str, Any]:
    """Size, opening and a change of step of one page."""
    pages = [opened(browser, path) for _ in range(REPEATS)]
    found: dict[str, Any] = {"megabytes": path.stat().st_size / 1e6, **medians([times for _, times in pages])}
    page = pages[-1][0]
    if page.evaluate("document.getElementById('step').max") != "0":
        presses = [page.evaluate(PRESS, "ArrowLeft") for _ in range(20)]
        found["step change"] = statistics.median(drawn for drawn, _ in presses)
        found["step change, slowest"] = max(drawn for drawn, _ in presses)
        found["step change, two frames on"] = statistics.median(painted for _, painted in presses)
    for one, _ in pages[:-1]:
        one.close()
    left_out = page.locator("#left-out")
    found["left out"] = left_out.inner_text() if left_out.is_visible() else "nothing"
    if name == "causal":
        store = MapStore.open_existing(folder / "causal" / "maps")
        found["drawn from stored, at most"] = furthest(page, store, folder)
    page.close()
    return found


def main() -> None:
    """Make the runs, write their pages, open them, print."""
    executable = shutil.which("chromium")
    if executable is None:
        raise SystemExit("error: no chromium on PATH: install Debian's package chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for name in ("causal", "long"):
            (folder / name).mkdir()
        runs = {
            "causal": causal_run(folder / "causal", steps=50, layers=12, heads=12, positions=64),
            "long": long_run(folder / "long", layers=24, heads=16, positions=8192, cells=256),
        }
        for name, run in runs.items():
            began = time.perf_counter()
            path = write_report(run)
            writing = {"seconds to write": time.perf_counter() - began}
            found = writing | measure(folder, browser, name, path)
            print(f"{name}: " + "; ".join(f"{key} {said(value)}" for key, value in found.items()), flush=True)
        browser.close()


def said(value: Any) -> str:
    """A figure as a person reads it: milliseconds whole, small ones with their digits."""
    return value if isinstance(value, str) else f"{value:.3g}"


if __name__ == "__main__":
    main()
