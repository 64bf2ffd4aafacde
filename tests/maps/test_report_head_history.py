"""What the page is told of heads over training: every value, role and change, and nothing that is not there."""

import base64
import gzip
import json

import numpy as np
import pytest

from transformer.config import UserError
from transformer.maps.report.head_history import (
    COLUMNS,
    StatisticsTable,
    change_points,
    encode_table,
    history_payload,
    last_step_roles,
    probe_tables,
    read_head_statistics,
    training_table,
)
from transformer.maps.store import MapStore
from transformer.runs.run_directory import RunDirectory


@pytest.fixture(scope="module")
def store(run) -> MapStore:
    return MapStore.open_existing(run.directory / "maps")


def decode(facts: dict, text: str, heads: tuple[int, int]) -> np.ndarray:
    """The values of a block, read as the page reads them."""
    packed = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8).astype(np.int64)
    codes = (256 * packed[: packed.size // 2] + packed[packed.size // 2 :]).reshape(
        len(facts["names"]), *heads, len(facts["steps"])
    )
    low, high = np.array(facts["ranges"]).T[:, :, None, None, None]
    return np.where(codes == 65_535, np.nan, low + (high - low) * codes / 65_534)


def test_a_table_keeps_its_values_and_what_is_not_defined():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 2, 4, 50)).astype(np.float32) * np.array([1, 1e-4, 1e5])[:, None, None, None]
    values[1, 0, 2, 7:] = np.nan
    values[2] = 5.0
    table = StatisticsTable("mean", ("a", "b", "c"), tuple(range(50)), values)
    facts, text = encode_table(table)
    there = decode(facts, text, (2, 4))
    assert (np.isnan(there) == np.isnan(values)).all()
    span = np.nanmax(values, axis=(1, 2, 3)) - np.nanmin(values, axis=(1, 2, 3))
    error = np.nanmax(np.abs(there - values), axis=(1, 2, 3))
    assert (error <= span / 65_534 + 1e-6 * np.nanmax(np.abs(values), axis=(1, 2, 3))).all()
    assert (there[2] == 5.0).all()
    json.dumps(facts, allow_nan=False)


def test_the_page_is_told_the_statistics_of_the_store(run, store):
    facts, blocks = history_payload(store, RunDirectory(run.directory), 25_000_000)
    texts = {block.name: block.text for block in blocks}
    for number, site in enumerate(store.sites):
        names, values = store.statistics(site.name)
        defined = [name for row, name in enumerate(names) if np.isfinite(values[..., row]).any()]
        tables = {table["source"]: table for table in facts["sites"][number]["tables"]}
        assert set(tables) == {"mean", *map(str, range(8))}
        assert tables["mean"]["names"] == tuple(defined)
        assert tables["mean"]["steps"] == store.steps
        # The oracle: the mean over examples, and each of them, straight from the store.
        columns = [names.index(name) for name in defined]
        expected = np.moveaxis(np.asarray(values, np.float64)[..., columns], (1, 4), (0, 1))
        for source, wanted in (("mean", expected.mean(axis=0)), ("5", expected[5])):
            there = decode(tables[source], texts[f"history-{number}-{source}"], (3, 4))
            np.testing.assert_allclose(there, np.moveaxis(wanted, 1, -1), atol=1e-4)
    assert set(facts["scales"]) == {name for site in facts["sites"] for t in site["tables"] for name in t["names"]}
    assert facts["scales"]["entropy"] == {"words": "entropy", "unit": "nats", "low": 0, "high": None}


def test_roles_and_changes_are_those_of_the_analysis(run, store):
    facts, _ = history_payload(store, RunDirectory(run.directory), 25_000_000)
    roles = last_step_roles(store)
    assert len(roles) > 3
    told = [(store.sites[r["site"]].name, r["layer"], r["head"], r["role"], r["onset"]) for r in facts["roles"]]
    assert told == [(r.site, r.layer, r.head, r.role.value, r.onset_step) for r in roles]
    assert all(f"step {r['onset']}" in r["sentence"] or "since the first" in r["sentence"] for r in facts["roles"])
    names, values = store.statistics("encoder/self")
    curve = np.asarray(values)[:, :, 0, 1, names.index("previous_token")].mean(axis=1)
    expected = [point.step for point in change_points(store.steps, curve)]
    found = {(name, layer, head): steps for name, layer, head, steps in facts["sites"][0]["changes"]}
    assert expected
    assert found["previous_token", 0, 1] == expected


def test_single_examples_give_way_to_the_budget(run, store):
    facts, blocks = history_payload(store, RunDirectory(run.directory), 10_000)
    assert [[table["source"] for table in site["tables"]] for site in facts["sites"]] == [["mean"]] * 3
    assert {block.name for block in blocks} == {f"history-{site}-mean" for site in range(3)}


def test_the_other_run_is_told_too(run, store, other_run):
    facts, blocks = history_payload(
        store, RunDirectory(run.directory), 25_000_000, MapStore.open_existing(other_run.directory / "maps")
    )
    table = next(table for table in facts["sites"][1]["tables"] if table["source"] == "other")
    text = next(block.text for block in blocks if block.name == "history-1-other")
    names, values = MapStore.open_existing(other_run.directory / "maps").statistics("decoder/self")
    row = table["names"].index("entropy")
    expected = np.asarray(values)[..., names.index("entropy")].mean(axis=1)
    np.testing.assert_allclose(decode(table, text, (3, 4))[row], np.moveaxis(expected, 0, -1), atol=1e-4)


def test_training_batches_are_read_from_their_file(run, store, tmp_path):
    lines = [
        {"step": 0, "site": "encoder/self", "entropy": [[1.0] * 4] * 3, "largest_logit": [[None] * 4] * 3},
        {"step": 5, "site": "encoder/self", "entropy": [[2.0] * 4] * 3, "largest_logit": [[0.5] * 4] * 3},
        {"step": 5, "site": "nowhere", "entropy": [[2.0]]},
        # A resumed run writes a step again.
        {"step": 5, "site": "encoder/self", "entropy": [[3.0] * 4] * 3, "largest_logit": [[0.5] * 4] * 3},
    ]
    (tmp_path / "heads.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "si')
    (table,) = training_table(read_head_statistics(tmp_path / "heads.jsonl")["encoder/self"], store.sites[0])
    assert (table.names, table.steps) == (("entropy", "largest_logit"), (0, 5))
    assert table.values_NxLxHxS[0, 2, 3].tolist() == [1.0, 3.0]
    assert np.isnan(table.values_NxLxHxS[1, 0, 0, 0])
    assert training_table({3: {"entropy": [[1.0]]}}, store.sites[0]) == []
    assert training_table({3: {"entropy": [[1.0]] * 3}}, store.sites[0]) == []
    facts, blocks = history_payload(store, RunDirectory(tmp_path), 25_000_000)
    assert [table["source"] for table in facts["sites"][0]["tables"]][:2] == ["mean", "training"]
    assert "history-0-training" in {block.name for block in blocks}
    assert "history-1-training" not in {block.name for block in blocks}


def test_the_importance_of_a_layers_branches_is_told_of_each_of_its_heads(store):
    record = {
        "importance": [[layer + head / 10 for head in range(4)] for layer in range(3)],
        "branch_importance": [[1.0], [2.0], [3.0]],
        "feed_forward_importance": [[4.0], [5.0], [6.0]],
    }
    (table,) = training_table({7: record}, store.sites[0])
    assert table.names == tuple(record)
    np.testing.assert_allclose(table.values_NxLxHxS[0, :, :, 0], record["importance"])
    for row, name in ((1, "branch_importance"), (2, "feed_forward_importance")):
        np.testing.assert_array_equal(table.values_NxLxHxS[row, :, :, 0], np.repeat(record[name], 4, axis=1))


def test_a_damaged_line_is_named_and_no_file_is_no_fault(tmp_path):
    assert read_head_statistics(tmp_path / "heads.jsonl") == {}
    (tmp_path / "heads.jsonl").write_text('nonsense\n{"step": 1, "site": "a"}\n')
    with pytest.raises(UserError, match=r"heads\.jsonl:1 is no JSON object with step and site"):
        read_head_statistics(tmp_path / "heads.jsonl")


@pytest.mark.parametrize("table", ["[[1.0, 2.0], [3.0]]", "[[], [1.0]]", "[[true]]", "[[[1.0]]]", "[1.0]"])
def test_a_ragged_table_is_named(tmp_path, table):
    (tmp_path / "heads.jsonl").write_text(f'{{"step": 1, "site": "a", "entropy": {table}}}\n')
    with pytest.raises(UserError, match=r"heads\.jsonl:1 holds 'entropy', which is not a list of lists of numbers"):
        read_head_statistics(tmp_path / "heads.jsonl")


def test_a_folder_is_no_file_of_records(tmp_path):
    (tmp_path / "heads.jsonl").mkdir()
    with pytest.raises(UserError, match=r"heads\.jsonl is no regular file, but a folder: it is not read"):
        read_head_statistics(tmp_path / "heads.jsonl")


@pytest.mark.parametrize("value", ["1.7e308", "-1.7976931348623157e308", "1e-320", "17", "null", "NaN"])
def test_every_number_of_a_double_is_one(tmp_path, value):
    (tmp_path / "heads.jsonl").write_text(f'{{"step": 1, "site": "a", "entropy": [[{value}]]}}\n')
    ((found,),) = read_head_statistics(tmp_path / "heads.jsonl")["a"][1]["entropy"]
    assert found == (None if value in ("null", "NaN") else float(value))


def test_a_line_with_a_key_twice_is_named(tmp_path):
    (tmp_path / "heads.jsonl").write_text('{"step": 1, "step": 2, "site": "a"}\n{"step": 3, "site": "a"}\n')
    with pytest.raises(UserError, match=r"heads\.jsonl:1 is no JSON object with step and site"):
        read_head_statistics(tmp_path / "heads.jsonl")


def test_many_steps_are_thinned_to_what_can_be_seen(store):
    records = {step: {"entropy": [[float(step)] * 4] * 3} for step in range(3000)}
    (table,) = training_table(records, store.sites[0])
    assert len(table.steps) == COLUMNS
    assert {0, 2999} <= set(table.steps)
    assert table.values_NxLxHxS[0, 0, 0].tolist() == list(map(float, table.steps))


def test_the_tables_of_a_store_begin_with_their_mean(store):
    tables = probe_tables(store, "encoder/self")
    assert [table.source for table in tables] == ["mean", *map(str, range(8))]
