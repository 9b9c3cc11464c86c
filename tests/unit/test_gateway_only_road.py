"""The gateway is the only road to a model: no other module can send anything over a network."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import woodshed

SOURCE = Path(woodshed.__file__).parent
SENDERS = {"aiohttp", "httpx", "requests", "urllib3", "openai", "anthropic", "litellm", "http.client", "urllib.request",
           "websockets", "grpc", "socket"}
HARMLESS = {"urllib.request.getproxies", "urllib.request.proxy_bypass"}  # read variables, send nothing
ALLOWED = {
    "gateway/call.py": {"aiohttp"},  # the choke point
    "gateway/client.py": {"aiohttp"},  # holds the session that the choke point sends with
    "gateway/server.py": {"aiohttp"},  # only answers, and calls the choke point: see the test below
    "gateway/connections.py": {"aiohttp", "socket"},
}
VERIFIERS = "trainers/verifiers_environment.py"
NOT_TO_MODELS = {
    "gateway/local/": "downloads weights, and asks our own server for its health",
    "sandbox/": "talks to its own fork server over inherited sockets",
    "pypi/": "fetches packages from the Python index",
    "services/benching/": "measures against servers of its own, which are no models",
    "api/serving.py": "listens, and opens no connection",
    "trainers/client.py": "asks a rollout service, from a trainer's own process",
    VERIFIERS: "asks verifiers' own interception, in a process of verifiers', whose model it is",
}
"""Places that open connections and never send a prompt; each is known by name."""


def used(source: str) -> set[str]:
    """The sending libraries that a module imports, lazily or not."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            taken = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= set() if taken <= HARMLESS else {node.module, *taken}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in ("__import__", "import_module"):
                names.add(str(node.args[0].value))
    return {sender for sender in SENDERS if any(name == sender or name.startswith(f"{sender}.") for name in names)}


def test_no_other_module_can_reach_a_model() -> None:
    """Outside the choke point nothing imports what could send a prompt."""
    stray = dict[str, set[str]]()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found = used(path.read_text()) - ALLOWED.get(name, set())
        if found and not name.startswith(tuple(NOT_TO_MODELS)):
            stray[name] = found
    assert stray == {}


def test_the_server_opens_no_connection() -> None:
    """The gateway's server takes of the HTTP library what serves, and of sockets the one that a connection came on."""
    sources = [(SOURCE / "gateway" / name).read_text() for name in ("server.py", "connections.py")]
    tree = ast.parse("\n".join(source.replace("from __future__ import annotations", "") for source in sources))
    taken = {f"{node.module}.{alias.name}" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names if (node.module or "").split(".")[0] in SENDERS}
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
              and isinstance(node.value, ast.Name) and node.value.id == "socket"}
    assert taken == {"aiohttp.web", "aiohttp.web_protocol.RequestHandler"}
    assert called == {"socket"}
    assert not any("connect(" in source for source in sources)


def test_the_completions_address_stands_in_one_place() -> None:
    """Only the choke point knows the address that prompts are sent to (verifiers' own is asked by its plug-in)."""
    names = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
    asking = [name for name in names if not name.startswith("services/benching/")  # asks the gateway, as programs do
              and any(isinstance(node, ast.Constant) and isinstance(node.value, str) and "/completions" in node.value
                     and len(node.value) < 60 and "ends before" not in node.value
                     for node in ast.walk(ast.parse((SOURCE / name).read_text())))]
    assert sorted(asking) == ["gateway/call.py", VERIFIERS]


@pytest.mark.parametrize("line", [
    "import aiohttp", "from aiohttp import ClientSession", "import http.client", "from http import client",
    "def f():\n    import httpx", "__import__('openai')", "from urllib import request",
    "import importlib\nimportlib.import_module('requests.sessions')",
])
def test_the_check_sees_every_form_of_import(line: str) -> None:
    """Positive control: each way to import a sending library is found."""
    assert used(line)
