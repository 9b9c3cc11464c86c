"""A registry of images over HTTP, which can be told to misbehave."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Server(ThreadingHTTPServer):
    """A registry over a layout, which can be told to misbehave. ``seen`` are requests: path and headers."""

    daemon_threads = True

    def __init__(self, layout: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.layout, self.seen = layout, list[tuple[str, dict[str, str]]]()
        self.failures: list[tuple[int, dict[str, str]]] = []
        self.cut = 0  # bytes after which a blob's connection breaks, once for each number
        self.cuts = 0
        self.token = ""
        self.login = ""
        self.elsewhere = ""
        self.ranges = True
        self.spoil: dict[str, bytes] = {}
        self.realm = ""
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        return None

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        server, path = self.server, urlsplit(self.path)
        server.seen.append((self.path, dict(self.headers)))
        if server.failures and path.path != "/token":
            status, headers = server.failures.pop(0)
            self.say(status, b"", **headers)
        elif path.path == "/token":
            self.token(parse_qs(path.query))
        elif server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            realm = server.realm or f"http://{server.address}/token"
            self.say(401, WWW_Authenticate=f'Bearer realm="{realm}",service="here",scope="repository:a:pull"')
        elif server.login and not server.token and self.headers.get("Authorization") != server.login:
            self.say(401, WWW_Authenticate='Basic realm="x"')
        elif match := re.fullmatch(r"/v2/.*/manifests/(.*)", path.path):
            self.manifest(match[1])
        elif match := re.fullmatch(r"/v2/.*/blobs/(sha256:[0-9a-f]+)", path.path):
            self.blob(match[1])
        else:
            self.say(404)

    def token(self, query: dict[str, list[str]]) -> None:
        if self.server.login and self.headers.get("Authorization") != self.server.login:
            self.say(401)
        else:
            assert query == {"service": ["here"], "scope": ["repository:a:pull"]}
            self.say(200, json.dumps({"token": self.server.token}).encode())

    def manifest(self, wanted: str) -> None:
        index = json.loads((self.server.layout / "index.json").read_text())["manifests"][0]["digest"]
        path = self.server.layout / "blobs" / (wanted if wanted.startswith("sha256") else index).replace(":", "/")
        if wanted == "gone" or not path.exists():
            self.say(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')
        else:
            self.say(200, self.server.spoil.get("manifest", path.read_bytes()))

    def blob(self, digest: str) -> None:
        server = self.server
        data = server.spoil.get(digest, (server.layout / "blobs" / digest.replace(":", "/")).read_bytes())
        if server.elsewhere:
            self.say(307, Location=f"{server.elsewhere}{self.path}")
            return
        begin, status, headers = 0, 200, dict[str, str]()
        if server.ranges and (told := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            begin, status = int(told[1]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if server.cuts and len(body) > server.cut:
            server.cuts -= 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:server.cut])
            self.wfile.flush()
            self.connection.close()
            return
        self.say(status, body, **{name.replace("-", "_"): value for name, value in headers.items()})
