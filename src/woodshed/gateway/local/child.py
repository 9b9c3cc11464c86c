"""The server process: one JSON line of orders on stdin, one JSON line with its address on stdout, then it serves.

It is started by file name and imports nothing of Woodshed, so that it starts fast and no folder the user stands in can
slip a module under it. Stdin stays open as a lifeline: the process ends when stdin does, or when its parent does. A
pidfd sees the latter, not PR_SET_PDEATHSIG, which fires when the *thread* that made the child ends (prctl(2)).
"""

from __future__ import annotations

import json
import os
import select
import threading
from contextlib import suppress
from typing import Any

_CACHE_MIB = 256  # prompts kept beside the slots; the server's own default is 8 GiB
_BATCH = 512


def _orders() -> dict[str, Any]:
    """The first line of stdin, byte by byte: nothing may be buffered that the lifeline would miss."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            os._exit(0)
        line += byte
    orders: dict[str, Any] = json.loads(line)
    return orders


def _die_with(parent: int) -> None:
    """End this process once stdin or the process ``parent`` has ended. The server holds no state worth saving."""
    watched = [0]
    with suppress(OSError):  # no pidfd here: the check below and stdin remain
        watched.append(os.pidfd_open(parent))
    if os.getppid() != parent:
        os._exit(0)

    def watch() -> None:
        while True:
            ready, _, _ = select.select(watched, [], [])
            if ready != [0] or not os.read(0, 4096):
                os._exit(0)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


def _parameters(orders: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = orders["model"]
    params.n_ctx = orders["context_tokens"] * orders["parallel"]  # the server shares it out among its slots
    params.n_parallel = orders["parallel"]
    params.n_batch = params.n_ubatch = _BATCH
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = orders["threads"]
        cpu.poll = 0  # waiting threads sleep: spinning ones take the cores from the sandboxes the model works in
    params.cache_ram_mib = _CACHE_MIB
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [orders["key"]]
    params.ui = params.endpoint_slots = params.endpoint_metrics = params.endpoint_props = False
    params.offline = True
    params.use_jinja = True
    if orders["lora"]:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(orders["lora"], 1.0)]
    if orders["template"]:
        params.chat_template = orders["template"]
    return params


def main() -> None:
    """Serve until the lifeline ends. Whatever llama.cpp prints goes to stderr, which is the log."""
    orders = _orders()
    _die_with(orders["parent"])
    answer = os.dup(1)
    os.dup2(2, 1)
    import xllamacpp

    server = xllamacpp.Server(_parameters(orders))  # returns once the weights are loaded; raises when they cannot be
    os.write(answer, json.dumps({"address": server.listening_address}).encode() + b"\n")
    os.close(answer)
    threading.Event().wait()


if __name__ == "__main__":
    main()
