"""The page that follows a run: what is given out, to whom, and that it is as new as the run."""

import base64
import hashlib
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.maps.conftest import make_kept
from tests.maps.test_page import browser  # noqa: F401  a fixture
from tests.waiting import wait_until
from transformer.config import UserError
from transformer.maps.report import report_server as serve
from transformer.maps.report.page import render
from transformer.maps.report.report_server import PageServer, ServedPage, describe_missing_files, file_versions
from transformer.maps.store import MapStore


@pytest.fixture
def server():
    with PageServer(0, ServedPage(b"<p>page</p>", "one")) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def say(port: int, request: bytes) -> bytes:
    """What the server answers to these very bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_it_gives_out_the_page_and_its_version(server):
    status, headers, body = ask(server.port)
    assert (status, body) == (200, b"<p>page</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]
    assert ask(server.port, "/version")[2] == b"one"
    status, headers, body = ask(server.port, method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, "11", b"")
    server.served_page = ServedPage(b"new", "two")
    assert (ask(server.port)[2], ask(server.port, "/version")[2]) == (b"new", b"two")


def test_it_listens_to_this_machine_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/"


@pytest.mark.parametrize(
    "path",
    [
        "/config.json",
        "/../config.json",
        "/..%2fconfig.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/version/",
        "/?x",
        "/%00",
        "/report.html",
    ],
)
def test_nothing_else_is_there(server, path):
    status, _, body = ask(server.port, path)
    assert status == 404
    assert b"page</p>" not in body


def test_another_name_is_refused(server):
    own = f"127.0.0.1:{server.port}"
    assert ask(server.port, Host=own)[0] == ask(server.port, Host=f"localhost:{server.port}")[0] == 200
    for host in ("example.org", f"example.org:{server.port}", "127.0.0.1", f"127.0.0.1:{server.port + 1}", ""):
        status, _, body = ask(server.port, Host=host)
        assert status == 421
        assert b"page" not in body
    for head in (f"Host: {own}\r\nHost: example.org\r\n", "", f"Host: {own}, example.org\r\n"):
        for path in ("/", "/version"):
            answer = say(server.port, f"GET {path} HTTP/1.0\r\n{head}\r\n".encode())
            assert b" 421 " in answer.splitlines()[0]
            assert b"page" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "<script>"])
def test_it_is_for_reading_alone(server, method):
    answer = say(server.port, f"{method} / HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    assert b" 501 " in answer.splitlines()[0]
    assert b"<script>" not in answer.partition(b"\r\n\r\n")[2]


def drip(connection: socket.socket) -> None:
    for _ in range(1000):
        connection.sendall(b"X: y\r\n")
        time.sleep(0.02)


def test_a_client_that_drips_its_request_is_left():
    with PageServer(0, ServedPage(b"page", "one"), deadline=0.2) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n")
            # Each byte comes well before the timeout of a read.
            with pytest.raises(ConnectionError):
                drip(connection)
        assert ask(server.port)[2] == b"page"
        server.shutdown()


@pytest.mark.parametrize("port", [70_000, -1])
def test_a_port_that_cannot_be_is_refused_in_one_line(port):
    with pytest.raises(UserError, match=f"port={port} cannot be used") as caught:
        PageServer(port, ServedPage(b"", ""))
    assert "\n" not in str(caught.value)


def test_a_taken_port_is_refused_in_one_line(server):
    with pytest.raises(UserError, match=rf"port={server.port} cannot be used \(.*in use\): name another one"):
        PageServer(server.port, ServedPage(b"", ""))


class Live:
    """A run directory that is served by a thread until `close`."""

    def __init__(self, directory: Path, make: Callable[[str], str] | None = None):
        self.directory = directory
        self.make = make or (lambda version: f"page {len(self.rendered)}")
        self.rendered: list[str] = []
        self.before: Callable[[], object] = lambda: None
        self.told: BaseException | None = None
        self.url = ""
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        until(lambda: self.url)
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def serve(self) -> None:
        try:
            serve.serve(
                self.directory,
                self.render,
                port=0,
                announce=lambda url: setattr(self, "url", url),
                pause=0.02,
                quiet=0.02,
            )
        except Exception as error:
            self.told = error

    def render(self, version: str) -> str:
        self.before()
        self.rendered.append(version)
        return self.make(version)

    def end_with(self, fault: BaseException) -> None:
        """Let the next page meet this."""

        def fail() -> None:
            raise fault

        self.before = fail
        log(self.directory)
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()


def log(directory: Path) -> None:
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 10**6, "split": "train", "loss": 1.0}) + "\n")


def until(true, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_it_waits_for_the_run_and_then_follows_it(run, tmp_path):
    (tmp_path / "<b>run").mkdir()
    shutil.copy(run.directory / "config.json", tmp_path / "<b>run")
    live = Live(tmp_path / "<b>run")
    until(lambda: b"first maps" in ask(live.port)[2])
    waiting = ask(live.port)[2].decode()
    style = waiting.partition("<style>")[2].partition("</style>")[0]
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in waiting
    assert "<h1>&lt;b&gt;run</h1>" in waiting
    assert b'http-equiv="refresh"' in ask(live.port)[2]
    assert b"<script" not in ask(live.port)[2]
    # At once: a run lists its first step when the arrays are there, and a copy of a finished one is not in that order.
    Path(shutil.copytree(run.directory / "maps", tmp_path / "copy")).rename(tmp_path / "<b>run" / "maps")
    until(lambda: b"first metrics" in ask(live.port)[2])
    assert live.rendered == []
    shutil.copy(run.directory / "metrics.jsonl", tmp_path / "<b>run")
    until(lambda: ask(live.port)[2] == b"page 1")
    first = ask(live.port, "/version")[2].decode()
    assert first == live.rendered[0]
    # Nothing new, nothing done.
    time.sleep(0.2)
    assert live.rendered == [first]
    log(tmp_path / "<b>run")
    until(lambda: ask(live.port, "/version")[2] == live.rendered[-1].encode() != first.encode())
    assert ask(live.port)[2] != b"page 1"
    live.end_with(KeyboardInterrupt())
    assert live.told is None
    with pytest.raises(ConnectionRefusedError):
        ask(live.port)


def test_a_fault_that_waiting_does_not_mend_is_told(run, tmp_path):
    shutil.copytree(run.directory, tmp_path / "run")
    live = Live(tmp_path / "run")
    until(lambda: live.rendered)
    live.end_with(UserError("budget=1 bytes is too small"))
    assert str(live.told) == "budget=1 bytes is too small"


def test_a_run_that_writes_while_it_is_read_is_read_again(run, tmp_path):
    shutil.copytree(run.directory, tmp_path / "run")
    live = Live(tmp_path / "run")
    until(lambda: live.rendered)
    met = []

    def torn() -> None:
        live.before = lambda: None
        log(live.directory)
        met.append(True)
        raise OSError("the step was dropped while it was read")

    live.before = torn
    log(live.directory)
    until(lambda: met and len(live.rendered) == 2)
    live.end_with(KeyboardInterrupt())
    assert live.told is None


def test_the_signature_is_that_of_all_that_a_page_is_made_from(run, tmp_path):
    shutil.copytree(run.directory, tmp_path / "run")
    seen = {file_versions([tmp_path / "run"])}
    for name in ("metrics.jsonl", "samples.jsonl", "maps/zarr.json"):
        with (tmp_path / "run" / name).open("a") as file:
            file.write("\n")
        seen.add(file_versions([tmp_path / "run"]))
    (tmp_path / "run" / "heads.jsonl").write_text("")
    (tmp_path / "run" / "maps" / "written-1.json").write_text("{}")
    seen.add(file_versions([tmp_path / "run"]))
    assert len(seen) == 5
    assert describe_missing_files(tmp_path / "run") is None


@pytest.mark.browser
def test_an_open_page_follows_the_run(run, browser, tmp_path):  # noqa: F811
    shutil.copytree(run.directory, tmp_path / "run")
    store = MapStore.open(tmp_path / "run" / "maps", run.sites, run.labels, "0f" * 32)
    store.truncate(200)
    live = Live(tmp_path / "run", lambda version: render(tmp_path / "run", version=version))
    page = browser.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    until(lambda: b"data-version" in ask(live.port)[2])

    def open_at(step: int) -> None:
        page.goto(f"{live.url}#site=encoder/self&example=2&step={step}")
        page.reload()
        page.wait_for_selector("body[data-shown]")

    def shows(last: str) -> None:
        wait_until(
            page,
            "last => document.body.dataset.shown === location.hash && document.title && "
            "document.querySelector('#facts').textContent.includes(last)",
            arg=last,
        )

    # At the last step it stays at the last step, with all else that was looked at.
    open_at(200)
    assert page.locator(".live").inner_text() == "following the run"
    store.write(400, make_kept(store, run.maps[400]))
    shows("maps at 3 steps")
    assert page.locator("#step-shown").inner_text() == "step 400"
    assert "site=encoder%2Fself&example=2" in page.url
    # Anywhere else it stays where it is.
    open_at(100)
    page.evaluate("scrollTo(0, 700)")
    store.write(600, make_kept(store, run.maps[600]))
    shows("maps at 4 steps")
    assert page.locator("#step-shown").inner_text() == "step 100"
    wait_until(page, "scrollY === 700")
    page.close()
    live.end_with(KeyboardInterrupt())
    assert complaints == []
    assert {url.partition("#")[0] for url in requests} == {live.url, f"{live.url}version"}
