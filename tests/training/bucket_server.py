"""A bucket on this machine: as much of Cloud Storage's JSON API as the clients here use, kept in memory.

Names, generations, conditions and listings as the public reference of that API says them. It serves any bucket name.
"""

import base64
import contextlib
import datetime
import http.server
import itertools
import json
import re
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c


class Object(NamedTuple):
    content: bytes
    generation: int
    updated: str


class BucketServer(socketserver.ThreadingTCPServer):
    """The server, with its objects by (bucket, name) for a test to look into or to change."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], Object] = {}
        self.uploads: dict[str, tuple[str, str, dict[str, str], bytes]] = {}
        self.lock = threading.RLock()
        self.numbers = itertools.count(1_700_000_000_000_000)
        self.faults: list[Fault] = []  # that a test plants
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has read enough hangs up."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def put(self, bucket: str, name: str, content: bytes, conditions: dict[str, str] | None = None) -> Object | None:
        """Write an object; None where its generation is not the one that the conditions name."""
        with self.lock:
            if not self.allowed_tokens(bucket, name, conditions or {}):
                return None
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            self.objects[bucket, name] = Object(content, next(self.numbers), now)
            return self.objects[bucket, name]

    def allowed_tokens(self, bucket: str, name: str, conditions: dict[str, str]) -> bool:
        there = self.objects.get((bucket, name))
        generation = 0 if there is None else there.generation
        if "ifGenerationMatch" in conditions and int(conditions["ifGenerationMatch"]) != generation:
            return False
        return int(conditions.get("ifGenerationNotMatch", -1)) != generation

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects under a prefix, whatever their bucket."""
        with self.lock:
            return sorted(name for _, name in self.objects if name.startswith(prefix))

    @contextlib.contextmanager
    def failing(self, pattern: str, status: int = 403, *, done: bool = False, times: int = 1_000) -> Iterator[None]:
        """Fail the next requests whose "METHOD name" matches, while the context lasts; `done`: after doing them."""
        self.faults.append(Fault(re.compile(pattern), status, done, iter(range(times))))
        try:
            yield
        finally:
            self.faults.clear()

    def fault(self, request: str) -> "Fault | None":
        """The planted fault that meets a request, used up once more."""
        with self.lock:
            met = (fault for fault in self.faults if fault.pattern.search(request))
            return next((fault for fault in met if next(fault.left, None) is not None), None)


class Fault(NamedTuple):
    pattern: re.Pattern[str]
    status: int
    done: bool
    left: Iterator[int]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BucketServer

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def do_DELETE(self) -> None:
        self._route("DELETE")

    def _route(self, method: str) -> None:
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match = re.fullmatch(r"(/upload|/download|/resumable)?(?:/storage/v1)?/b/([^/]+)(?:/o(?:/(.+))?)?", split.path)
        if match is None:
            return self._send(404, {"error": {"code": 404, "message": f"no such thing: {split.path}"}})
        kind, bucket = match[1] or "", urllib.parse.unquote(match[2])
        name = urllib.parse.unquote(match[3]) if match[3] else ""
        if kind == "/upload" and "upload_id" not in query:
            name, body = self._named(query, body)
        what = f"{method} {name or query.get('prefix', '')}"
        self.server.requests.append(what)
        fault = self.server.fault(what)
        if fault is None or fault.done:
            answer = self._answer(method, kind, bucket, name, query, body, is_list="/o" in split.path)
        if fault is not None:
            answer = fault.status, {"error": {"code": fault.status, "message": "planted"}}
        return self._send(*answer)

    def _answer(
        self, method: str, kind: str, bucket: str, name: str, query: dict[str, str], body: bytes, is_list: bool
    ) -> tuple:
        server = self.server
        if kind == "/upload" and "upload_id" in query:
            return self._resume(query["upload_id"], body)
        if kind == "/upload" and query.get("uploadType") == "resumable":
            number = str(next(server.numbers))
            server.uploads[number] = (bucket, name, query, b"")
            place = f"{server.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            return 200, {}, {"Location": place}
        if kind == "/upload":
            return self._stored(bucket, name, server.put(bucket, name, body, query))
        if not name:
            return self._list(bucket, query) if is_list else (200, {"name": bucket, "id": bucket, "location": "HERE"})
        name, copied, copy = name.partition(f"/copyTo/b/{bucket}/o/")
        with server.lock:
            there = server.objects.get((bucket, name))
            if not server.allowed_tokens(bucket, name, query):
                return self._stored(bucket, name, None)
            if there is None:
                return 404, {"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}}
            if method == "DELETE":
                del server.objects[bucket, name]
                return 204, b""
        if copied:
            return self._stored(bucket, copy, server.put(bucket, copy, there.content))
        if query.get("alt") == "media":
            return self._content(there)
        return 200, self._about(bucket, name, there)

    def _named(self, query: dict[str, str], body: bytes) -> tuple[str, bytes]:
        """The name and the content of an upload."""
        if query.get("uploadType") == "multipart":
            boundary = re.search(r'boundary="?([^";]+)"?', self.headers["Content-Type"])
            assert boundary is not None
            pieces = re.split(rb"\r?\n?--" + re.escape(boundary[1].encode()) + rb"(?:--)?(?:\r?\n)?", body)
            about, content = (re.split(rb"\r?\n\r?\n", piece, maxsplit=1)[1] for piece in pieces if piece.strip())
            return json.loads(about)["name"], content
        about = json.loads(body) if query["uploadType"] == "resumable" and body else {}
        return query.get("name") or about["name"], body

    def _resume(self, number: str, body: bytes) -> tuple:
        server = self.server
        bucket, name, query, before = server.uploads[number]
        found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes 0-0/*"))
        content = before + body
        total = found[2] if found else str(len(content))
        if total != "*" and len(content) >= int(total):
            return self._stored(bucket, name, server.put(bucket, name, content, query))
        server.uploads[number] = (bucket, name, query, content)
        return 308, b"", {"Range": f"bytes=0-{len(content) - 1}"} if content else {}

    def _stored(self, bucket: str, name: str, stored: Object | None) -> tuple:
        if stored is None:
            return 412, {"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}}
        return 200, self._about(bucket, name, stored)

    def _about(self, bucket: str, name: str, there: Object) -> dict[str, str]:
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(there.generation),
            "metageneration": "1",
            "size": str(len(there.content)),
            "updated": there.updated,
            "timeCreated": there.updated,
            "contentType": "application/octet-stream",
            "crc32c": _crc32c(there.content),
            "mediaLink": f"{self.server.url}/download/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
            f"?generation={there.generation}&alt=media",
        }

    def _content(self, there: Object) -> tuple:
        headers = {"X-Goog-Generation": str(there.generation), "X-Goog-Hash": f"crc32c={_crc32c(there.content)}"}
        headers |= {"X-Goog-Metageneration": "1", "X-Goog-Stored-Content-Length": str(len(there.content))}
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if part is None:
            return 200, there.content, headers
        size = len(there.content)
        first = int(part[1]) if part[1] else max(0, size - int(part[2]))
        last = min(int(part[2]), size - 1) if part[1] and part[2] else size - 1
        if first >= size:
            return 416, b"", {"Content-Range": f"bytes */{size}"}
        return 206, there.content[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}

    def _list(self, bucket: str, query: dict[str, str]) -> tuple:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        with self.server.lock:
            there = {name: each for (owner, name), each in self.server.objects.items() if owner == bucket}
        entries: dict[str, Object | None] = {}
        for name in sorted(there):
            if not name.startswith(prefix) or name < start or (end and name >= end):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                entries[prefix + rest.split(delimiter)[0] + delimiter] = None
            else:
                entries[name] = there[name]
        keys = [key for key in sorted(entries) if key > query.get("pageToken", "")]
        page = keys[: int(query.get("maxResults", 1000))]
        items = [self._about(bucket, key, found) for key in page if (found := entries[key]) is not None]
        answer = {"kind": "storage#objects", "items": items, "prefixes": [k for k in page if entries[k] is None]}
        return 200, answer | ({"nextPageToken": page[-1]} if len(page) < len(keys) and page else {})

    def _send(self, status: int, body: dict | bytes, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if isinstance(body, bytes) else "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


@contextlib.contextmanager
def running() -> Iterator[BucketServer]:
    """The server while the context lasts."""
    with BucketServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
