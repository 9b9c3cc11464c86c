"""A model server for attempts that are killed: what it answers follows from the conversation alone, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Command = Callable[[int], str]


@dataclass
class Turnwise:
    """Answers turn n of a conversation with ``command(n)``, and with ``finish`` after ``turns``.

    ``asked`` counts requests by turn: how often each was made over the wire. Of the turns in ``silent`` the first
    request gets no answer.
    """

    turns: int
    command: Command
    silent: frozenset[int] = frozenset()
    asked: Counter[int] = field(default_factory=Counter)
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """Whoever still waits is let go."""
        self._over.set()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        self.asked[turn] += 1
        self.requests.append(body)
        if turn in self.silent and self.asked[turn] == 1:
            self._over.wait()
        name, arguments = ("finish", {}) if turn > self.turns else ("bash", {"command": self.command(turn)})
        call = {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return {"choices": [{"message": {"role": "assistant", "content": f"turn {turn}", "tool_calls": [call]},
                             "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 100 + turn, "completion_tokens": 7}}

    @property
    def model(self) -> str:
        """As ``--model`` wants it."""
        return f"turnwise@{self.url}"


Served = TypeVar("Served", bound=Turnwise)


@contextmanager
def serving(script: Served) -> Iterator[Served]:
    """The server, at work in threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(script.answer(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Who asked was killed."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield script
    finally:
        script.close()
        server.shutdown()
        thread.join()
        server.server_close()
