"""Writers: the metrics file survives kills and resumes, the console suits its stream, events are readable."""

import concurrent.futures
import contextlib
import errno
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.png import encode_png
from transformer.maps.capture_plan import quantize_maps, resolution_levels
from transformer.maps.head_grid_image import render_head_grid
from transformer.runs.jsonl_reading import HEAD_RECORDS, read_records
from transformer.storage.storage import DirectoryLost
from transformer.training.writers.console import ConsoleWriter, LogWriter
from transformer.training.writers.jsonl import HeadStatisticsWriter, MetricsWriter
from transformer.training.writers.map_writer import BackgroundMapWriter
from transformer.training.writers.tensorboard import TensorBoardWriter
from transformer.training.writers.writer import (
    BestEffortWriter,
    HeadStatistics,
    Metrics,
    MultiWriter,
    ProbeMaps,
    Progress,
    Report,
    Samples,
    Writer,
)


class Recorder(Writer):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, report: Report) -> None:
        self.calls.append(type(report).__name__)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_metrics_are_one_plain_object_a_line(tmp_path: Path):
    file = MetricsWriter(tmp_path / "metrics.jsonl")
    file.write(Metrics(1, "train", {"loss": np.float32(2.5), "count": np.int64(3)}))
    on_disk = (tmp_path / "metrics.jsonl").read_text()
    assert on_disk == '{"step": 1, "split": "train", "loss": 2.5, "count": 3}\n'
    file.close()


def test_a_number_that_is_not_finite_is_null(tmp_path: Path):
    file = MetricsWriter(tmp_path / "m")
    file.write(Metrics(1, "train", {"a": float("nan"), "b": float("inf"), "c": -np.inf, "d": 1.0}))
    file.close()
    assert read_records(tmp_path / "m") == [{"step": 1, "split": "train", "a": None, "b": None, "c": None, "d": 1.0}]


def test_statistics_of_heads_have_the_figures_that_float32_has(tmp_path: Path):
    writer = HeadStatisticsWriter(tmp_path / "heads.jsonl")
    writer.write(HeadStatistics(3, {"decoder/self": {"entropy": np.array([[1 / 3, np.nan], [2.0, 1e-7]], np.float32)}}))
    writer.close()
    rows = [[0.3333333, None], [2.0, 1e-7]]
    assert read_records(tmp_path / "heads.jsonl", HEAD_RECORDS) == [
        {"step": 3, "site": "decoder/self", "entropy": rows}
    ]


def test_a_metric_cannot_hide_the_step(tmp_path: Path):
    file = MetricsWriter(tmp_path / "m")
    with pytest.raises(ValueError, match="'step'"):
        file.write(Metrics(1, "train", {"step": 3.0}))
    assert (tmp_path / "m").read_bytes() == b""


def test_a_torn_last_line_is_cut_at_every_length(tmp_path: Path):
    path = tmp_path / "m"
    first, second = b'{"step": 1, "split": "a"}\n', b'{"step": 2, "split": "b"}\n'
    for length in range(len(second) - 1):
        path.write_bytes(first + second[:length])
        assert [record["step"] for record in read_records(path)] == [1]
        MetricsWriter(path).close()
        assert path.read_bytes() == first
    # Only its newline is missing, or is another byte: nothing is lost.
    for end in (b"", b"\x0b", b"x"):
        path.write_bytes(first + second[:-1] + end)
        MetricsWriter(path).close()
        assert path.read_bytes() == first + second


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path):
    def report(file: MetricsWriter, steps: range) -> None:
        for step in steps:
            file.write(Metrics(step, "train", {"loss": 1 / step}))
            if step % 4 == 0:
                file.write(Metrics(step, "validation", {"loss": 2 / step}))

    whole = MetricsWriter(tmp_path / "whole")
    report(whole, range(1, 13))
    whole.close()
    stopped = MetricsWriter(tmp_path / "stopped")
    report(stopped, range(1, 11))
    stopped.close()
    with (tmp_path / "stopped").open("ab") as file:
        file.write(b'{"step": 11, "spl')
    resumed = MetricsWriter(tmp_path / "stopped")
    resumed.truncate(after_step=8)
    report(resumed, range(9, 13))
    resumed.close()
    assert (tmp_path / "stopped").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["stopped", "whole"]


def test_a_spoilt_line_inside_is_named_kept_aside_and_heals(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "m"
    content = b'{"step": 1, "split": "a"}\nrubbish\n{"step": 3, "split": "a"}\n'
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"m:2 is no JSON object"):
        read_records(path)
    MetricsWriter(path).truncate(1)
    assert "m is not as the checkpoint of step 1 left it: line 2 cannot be read" in capsys.readouterr().err
    assert path.read_bytes() == b'{"step": 1, "split": "a"}\n'
    assert (tmp_path / "m.damaged-1").read_bytes() == content
    assert read_records(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (b"", "it has 0 of 78 bytes"),
        (b'{"step": 1, "split": "a", "loss": 1}\n', "it has 37 of 78 bytes"),
        (
            b'{"step": 1, "split": "a", "loss": 7}\n{"step": 2, "split": "a", "loss": 0.125}\n',
            "what its lines say has changed",
        ),
    ],
)
def test_lines_that_changed_since_the_checkpoint_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: bytes, says: str
):
    path = tmp_path / "m"
    file = MetricsWriter(path)
    file.write(Metrics(1, "a", {"loss": 1}))
    file.write(Metrics(2, "a", {"loss": 0.125}))
    extent, content = file.extent(), path.read_bytes()
    file.write(Metrics(3, "a", {"loss": 3}))
    file.close()
    resumed = MetricsWriter(path)
    resumed.truncate(2, extent)
    assert path.read_bytes() == content
    assert resumed.extent() == extent
    assert capsys.readouterr().err == ""
    path.write_bytes(found)
    MetricsWriter(path).truncate(2, extent)
    assert says in capsys.readouterr().err
    assert path.read_bytes() == found


def test_plain_lines_without_a_terminal(tmp_path: Path):
    values = {"loss": 2.134, "learning_rate": 3.1e-4, "tokens_per_second": 8200.0, "mfu": 0.31}
    with (tmp_path / "output").open("w") as stream:
        console = ConsoleWriter(3000, stream)
        console.write(Metrics(400, "train", values))
        console.write(Progress(401, 3000))
        console.write(Metrics(1000, "validation", {**values, "loss": float("nan"), "tokens_per_second": 2.5e6}))
        console.write(Samples(1000, "validation", [{"source": "[red]one[/red]", "output": "eins"}]))
        console.close()
    shown = (tmp_path / "output").read_text()
    train, validation, *samples = shown.splitlines()
    assert " ".join(train.split()) == "step 400/3000 train loss 2.134 lr 3.1e-04 tokens/s 8.2k mfu 31%"
    assert validation.split()[3:5] == ["loss", "nan"]
    assert "tokens/s 2.5M" in " ".join(validation.split())
    for label in ("loss", "lr", "tokens/s", "mfu"):
        assert train.index(label) == validation.index(label)
    assert samples == ["  source: [red]one[/red]  output: eins"]
    assert "\x1b" not in shown


def test_details_are_left_out_where_there_is_more_than_details(tmp_path: Path):
    with (tmp_path / "out.txt").open("w") as stream:
        console = ConsoleWriter(10, stream)
        console.write(Metrics(1, "validation", {"loss": 2.0, "test/loss": 3.0, "importance_cv/encoder/0": 0.5}))
        console.write(Metrics(1, "validation", {"greedy/accuracy/5": 0.25, "greedy/area/5": 0.5}))
    first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert "test/loss 3" in first
    assert "importance_cv" not in first
    assert "greedy/accuracy/5 0.25" in second
    assert "greedy/area/5 0.5" in second


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    reader, terminal = os.openpty()
    os.set_blocking(reader, False)
    shown = b""
    with os.fdopen(terminal, "w") as stream:
        console = ConsoleWriter(3000, stream)
        console.write(Progress(400, 3000))
        console.write(Metrics(401, "train", {"loss": 2.134, "learning_rate": 3.1e-4, "tokens_per_second": 8200.0}))
        console.write(Metrics(401, "validation", {"exact_match": 0.5}))
        console.write(Samples(401, "validation", [{"source": "[red]one[/red]"}]))
        console.write(Progress(402, 3000))
        console.close()
        with contextlib.suppress(BlockingIOError):
            while True:  # a read gives no more than a page
                shown += os.read(reader, 100_000)
    os.close(reader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "step 402/3000" in text
    assert "loss 2.134  lr 3.1e-04  tokens/s 8.2k" in text
    assert "exact 0.5" in text
    assert "[red]one[/red]" in text


def test_the_log_has_numbers_and_samples(caplog: pytest.LogCaptureFixture):
    log = LogWriter(10)
    with caplog.at_level(logging.INFO, "transformer"):
        log.write(Metrics(5, "train", {"loss": 1.0}))
        log.write(Samples(5, "validation", [{"source": "one", "output": "eins"}, {"source": "100 % s"}]))
    assert [" ".join(message.split()) for message in caplog.messages] == [
        "step 5/10 train loss 1",
        "step 5 validation source: one output: eins",
        "step 5 validation source: 100 % s",
    ]


def test_sinks_pass_everything_on_and_close_all():
    class Failing(Recorder):
        def close(self) -> None:
            super().close()
            raise OSError("disk full")

    first, second, third = Recorder(), Failing(), Recorder()
    writers = MultiWriter(first, second, third)
    writers.write(Metrics(1, "train", {}))
    writers.write(Samples(1, "train", []))
    writers.write(ProbeMaps(1, {}))
    writers.write(Progress(1, 2))
    with pytest.raises(OSError, match="disk full"):
        writers.close()
    assert first.calls == second.calls == third.calls == ["Metrics", "Samples", "ProbeMaps", "Progress", "close"]


def _events(directory: Path) -> list:
    """The events of a record file, by its published framing: length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted(directory.glob("events*")):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            events.append(Event.FromString(content[place + 12 : place + 12 + length]))
            place += 16 + length
    return events


def _gray_pixels(file: bytes) -> np.ndarray:
    """A PNG of 8-bit gray with filter 0, decoded by the standard's own layout."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(file):
        (length,), kind = struct.unpack_from(">I", file, place), file[place + 4 : place + 8]
        content = file[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", file, place + 8 + length) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        place += 12 + length
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color) == (8, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:]


class Slow(Recorder):
    """A writer that writes maps when it is let, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.let, self.error = threading.Event(), error

    def write(self, report: Report) -> None:
        if not isinstance(report, ProbeMaps):
            super().write(report)
            return
        assert self.let.wait(10)
        if self.error is not None:
            raise self.error
        self.calls.append(f"maps {report.step}")


def test_maps_are_written_in_order_while_the_loop_goes_on():
    slow = Slow()
    background = BackgroundMapWriter(slow)
    background.write(ProbeMaps(1, {}))
    background.write(ProbeMaps(2, {}))
    background.write(Metrics(2, "train", {}))
    assert slow.calls == ["Metrics"]
    slow.let.set()
    background.flush()
    assert slow.calls == ["Metrics", "maps 1", "maps 2", "flush"]
    background.write(ProbeMaps(3, {}))
    background.close()
    assert slow.calls[-2:] == ["maps 3", "close"]


def test_a_write_that_failed_in_the_background_is_not_lost():
    slow = Slow(OSError("disk full"))
    slow.let.set()
    background = BackgroundMapWriter(slow)
    background.write(ProbeMaps(1, {}))
    with pytest.raises(OSError, match="disk full"):
        background.flush()
    background.write(ProbeMaps(1, {}))
    concurrent.futures.wait(background._pending)
    with pytest.raises(OSError, match="disk full"):
        background.write(ProbeMaps(2, {}))
    background.write(ProbeMaps(2, {}))
    with pytest.raises(OSError, match="disk full"):
        background.close()
    assert slow.calls == ["close"]


def test_events_are_on_the_disk_soon_and_not_only_at_the_end(tmp_path: Path):
    board = TensorBoardWriter(tmp_path)
    board.write(Metrics(1, "train", {"first": 1.0}))
    (file,) = tmp_path.iterdir()
    board.write(Metrics(2, "train", {"second": 1.0}))
    assert b"train/second" in file.read_bytes()
    board.close()


def test_an_event_that_cannot_be_written_leaves_the_events_before_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, left = os.write, 20

    def fills(descriptor: int, content: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= (fits := min(left, len(content)))
        return write(descriptor, content[:fits])

    board = TensorBoardWriter(tmp_path)
    board.write(Metrics(1, "train", {"loss": 1.0}))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fills)
        with pytest.raises(OSError, match="No space left"):
            board.write(Metrics(2, "train", {"loss": 2.0}))
    board.write(Metrics(3, "train", {"loss": 3.0}))
    board.close()
    assert [event.step for event in _events(tmp_path) if event.summary.value] == [1, 3]


@pytest.mark.parametrize("report", ["write", "flush", "close", "opening"])
def test_what_an_optional_sink_raises_is_said_once_and_stops_nothing(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Recorder):
        def __getattribute__(self, name: str) -> object:
            if name in (report, "close"):
                raise OSError(errno.EIO, "Input/output error", "events")
            return super().__getattribute__(name)

    def opened() -> Writer:
        if report == "opening":
            raise OSError(errno.EIO, "Input/output error", "events")
        return Failing()

    writer = BestEffortWriter("the events", opened)
    for _ in range(2):
        writer.write(Metrics(1, "train", {}))
        writer.write(Samples(1, "train", []))
        writer.write(ProbeMaps(1, {}))
        writer.write(HeadStatistics(1, {}))
        writer.write(Progress(1, 2))
        writer.flush()
    writer.close()
    said = capsys.readouterr().err
    assert said == "the events: [Errno 5] Input/output error: 'events'; training continues without it\n"


def test_that_the_directory_is_lost_is_no_fault_of_an_optional_sink() -> None:
    class Losing(Recorder):
        def flush(self) -> None:
            raise DirectoryLost("taken over")

    with pytest.raises(DirectoryLost):
        BestEffortWriter("the events", Losing).flush()


def test_events_hold_scalars_samples_and_maps(tmp_path: Path):
    maps_LxBxHxQxK = np.zeros((2, 3, 4, 5, 6), np.float32)
    maps_LxBxHxQxK[1, 0, 2, 3, 4] = 1.0
    board = TensorBoardWriter(tmp_path, resumed_step=6)
    board.write(Metrics(7, "train", {"loss": 2.5}))
    board.write(Samples(7, "validation", [{"source": "one", "output": "eins"}, {"source": "two"}]))
    entropy = np.stack([np.arange(8.0).reshape(2, 4), np.full((2, 4), np.nan), np.full((2, 4), 1.0)], axis=1)
    board.write(
        ProbeMaps(
            7, {"decoder/cross": quantize_maps(maps_LxBxHxQxK, resolution_levels(5, 6, (64,)), {"entropy": entropy})}
        )
    )
    board.write(Progress(7, 9))
    board.close()
    events = _events(tmp_path)
    assert [event.step for event in events if event.HasField("session_log")] == [7]
    values = {value.tag: value for event in events for value in event.summary.value}
    assert values["train/loss"].simple_value == 2.5
    (text,) = values["validation/samples/text_summary"].tensor.string_val
    assert text == b"    source: one\n    output: eins\n    source: two"
    assert [tag for tag in values if tag.startswith("maps/")] == [
        "maps/decoder/cross/0",
        "maps/decoder/cross/1",
    ]
    # The mean over the examples that have the statistic.
    assert values["heads/decoder/cross/entropy/1.2"].simple_value == (6.0 + 1.0) / 2
    pixels = _gray_pixels(values["maps/decoder/cross/0"].image.encoded_image_string)
    # 6 keys at 8 pixels each and a gap of 2: the black square is in layer 1, head 2, query 3, key 4.
    rows, columns = np.nonzero(pixels == 0)
    assert (rows.min(), rows.max()) == (1 * (40 + 2) + 2 + 24, 1 * (40 + 2) + 2 + 31)
    assert (columns.min(), columns.max()) == (2 * (48 + 2) + 2 + 32, 2 * (48 + 2) + 2 + 39)
    assert len(rows) == 64


def test_a_wall_of_odd_values_is_still_a_image():
    weights = np.array([np.nan, np.inf, -np.inf, 2.0, -1.0, 0.5], np.float32).reshape(1, 1, 2, 3)
    image = render_head_grid(weights)
    assert _gray_pixels(encode_png(image)).shape == image.shape == (2 * 16 + 4, 3 * 16 + 4)


def test_neither_tensorflow_nor_torch_is_imported(tmp_path: Path):
    # Both look installed here; only importing them would show.
    for name in ("torch", "tensorflow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("Tensor = object\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np
from transformer.training.writers.tensorboard import TensorBoardWriter
from transformer.training.writers.writer import Metrics, ProbeMaps, Samples
board = TensorBoardWriter({str(tmp_path / "events")!r})
board.write(Metrics(1, "train", {{"loss": 1.0}}))
board.write(Samples(1, "train", [{{"source": "a"}}]))
from transformer.maps.capture_plan import resolution_levels, quantize_maps
maps = quantize_maps(np.zeros((1, 1, 1, 2, 2), np.float32), resolution_levels(2, 2, (64,)))
board.write(ProbeMaps(1, {{"site": maps}}))
board.close()
import json
print(json.dumps([name for name in ("torch", "tensorflow") if name in sys.modules]))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []
