"""The report of runs live in a browser of this machine: read-only, by the standard library.

Two addresses answer, and only to GET: the page, and its data. No part of an address becomes a
path of a file. Whoever asks needs the token in the address, which other users of the machine do
not have, and must name this machine as the host: a page of another site that has its name pointed
at 127.0.0.1 (DNS rebinding) does not.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hofl.core.errors import HoflError
from hofl.core.version import VERSION
from hofl.reporting.document import POLICY, embedded, page
from hofl.watching.folder import Watched

ADDRESS = "127.0.0.1"
"""The loopback, and nothing else: whoever is elsewhere can tunnel (``ssh -L``)."""
PATIENCE = 10
"""Seconds in which a request must have arrived."""
LIVE_POLICY = f"{POLICY}; connect-src 'self'"
HEADERS = {
    "Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the report of watched folders until it is shut down.

    Args:
        watched: the folders.
        port: 0 is a free one.

    Raises:
        HoflError: the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, watched: Watched, port: int = 0) -> None:
        self.watched = watched
        self.token = secrets.token_urlsafe(24)
        self._reading = threading.Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise HoflError(f"--port {port}: {reason}. Choose another, or 0 for any.") from None

    @property
    def url(self) -> str:
        """Address of the page, with its token."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> set[str]:
        """Names by which a browser of this machine may ask."""
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def contents(self) -> dict[str, Any]:
        """Return what the page shows now; one reader at a time."""
        with self._reading:
            try:
                return self.watched.contents(time.time())
            except HoflError as error:
                empty = {"groups": [], "axes": {}, "measures": {}, "differences": {}, "level": 0}
                title = self.watched.title
                return {**empty, "title": title, "version": VERSION, "problem": str(error)}


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: LiveServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer with the page or its data."""
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif self._asks_for("/"):
            text = page(self.server.contents(), "report.js", "live.js", policy=LIVE_POLICY)
            self._answer(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")
        elif self._asks_for("/data"):
            self._data(self.server.contents())
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _asks_for(self, rest: str) -> bool:
        """Compare the whole address in constant time: a guess must not learn how far it is right.

        The request's line is Latin-1, whatever it holds.
        """
        wanted = f"/{self.server.token}{rest}"
        return hmac.compare_digest(self.path.encode("latin-1"), wanted.encode())

    def _data(self, values: Mapping[str, Any]) -> None:
        mark = f'"{_mark(values)}"'
        if self.headers.get("If-None-Match") == mark:
            self._answer(HTTPStatus.NOT_MODIFIED, mark=mark)
        else:
            self._answer(HTTPStatus.OK, embedded(values).encode(), "application/json", mark)

    def _answer(
        self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain", mark: str = ""
    ) -> None:
        body = body or (f"{status.phrase}\n".encode() if status >= HTTPStatus.BAD_REQUEST else b"")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if mark:
            self.send_header("ETag", mark)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is not a GET, or not HTTP, without repeating any of it."""
        refused = code == HTTPStatus.NOT_IMPLEMENTED
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED if refused else HTTPStatus(code))

    def version_string(self) -> str:
        """Name the program, not its versions."""
        return "hofl"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses hold the token."""


def _mark(values: Mapping[str, Any]) -> str:
    """Return a digest of what is shown; estimates of time pass, and are not news."""
    lasting = {key: value for key, value in values.items() if key != "left"}
    lasting["progress"] = [{**entry, "left": None} for entry in values.get("progress", ())]
    return hashlib.sha256(embedded(lasting).encode()).hexdigest()[:16]
