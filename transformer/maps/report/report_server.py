"""Serve a page to a browser on this machine, and refresh it while the runs that it shows train."""

import contextlib
import hashlib
import http.server
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from transformer.config import UserError
from transformer.pages.template import AssetFolder, escape_html, fill_template, render_static_page, with_shared_styles
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import parse_path, storage_of
from transformer.storage.storage import FileVersion

ADDRESS = "127.0.0.1"  # this machine alone: a page may hold private data
PORT = 8765
DEADLINE = 10.0  # seconds for a request to arrive as a whole
PAUSE = 1.0  # seconds between two checks of the run
QUIET = 10.0  # seconds at least between two pages: a reader is not to be reloaded at every logged step
# A page is made from these files; the lists of a store's steps, in maps/*.json, are replaced once a step is complete.
FILES = ("*.json", "*.jsonl", "maps/*.json")


class ServedPage(NamedTuple):
    """The page that is served.

    Attributes:
        page: The HTML text, encoded.
        version: Its version, which the browser polls.
    """

    page: bytes
    version: str


class PageServer(socketserver.ThreadingTCPServer):
    """An HTTP server of one page, for this machine only.

    It serves `shown`, which its owner replaces, at "/" and its version at "/version". Only requests with this server's
    own host name are answered, against DNS rebinding: a page of another site whose name was pointed at this machine
    still sends that name.

    Args:
        port: The port; 0 for any free one.
        shown: The page to serve first.
        deadline: The most seconds for a request to arrive as a whole.

    Raises:
        UserError: If the port is taken or not allowed.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, served_page: ServedPage, deadline: float = DEADLINE):
        self.served_page, self.deadline = served_page, deadline
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port={port} cannot be used ({getattr(error, 'strerror', None) or error}): name another one, "
                "or 0 for any that is free"
            ) from None
        self.hosts = {f"{name}:{self.port}" for name in (ADDRESS, "localhost")}
        if self.port == 80:
            self.hosts |= {ADDRESS, "localhost"}

    def handle_error(self, request: object, client_address: object) -> None:
        """Report errors, but not a browser that disconnects."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.port}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10  # seconds of each read and write
    server: PageServer

    def setup(self) -> None:
        super().setup()
        # A client that sends a byte now and then never meets the timeout of a read.
        self._deadline = threading.Timer(self.server.deadline, self._disconnect)
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._send_response(with_body=True)

    def do_HEAD(self) -> None:
        self._send_response(with_body=False)

    def _send_response(self, with_body: bool) -> None:
        self._deadline.cancel()  # an answer may take longer, as through a tunnel
        served_page = self.server.served_page  # read once: it may be replaced at any moment
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            status, kind, body = HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this server has another name\n"
        elif self.path == "/":
            status, kind, body = HTTPStatus.OK, "text/html", served_page.page
        elif self.path == "/version":
            status, kind, body = HTTPStatus.OK, "text/plain", served_page.version.encode()
        else:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", b"the only page is /\n"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        # A page's own policy cannot forbid framing; only this header can.
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def version_string(self) -> str:
        return "headwise"

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: the terminal is the run's."""


class PageSource(NamedTuple):
    """What a page is made from.

    Attributes:
        read_version: Returns what changes whenever the page must be made anew.
        describe_missing: Returns what must still be written before there is a page; None if nothing is missing.
        render: Returns the page, given its version.
        title: The title of the page that waits for what is missing.
    """

    read_version: Callable[[], Hashable]
    describe_missing: Callable[[], str | None]
    render: Callable[[str], str]
    title: str


def serve(
    run_directory: Path,
    render: Callable[[str], str],
    *,
    also: Iterable[Path] = (),
    port: int = PORT,
    announce: Callable[[str], object] = print,
    pause: float = PAUSE,
    quiet: float = QUIET,
) -> None:
    """Serve the page of a run until Ctrl-C, and render it again when the run has new maps, metrics or samples.

    Until the run has both a complete step of maps and metrics, a small page says what is missing.

    Args:
        run_directory: The run directory.
        render: Returns the page, given its version.
        also: Further run directories that the page is made from.
        port: The port; 0 for any free one.
        announce: Called with the address of the page.
        pause: Seconds between two checks of the run.
        quiet: The least seconds between two pages.

    Raises:
        UserError: If the port is taken, or rendering fails for a reason that does not pass.
    """
    run_directory = parse_path(run_directory)
    directories = [run_directory, *map(parse_path, also)]
    source = PageSource(
        lambda: file_versions(directories),
        lambda: describe_missing_files(run_directory),
        render,
        run_directory.resolve().name,
    )
    serve_page(source, port=port, announce=announce, pause=pause, quiet=quiet)


def serve_page(
    source: PageSource,
    *,
    port: int = PORT,
    announce: Callable[[str], object] = print,
    pause: float = PAUSE,
    quiet: float = QUIET,
) -> None:
    """Serve a page until Ctrl-C, and render it again when its version changes.

    Args:
        source: What the page is made from.
        port: The port; 0 for any free one.
        announce: Called with the address of the page.
        pause: Seconds between two looks at the version.
        quiet: The least seconds between two pages.

    Raises:
        UserError: If the port is taken, or rendering fails for a reason that does not pass.
    """
    with PageServer(port, _waiting_page(source.title, "the first look")) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            announce(server.url)
            for renewed in _renew_page(server, source):
                # Making pages may take at most a third of the time, which the runs need.
                time.sleep(pause if renewed is None else max(quiet, 2 * renewed))
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _renew_page(server: PageServer, source: PageSource) -> Iterator[float | None]:
    """Look at the version again and again, yielding the seconds that a new page took, None without changes."""
    start, last_versions = time.time_ns(), None
    while True:
        start_seconds, versions = time.monotonic(), source.read_version()
        if versions == last_versions:
            yield None
            continue
        version = hashlib.sha256(repr((start, versions)).encode()).hexdigest()[:16]
        try:
            missing = source.describe_missing()
            page = None if missing else source.render(version).encode()
        except (OSError, ValueError):
            # A run may write, or drop steps on a resume, while it is read: read it again; a repeated error is raised.
            if source.read_version() == versions:
                raise
            yield None
            continue
        server.served_page = ServedPage(page, version) if page else _waiting_page(source.title, missing or "")
        last_versions = versions
        yield None if missing else time.monotonic() - start_seconds


def file_versions(directories: Iterable[Path]) -> tuple[FileVersion, ...]:
    """Return the versions of all files that a page is made from: equal versions give the same page."""
    return tuple(version for directory in directories for version in storage_of(directory).versions(directory, FILES))


def describe_missing_files(run_directory: Path) -> str | None:
    """Describe the files that a run must still write before it has a page, None if it has all."""
    from transformer.maps.store import MapStore

    run = RunDirectory(run_directory)
    if not (run.maps_dir / "zarr.json").exists() or not MapStore.open_existing(run.maps_dir).steps:
        return "its first maps"
    metrics = run.metrics_file
    try:
        # A first line without a newline is still being written.
        return None if b"\n" in metrics.read_bytes() else "its first metrics"
    except FileNotFoundError:
        return "its first metrics"


def _waiting_page(title: str, awaited: str) -> ServedPage:
    """Return a page without a script, which the browser reloads by itself."""
    parts = {"title": escape_html(title), "awaited": escape_html(awaited)}
    body = fill_template(AssetFolder("maps/report/web").read("waiting_for_run.html"), parts)
    return ServedPage(
        render_static_page(f"{title} · Headwise", body, with_shared_styles(), refresh_seconds=2).encode(), "waiting"
    )
