"""HTTP servers of tests on the loopback: what they answer is a function of the request at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Asked(BaseHTTPRequestHandler):
    """A request: its body is read, and an answer written whole or broken off; nothing is logged."""

    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        """What was sent with the request."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def say(
        self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, part: int | None = None
    ) -> None:
        """Answer; of ``content`` only the first ``part`` bytes where that is given, and then hang up."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:part])
        self.close_connection = self.close_connection or part is not None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Say nothing."""


def _nothing(asked: Asked) -> None:
    asked.say(b"", 404)


@contextmanager
def listening(post: Callable[[Asked], None], get: Callable[[Asked], None] = _nothing) -> Iterator[str]:
    """The address of a server that answers by ``post`` and ``get``, without a path."""

    class Bound(Asked, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            get(self)

        def do_POST(self) -> None:
            post(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
