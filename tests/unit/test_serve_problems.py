"""Problems: every refusal of every route names its field and a remedy, in our words; and so does the client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES
from servekit import KEY, Talks, an_offer, blank_home, talking
from woodshed.api.app import application
from woodshed.errors import Cause, EnvironmentFault, Missing, UsageError, WoodshedError
from woodshed.model.acted import Begin
from woodshed.model.delivery import Asked
from woodshed.services.acted import ActedAttempts, Full
from woodshed.services.ears import Ears
from woodshed.services.offer import made
from woodshed.services.rollouts import ask
from woodshed.services.runtimes import Runtimes, Unopened
from woodshed.trainers.client import Client

GOOD = {"tasks": "first-steps/write-file", "agent": "oracle"}
TABLE: list[tuple[str, str, Any, int, str, str]] = [
    ("POST", "/v1/rollouts", [], 422, "body", "is not an object"),
    ("POST", "/v1/rollouts", {"agent": "oracle"}, 422, "tasks", "is required, and missing"),
    ("POST", "/v1/rollouts", {**GOOD, "n": "2"}, 422, "n", "is not a whole number"),
    ("POST", "/v1/rollouts", {**GOOD, "n": 1.5}, 422, "n", "is not a whole number"),
    ("POST", "/v1/rollouts", {**GOOD, "n": -1}, 422, "n", "is too small"),
    ("POST", "/v1/rollouts", {**GOOD, "n": 10**40}, 422, "n", "is too large"),
    ("POST", "/v1/rollouts", {**GOOD, "tasks": []}, 422, "tasks", "has too few entries"),
    ("POST", "/v1/rollouts", {**GOOD, "tasks": [1]}, 422, "tasks.0", "is not a text"),
    ("POST", "/v1/rollouts", {**GOOD, "tasks": ["a\tb"]}, 422, "tasks.0", "has signs that may not stand there"),
    ("POST", "/v1/rollouts", {**GOOD, "tasks": ["../../etc"]}, 422, "tasks", "is no name of a task"),
    ("POST", "/v1/rollouts", {**GOOD, "tasks": ["nothing"]}, 404, "tasks", "no task 'nothing'"),
    ("POST", "/v1/rollouts", {**GOOD, "agent": "nobody"}, 422, "agent", "is not offered"),
    ("POST", "/v1/rollouts", {**GOOD, "agent": "loop", "endpoint": "other"}, 404, "endpoint", "no endpoint 'other'"),
    ("POST", "/v1/rollouts", {**GOOD, "endpoint": {"base_url": "http://x"}}, 422, "endpoint",
     "is not a text (and 1 more)"),
    ("POST", "/v1/rollouts", {**GOOD, "sampling": {"temperature": "hot"}}, 422, "sampling.temperature", "a number"),
    ("POST", "/v1/rollouts", {**GOOD, "samplings": {}}, 422, "samplings", "is no field that is known"),
    ("POST", "/v1/rollouts", {**GOOD, "on_stale": "maybe"}, 422, "on_stale", "is none of the words that are known"),
    ("POST", "/v1/rollouts", {**GOOD, "capture": 1}, 422, "capture", "is not true or false"),
    ("POST", "/v1/rollouts", {**GOOD, "deadlines": {"run_s": 0}}, 422, "deadlines.run_s", "is too small"),
    ("POST", "/v1/rollouts", {**GOOD, "policy_version": -1}, 422, "policy_version", "is too small"),
    ("GET", "/v1/rollouts?most=many", None, 422, "most", "is not a whole number"),
    ("GET", "/v1/rollouts?most=0", None, 422, "most", "is too small"),
    ("GET", "/v1/rollouts?before=r-none", None, 404, "id", "no request 'r-none'"),
    ("GET", "/v1/rollouts/r-none", None, 404, "id", "no request"),
    ("GET", "/v1/rollouts/..%2F..%2Fetc", None, 404, "path", "not found"),
    ("POST", "/v1/rollouts/r-none/cancel", {}, 404, "id", "no request"),
    ("POST", "/v1/rollouts/r-none/open", {}, 404, "id", "no request"),
    ("GET", "/v1/rollouts/r-none/events", None, 404, "id", "no request"),
    ("GET", "/v1/rollouts/r-none/events?records=perhaps", None, 422, "records", "is not true or false"),
    ("PUT", "/v1/policies/other", {"version": 1}, 404, "endpoint", "no endpoint"),
    ("PUT", "/v1/policies/policy", {"version": {}}, 422, "version", "is not a whole number"),
    ("GET", "/v1/policies/policy", None, 404, "endpoint", "no policy of 'policy' was announced"),
    ("GET", "/v1/groups", None, 422, "consumer", "is required, and missing"),
    ("GET", "/v1/groups?consumer=a&wait_s=inf", None, 422, "wait_s", "is too large"),
    ("GET", "/v1/groups?consumer=a&request=r-none", None, 404, "request", "no request"),
    ("POST", "/v1/groups/ack", {"deliveries": "one"}, 422, "deliveries", "is not a list"),
    ("POST", "/v1/groups/give-back", {}, 422, "deliveries", "is required, and missing"),
    ("POST", "/v1/groups/renew", {"deliveries": ["a"], "lease_s": -5}, 422, "lease_s", "is too small"),
    ("POST", "/v1/attempts", {"task": "nothing"}, 404, "task", "no task 'nothing'"),
    ("POST", "/v1/attempts", {"task": "first-steps/write-file", "tools": ["bush"]}, 422, "tools", "there is no tool"),
    ("POST", "/v1/attempts", {"task": "first-steps"}, 422, "task", "tasks"),
    ("POST", "/v1/attempts", {"task": "first-steps", "limits": {"turn": 1}}, 422, "limits.turn", "is no field"),
    ("POST", "/v1/attempts/a-none/act", {"tool": "bash"}, 404, "id", "no attempt"),
    ("POST", "/v1/attempts/a-none/act", {"tool": "bash", "arguments": []}, 422, "arguments", "is not an object"),
    ("POST", "/v1/attempts/a-none/finish", {}, 404, "id", "no attempt"),
    ("DELETE", "/v1/attempts/a-none", None, 404, "id", "no attempt"),
    ("GET", "/nothing", None, 404, "path", "not found"),
    ("POST", "/health", {}, 405, "method", "method not allowed"),
    ("POST", "/metrics", {}, 405, "method", "method not allowed"),
    ("POST", "/openenv/health", {}, 405, "method", "method not allowed"),
    ("POST", "/openenv/metadata", {}, 405, "method", "method not allowed"),
    ("POST", "/openenv/schema", {}, 405, "method", "method not allowed"),
]
OTHERS_WORDS = ("Input should", "Field required", "Extra inputs", "String should", "valid ", "pydantic", "Unable", "--")


@pytest.fixture
async def talks(tmp_path: Path) -> AsyncIterator[Talks]:
    """Who speaks to a service without a worker."""
    with blank_home(tmp_path / "home") as home:
        async with talking(home) as found:
            yield found


def is_ours(problem: Any, status: int) -> bool:
    """Whether it has our form, in our words, and names no place of this machine."""
    assert set(problem) == {"type", "title", "status", "detail", "field", "remedy"}, problem
    assert problem["status"] == status
    assert all(isinstance(problem[name], str) and problem[name] for name in ("title", "detail", "field", "remedy"))
    text = json.dumps(problem)
    assert not [words for words in (*OTHERS_WORDS, str(EXAMPLES), KEY) if words in text], problem
    return True


async def test_every_route_refuses_in_our_words(talks: Talks) -> None:
    """By field and remedy, whatever is wrong; and no route of the contract is missing in the table."""
    for method, path, body, status, field, detail in TABLE:
        got, problem = await talks.call(method, path, body)
        assert (got, problem["field"]) == (status, field), (method, path, body, problem)
        assert detail in problem["detail"], (method, path, body, problem)
        assert is_ours(problem, status)
    contract = (await talks.call("GET", "/openapi.json"))[1]["paths"]
    asked = {(method, path.partition("?")[0]) for method, path, *_ in TABLE}
    for route, methods in contract.items():
        start = route.partition("{")[0]
        assert any(path.startswith(start) for _, path in asked), route
        assert "{" not in route or {name.upper() for name in methods} <= {
            method for method, path in asked if path.startswith(start)}, route
    for more, remedy in (
            ({"samplin": {}}, "Did you mean 'sampling'?"),
            ({"tasks": "write-file"}, "Did you mean 'first-steps/write-file'?"),
            ({"tasks": "first-step/write-file"}, "Did you mean 'first-steps/write-file'?")):
        assert (await talks.call("POST", "/v1/rollouts", {**GOOD, **more}))[1]["remedy"] == remedy


async def test_what_is_refused_before_any_route_is_told_alike(talks: Talks) -> None:
    """The key, the size, the kind, what is no JSON, and what is deep."""
    data = json.dumps(GOOD).encode()
    typed = {"Content-Type": "application/json"}
    refused: list[tuple[int, str, dict[str, Any]]] = [
        (401, "Authorization", {"key": None}), (401, "Authorization", {"key": "wrong"}),
        (415, "Content-Type", {"data": data, "headers": {"Content-Type": "text/plain"}}),
        (413, "body", {"data": b" " * 1_000_001, "headers": typed}),
        (422, "body", {"data": b"{", "headers": typed}), (422, "body", {"data": b"", "headers": typed}),
        (422, "body", {"data": b"\xff\xfe", "headers": typed}),
        (422, "body", {"data": b"[" * 100_000, "headers": typed})]
    for status, field, said in refused:
        got, problem = await talks.call("POST", "/v1/rollouts", **said)
        assert (got, problem["field"]) == (status, field), problem
        assert is_ours(problem, status)
    assert "WOODSHED_SERVE_KEY" in (await talks.call("GET", "/v1/rollouts", key="wrong"))[1]["remedy"]


async def test_a_sandbox_that_does_not_open_is_a_fault_of_the_service(
    talks: Talks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's client has an EnvironmentFault of it, not a mistake of its own; too many open ones are a conflict."""

    async def broken(*_: Any) -> Any:
        raise faults[0]

    monkeypatch.setattr(ActedAttempts, "begin", broken)
    client = Client(talks.url, KEY, patience_s=0)
    faults: list[WoodshedError] = []
    for fault, raised, field in (
            (EnvironmentFault("no room"), EnvironmentFault, "service"), (Full("4 are open"), UsageError, "request")):
        faults[:] = [fault]
        status, problem = await talks.call("POST", "/v1/attempts", {"task": "first-steps/write-file"})
        assert (status, problem["field"]) == (503 if raised is EnvironmentFault else 409, field)
        assert is_ours(problem, status)
        with pytest.raises(raised):
            await asyncio.to_thread(client.begin, Begin(task="first-steps/write-file"))


async def test_who_is_gone_before_its_sandbox_stands_has_left(new_home: Callable[[], Path]) -> None:
    """Nobody knows the attempt's id: it is over at once, and its place is free."""
    body, sent = json.dumps({"task": "first-steps/write-file"}).encode(), list[Any]()
    coming = iter([{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(coming, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/attempts", "raw_path": b"/v1/attempts", "query_string": b"",
             "root_path": "", "scheme": "http", "server": ("x", 80), "client": ("x", 1), "http_version": "1.1",
             "headers": [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]}
    with blank_home(new_home()) as home:
        async with ActedAttempts(home, an_offer(), most=1) as attempts:
            await application(home, an_offer(), KEY, attempts)(scope, receive, send)
            assert sent[0]["status"] == 201
            [run] = home.store.runs()
            [attempt] = home.store.attempts(run.id)
            ended = await attempts.get(attempt.id).finish()
            assert (ended.valid, ended.cause) == (False, Cause.CANCELLED)
            assert "whoever began it left" in ended.detail


async def test_what_nobody_foresaw_is_told_over_a_socket_too(talks: Talks, monkeypatch: pytest.MonkeyPatch) -> None:
    """By OpenEnv's own code, and the connection goes on."""

    async def broken(*_: Any) -> Any:
        raise LookupError("of some part")

    monkeypatch.setattr(ActedAttempts, "begin", broken)
    said = {"Authorization": f"Bearer {KEY}"}
    async with talks.session.ws_connect(f"{talks.url}/openenv/ws", headers=said) as socket:
        for _ in range(2):
            await socket.send_json({"type": "reset", "data": {"task": "first-steps/write-file"}})
            told = await socket.receive_json()
            assert (told["type"], told["data"]["code"]) == ("error", "EXECUTION_ERROR")
            assert "LookupError" in told["data"]["message"]


async def test_the_client_says_what_is_wrong_with_its_key_and_address(talks: Talks) -> None:
    """By what holds the key: at once where it can be none, and when the service refuses it. A key's own line is cut."""
    for key in ("", " ", "two words", "ключ"):
        with pytest.raises(UsageError, match=r"key: .*WOODSHED_SERVE_KEY.*serve\.key"):
            Client(talks.url, key)
    with pytest.raises(UsageError, match=r"key: .*refuses this key.*WOODSHED_SERVE_KEY.*serve\.key"):
        await asyncio.to_thread(Client(talks.url, "another-key-altogether").told, "r-none")
    with pytest.raises(Missing):
        await asyncio.to_thread(Client(f"{talks.url}/", f"{KEY}\n").told, "r-none")
    with pytest.raises(UsageError, match=r"url: .*no address"):
        Client("127.0.0.1:8700", KEY)
    with pytest.raises(UsageError, match=r"url: .*no rollout service"):
        await asyncio.to_thread(Client(talks.url, KEY)._call, Asked, "GET", "/health")


async def test_a_request_whose_endpoint_is_dead_says_which(tmp_path: Path) -> None:
    """It pauses with the name that was asked for, and no option of a command that nobody gave."""
    with socket.socket() as deaf, blank_home(tmp_path / "home") as home:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        offer = made([EXAMPLES], endpoints=[f"policy=tiny@{url}"])
        run = ask(home, offer, Asked(tasks=["first-steps/write-file"], agent="loop", endpoint="policy")).id
        runtimes = Runtimes(home, parallel=1, ears=Ears(home.store.messages))
        with pytest.raises(Unopened) as unopened:
            async with runtimes.of(run):
                pass
        said = str(unopened.value)
        assert said.startswith(f"endpoint policy: no model answers at {url}.")
        assert f"POST /v1/rollouts/{run}/open" in said
        assert "--" not in said
