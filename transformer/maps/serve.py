"""The page of a run that is still training, given to a browser on this machine and renewed while the run goes on."""

import hashlib
import http.server
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from transformer.config import UserError
from transformer.pages.template import Folder, escaped, fill, still_page, style_of
from transformer.runs.directory import RunDirectory
from transformer.storage import Version, locate, storage_of

ADDRESS = "127.0.0.1"  # this machine alone: a page can hold data that is nobody else's
PORT = 8765
PAUSE = 1.0  # seconds between two looks at the run
QUIET = 10.0  # seconds at least between two pages: a reader is not to be reloaded at every logged step
# What a page is made from; the lists of a store's steps, in maps/*.json, are replaced once a step is complete.
FILES = ("*.json", "*.jsonl", "maps/*.json")


class Shown(NamedTuple):
    """What is given out: a whole page, and the version that its reader asks for."""

    page: bytes
    version: str


class Server(socketserver.ThreadingTCPServer):
    """Gives out `shown`, which its owner replaces, at "/" and its version at "/version", to this machine alone.

    A request is answered only under this server's own name: a page of another site that has had its name pointed
    at this machine still sends that name.

    Errors: UserError where the port is taken or not allowed.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, shown: Shown):
        self.shown = shown
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
        """A browser that goes away in the middle of an answer is nothing to tell; any other fault is."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{ADDRESS}:{self.port}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10  # seconds for a request to arrive
    server: Server

    def do_GET(self) -> None:
        self._answer(whole=True)

    def do_HEAD(self) -> None:
        self._answer(whole=False)

    def _answer(self, whole: bool) -> None:
        shown = self.server.shown  # once: the next moment it can be another
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            status, kind, body = HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this server has another name\n"
        elif self.path == "/":
            status, kind, body = HTTPStatus.OK, "text/html", shown.page
        elif self.path == "/version":
            status, kind, body = HTTPStatus.OK, "text/plain", shown.version.encode()
        else:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", b"there is one page here, /\n"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        # The page's own policy says the rest; that it may not be framed can be said here alone.
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        if whole:
            self.wfile.write(body)

    def version_string(self) -> str:
        return "headwise"

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the terminal is the run's."""


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
    """Give out the page of a run until Ctrl-C, and make it anew when the run has new maps, metrics or samples.

    `render(version)` returns the page; until the run has both a complete step of maps and metrics, a small page says
    what is waited for. `also` are further run directories that the page is made from. `announce` is told the address;
    `pause` and `quiet` are the seconds between two looks at the run and, at least, between two pages.

    Errors: UserError where the port cannot be had, or where the page cannot be made for a reason that waiting does
    not mend.
    """
    run_directory = locate(run_directory)
    directories = [run_directory, *map(locate, also)]
    with Server(port, _waiting_page(run_directory, "the first look at the run")) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            announce(server.url)
            for renewed in _renewals(server, run_directory, directories, render):
                # Making pages may take at most a third of the time: it is the run that the machine is for.
                time.sleep(pause if renewed is None else max(quiet, 2 * renewed))
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _renewals(
    server: Server, run_directory: Path, directories: list[Path], render: Callable[[str], str]
) -> Iterator[float | None]:
    """Look at the run again and again: yields the seconds that a new page took, None where there was nothing new."""
    start, seen = time.time_ns(), None
    while True:
        began, found = time.monotonic(), signature(directories)
        if found == seen:
            yield None
            continue
        version = hashlib.sha256(repr((start, found)).encode()).hexdigest()[:16]
        try:
            missing = awaited(run_directory)
            page = None if missing else render(version).encode()
        except (OSError, ValueError):
            # A run that writes while it is read, or drops steps on a resume, is read again; a fault that stays is told.
            if signature(directories) == found:
                raise
            yield None
            continue
        server.shown = Shown(page, version) if page else _waiting_page(run_directory, missing or "")
        seen = found
        yield None if missing else time.monotonic() - began


def signature(directories: Iterable[Path]) -> tuple[Version, ...]:
    """The versions of all files that a page is made from: equal ones are of the same page."""
    return tuple(each for directory in directories for each in storage_of(directory).versions(directory, FILES))


def awaited(run_directory: Path) -> str | None:
    """What a run has yet to write before it has a page, in words; None where it has one."""
    from transformer.maps.store import MapStore

    run = RunDirectory(run_directory)
    if not (run.maps / "zarr.json").exists() or not MapStore.existing(run.maps).steps:
        return "its first maps"
    metrics = run.metrics_file
    try:
        # A first line without its end is still being written.
        return None if b"\n" in metrics.read_bytes() else "its first metrics"
    except FileNotFoundError:
        return "its first metrics"


def _waiting_page(run_directory: Path, awaited: str) -> Shown:
    """A page without a script, which the browser asks for again by itself."""
    title = run_directory.resolve().name
    parts = {"title": escaped(title), "awaited": escaped(awaited)}
    body = fill(Folder("transformer.maps", "page").read("waiting.html"), parts)
    return Shown(still_page(f"{title} · attention", body, style_of(), seconds=2).encode(), "waiting")
