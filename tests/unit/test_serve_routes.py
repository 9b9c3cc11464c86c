"""The rollout service over HTTP: what is asked, told, delivered, settled and refused, as its contract says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from exportkit import Talk, filled, valid
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from servekit import KEY, Talks, an_offer, blank_home, end, talking
from woodshed.api.bodies import plain
from woodshed.model.delivery import Asked, Delivered, Deliveries, RequestWhole, Settled
from woodshed.model.rollout import CallRecord
from woodshed.services import following, rollouts
from woodshed.services.home import Home, opened
from woodshed.store.tables import attempt_groups
from woodshed.trainers.rollouts import baseline


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
async def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Home, Talks]]:
    """A home on either database and its service, without a worker."""
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with (opened(tmp_path / "home") if request.param == "postgresql" else blank_home(tmp_path / "home")) as home:
        async with talking(home) as talks:
            yield home, talks


def lapse(home: Home) -> None:
    """As if every lease had run out."""
    with home.store._engine.begin() as connection:
        connection.execute(sa.update(attempt_groups).values(lease_s=0.0))


async def taken(talks: Talks, **query: Any) -> Deliveries:
    asked = "&".join(f"{name}={value}" for name, value in {"consumer": "trainer", **query}.items())
    status, told = await talks.call("GET", f"/v1/groups?{asked}")
    assert status == 200, told
    return Deliveries.model_validate_json(json.dumps(told))


async def test_a_request_from_asking_to_its_end(served: tuple[Home, Talks]) -> None:
    """Asked, told, delivered whole with the invalid one outside the baseline, acknowledged, and over."""
    home, talks = served
    made = await talks.ask(n=3)
    assert made["created"]
    status, told = await talks.call("GET", f"/v1/rollouts/{made['id']}")
    whole = RequestWhole.model_validate_json(json.dumps(told))
    assert (status, whole.state, whole.attempts, whole.done, whole.groups.partial) == (200, "queued", 3, 0, 1)
    assert [one.attempt for one in whole.rollouts] == made["attempts"]
    assert {one.reward for one in whole.rollouts} == {None}
    assert (await taken(talks)).groups == ()
    end(home, made["attempts"], 1.0, None, 0.0)
    told = (await talks.call("GET", f"/v1/rollouts/{made['id']}"))[1]
    assert [(one["valid"], one["reward"], one["cause"], one["stage"]) for one in told["rollouts"]] == [
        (True, 1.0, None, None), (False, None, "environment", "prepare"), (True, 0.0, None, None)]
    assert (told["done"], told["valid"], told["groups"]["ready"]) == (3, 2, 1)
    found = await taken(talks, request=made["id"])
    [group] = found.groups
    assert (group.size, group.valid, group.baseline, group.deviation) == (3, 2, 0.5, 0.5)
    assert [one.advantage for one in group.rollouts] == [0.5, None, -0.5]
    assert [one.valid for one in group.rollouts] == [True, False, True]
    assert not found.over
    status, settled = await talks.call("POST", "/v1/groups/ack", {"deliveries": [group.delivery]})
    assert (status, settled) == (200, {"done": [group.delivery], "lost": []})
    assert (await taken(talks, request=made["id"])).over
    assert (await talks.call("GET", f"/v1/rollouts/{made['id']}"))[1]["groups"]["acked"] == 1


async def test_a_key_makes_it_one_request(served: tuple[Home, Talks]) -> None:
    """The same again is the same, even many at once; another body under the key is a conflict, and changes nothing."""
    home, talks = served
    asked = await asyncio.gather(*(talks.ask(n=2, idempotency_key="step-1") for _ in range(8)))
    assert len({json.dumps(one["attempts"]) for one in asked}) == 1
    assert [one["created"] for one in asked].count(True) == 1
    same = {"tasks": ["first-steps/write-file"], "agent": "oracle", "n": 2, "seed": 0, "idempotency_key": "step-1"}
    status, told = await talks.call("POST", "/v1/rollouts", same)
    assert (status, told["id"], told["created"]) == (200, asked[0]["id"], False)
    status, problem = await talks.call("POST", "/v1/rollouts", same | {"n": 3})
    assert (status, problem["field"]) == (409, "idempotency_key")
    assert len(home.store.runs()) == 1
    assert (await talks.ask(n=2))["id"] != asked[0]["id"], "without a key, each is another"


async def test_a_consumer_that_dies_loses_and_repeats_nothing(served: tuple[Home, Talks]) -> None:
    """A lease that runs out gives the group to the next; who comes too late settles nothing; acked ones never return.
    """
    home, talks = served
    for n in range(3):
        end(home, (await talks.ask(seed=n))["attempts"], 1.0)
    [first] = (await taken(talks, consumer="one")).groups
    [second] = (await taken(talks, consumer="one")).groups
    await talks.call("POST", "/v1/groups/ack", {"deliveries": [first.delivery]})
    lapse(home)
    [again] = (await taken(talks, consumer="two")).groups
    assert (again.group, again.deliveries) == (second.group, 2)
    for how in ("ack", "renew", "give-back"):
        assert (await talks.call("POST", f"/v1/groups/{how}", {"deliveries": [second.delivery]}))[1]["lost"]
    back = (await taken(talks, consumer="two", again="true", most=5)).groups
    assert [one.group for one in back] == [again.group, back[1].group], "who is back under its name has them at once"
    assert back[0].delivery != again.delivery
    settled = await talks.call("POST", "/v1/groups/give-back", {"deliveries": [one.delivery for one in back]})
    assert settled[1]["lost"] == []
    rest = (await taken(talks, consumer="three", most=5)).groups
    assert {one.group for one in rest} == {one.group for one in back}
    assert (await talks.call("POST", "/v1/groups/renew", {"deliveries": [rest[0].delivery], "lease_s": 5}))[1]["done"]


async def test_a_poll_waits_for_the_first_group(served: tuple[Home, Talks]) -> None:
    """Whoever waits is answered when a group completes, in order of completion across requests."""
    home, talks = served
    one, two = await talks.ask(seed=1), await talks.ask(seed=2)
    waiting = asyncio.create_task(taken(talks, wait_s=200))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    end(home, two["attempts"], 1.0)
    end(home, one["attempts"], 0.0)
    found = [*(await waiting).groups]
    while len(found) < 2:
        found += (await taken(talks, wait_s=200)).groups
    assert [group.request for group in found] == [two["id"], one["id"]]


async def test_a_group_too_old_is_never_delivered(served: tuple[Home, Talks]) -> None:
    """By the policy that its endpoint's announcement makes current; what a trainer has by then stays its own."""
    home, talks = served
    status, told = await talks.call("PUT", "/v1/policies/policy", {"version": 7})
    assert (status, told) == (200, {"endpoint": "policy", "version": 7, "stale": []})
    kept = await talks.ask(endpoint="policy", seed=0)
    held = await talks.ask(endpoint="policy", max_staleness=1, seed=1)
    old = await talks.ask(endpoint="policy", max_staleness=1, seed=2)
    dead = await talks.ask(endpoint="policy", max_staleness=0, on_stale="cancel", seed=3)
    end(home, held["attempts"], 1.0)
    [mine] = (await taken(talks)).groups
    assert (mine.request, mine.policy_version, mine.behind) == (held["id"], 7, 0)
    end(home, old["attempts"], 1.0)
    end(home, kept["attempts"], 1.0)
    assert (await talks.call("PUT", "/v1/policies/policy", {"version": 8}))[1]["stale"] == [dead["id"]]
    assert (await talks.call("GET", f"/v1/rollouts/{dead['id']}"))[1]["state"] == "cancelled"
    assert set((await talks.call("PUT", "/v1/policies/policy", {"version": 9}))[1]["stale"]) == {held["id"], old["id"]}
    assert (await talks.call("PUT", "/v1/policies/policy", {"version": 9}))[1]["stale"] == []
    rest = (await taken(talks, most=9)).groups
    assert [(one.request, one.behind) for one in rest] == [(kept["id"], 2)]
    assert (await talks.call("POST", "/v1/groups/ack", {"deliveries": [mine.delivery]}))[1]["lost"] == []
    told = (await talks.call("GET", f"/v1/rollouts/{old['id']}"))[1]
    assert (told["stale"], told["behind"], told["groups"]["stale"]) == (True, 2, 1)
    assert (await taken(talks, request=old["id"])).over
    status, problem = await talks.call("POST", "/v1/rollouts", {
        "tasks": "first-steps/write-file", "agent": "oracle", "endpoint": "policy", "policy_version": 7,
        "max_staleness": 1})
    assert (status, problem["field"]) == (409, "policy_version")
    assert (await talks.call("PUT", "/v1/policies/policy", {"version": 8}))[0] == 409
    assert (await talks.call("PUT", "/v1/policies/policy", {"version": 8, "back": True}))[0] == 200
    assert (await talks.call("GET", "/v1/policies/policy"))[1]["version"] == 8
    assert (await talks.call("PUT", "/v1/policies/other", {"version": 1}))[0] == 404


async def test_a_cancelled_request_ends(served: tuple[Home, Talks]) -> None:
    """Its open attempts never get a result; what is complete is still handed out; cancelling twice is once."""
    home, talks = served
    made = await talks.ask(tasks=["first-steps/write-file", "first-steps/fix-line"])
    end(home, [made["attempts"][0]], 1.0)
    for _ in range(2):
        status, told = await talks.call("POST", f"/v1/rollouts/{made['id']}/cancel")
        assert (status, told["state"]) == (200, "cancelled")
    found = await taken(talks, request=made["id"])
    assert len(found.groups) == 1
    await talks.call("POST", "/v1/groups/ack", {"deliveries": [found.groups[0].delivery]})
    assert (await taken(talks, request=made["id"])).over
    assert (await talks.call("POST", f"/v1/rollouts/{made['id']}/open"))[0] == 409


async def test_whose_time_is_over_has_its_group_all_the_same(served: tuple[Home, Talks]) -> None:
    """Attempts that were not done by the deadline have no reward, and the group is complete with the others."""
    home, talks = served
    made = await talks.ask(n=3, deadlines={"run_s": 0.05})
    home.store.queue.enlist("w", host="h", pid=1, slots=1)
    assert len(home.store.queue.claim("w", 2)) == 2
    end(home, made["attempts"][:1], 1.0)
    await asyncio.sleep(0.06)
    await asyncio.to_thread(rollouts.tend, home)
    told = (await talks.call("GET", f"/v1/rollouts/{made['id']}"))[1]
    assert [one["state"] for one in told["rollouts"]] == ["done", "pending", "done"], "a worker still has the second"
    home.store.queue.called_off(made["attempts"][1], "w")
    await asyncio.to_thread(rollouts.tend, home)
    [group] = (await taken(talks)).groups
    assert [(one.valid, one.reward, one.cause and one.cause.value) for one in group.rollouts] == [
        (True, 1.0, None), (False, None, "cancelled"), (False, None, "cancelled")]
    assert (await talks.call("GET", f"/v1/rollouts/{made['id']}"))[1]["state"] == "finished"


async def test_a_stream_tells_every_change(served: tuple[Home, Talks]) -> None:
    """Each attempt as it changes, its record when it is done, the request at the end; then the stream ends."""
    home, talks = served
    made = await talks.ask(n=2)
    events: list[tuple[str, Any]] = []
    async with talks.session.get(f"{talks.url}/v1/rollouts/{made['id']}/events?records=true",
                                 headers={"Authorization": f"Bearer {KEY}"}) as answer:
        assert answer.content_type == "text/event-stream"
        name = ""
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                events.append((name, json.loads(line[6:])))
                if len(events) == 2:
                    end(home, made["attempts"], 1.0, None)
    assert [name for name, _ in events[:2]] == ["attempt", "attempt"]
    assert {told["attempt"]: told["reward"] for name, told in events if name == "rollout"} == dict(
        zip(made["attempts"], (1.0, None), strict=True))
    assert events[-1][0] == "end"
    assert events[-1][1]["state"] == "finished"


async def test_a_delivered_group_has_its_token_rows(tmp_path: Path) -> None:
    """Ids, mask, logprobs and the conversation it began with; secrets are masked, and spoil the ids beside them."""
    secret = "ghp_" + "a1B2" * 10
    with blank_home(tmp_path / "home") as home:
        stories = [("t", valid(1.0), lambda emit: Talk(emit, "Do it.").says("done")),
                   ("t", valid(0.0), lambda emit: Talk(emit, f"Use {secret}.").says("done"))]
        run = filled(home, stories)
        from woodshed.services.deliveries import rolled

        [(good, _, prompt), (spoilt, _, masked)] = rolled(home, run, home.store.attempts(run.id))
    assert good.trainable
    assert good.rows[0].token_ids[: good.rows[0].prompt_length] == (1, 2, 3)
    assert sum(good.rows[0].loss_mask) == 2
    assert prompt[0]["content"] == "Do it."
    assert not spoilt.trainable
    assert secret not in json.dumps([spoilt.to_json(), list(masked)])
    assert baseline([good, spoilt]).valid == 2, "its reward still counts"


async def test_a_stream_of_records_tells_each_model_call(tmp_path: Path) -> None:
    """With every field of its record, before the rollout that it is of; secrets are masked, and their ids not told."""
    secret = "ghp_" + "a1B2" * 10
    told: list[tuple[str, Any]] = []
    with blank_home(tmp_path / "home") as home:
        run = filled(home, [("t", valid(1.0), lambda emit: Talk(emit, "Do it.").says("done")),
                            ("t", valid(0.0), lambda emit: Talk(emit, f"Use {secret}.").says("done"))])
        async with aclosing(following.follow(home, run.id, records=True)) as events:
            while sum(name == "rollout" for name, _ in told) < 2:
                told.append(await anext(events))
    assert [name for name, _ in told] == ["attempt", "call", "rollout"] * 2
    calls = [CallRecord.model_validate(one) for name, one in told if name == "call"]
    assert [one.completion_token_ids for one in calls] == [(11, 2), None]
    assert [one.rollout for one in calls] == [one["rollout"] for name, one in told if name == "rollout"]
    assert secret not in json.dumps(told)


async def test_requests_are_listed_page_by_page(served: tuple[Home, Talks]) -> None:
    """The newest first, none twice, to the end."""
    _, talks = served
    asked = [(await talks.ask(seed=n))["id"] for n in range(3)]
    status, first = await talks.call("GET", "/v1/rollouts?most=2")
    rest = (await talks.call("GET", f"/v1/rollouts?most=2&before={first['before']}"))[1]
    found = [one["id"] for one in (*first["requests"], *rest["requests"])]
    assert (status, sorted(found), rest["before"]) == (200, sorted(asked), None)
    assert (await talks.call("GET", "/v1/rollouts?before=r-none"))[0] == 404


async def test_the_contract_names_what_is_asked_and_answered(served: tuple[Home, Talks]) -> None:
    """Every route, with the schema of its body and of its answers, and the key; every reference leads somewhere."""
    _, talks = served
    status, contract = await talks.call("GET", "/openapi.json")
    assert status == 200
    schemas = contract["components"]["schemas"]
    asking = contract["paths"]["/v1/rollouts"]["post"]
    assert asking["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Asked")
    assert set(schemas["Asked"]["properties"]) == set(Asked.model_fields)
    assert set(schemas["Delivered"]["properties"]) == set(Delivered.model_fields)
    references = [part.split('"')[0] for part in json.dumps(contract).split('"$ref": "#/components/schemas/')[1:]]
    assert set(references) <= set(schemas)
    assert contract["security"] == [{"key": []}]
    for path, methods in contract["paths"].items():
        for method, route in methods.items():
            assert route.get("description"), (path, method)


async def test_metrics_count_what_is_there(served: tuple[Home, Talks]) -> None:
    """Attempts by state, validity and cause, the valid rate, groups, queue, slots, versions, and requests by route."""
    home, talks = served
    made = await talks.ask(n=4, endpoint="policy", policy_version=3)
    await talks.call("PUT", "/v1/policies/policy", {"version": 4})
    end(home, made["attempts"][:3], 1.0, 0.0, None)
    home.store.queue.enlist("w", host="h", pid=1, slots=5)
    status, page = await talks.call("GET", "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert status == 200
    assert lines['woodshed_attempts{state="done",validity="valid",cause=""}'] == "2"
    assert lines['woodshed_attempts{state="done",validity="invalid",cause="environment"}'] == "1"
    assert lines['woodshed_attempts{state="pending",validity="",cause=""}'] == "1"
    assert float(lines["woodshed_valid_rate"]) == pytest.approx(2 / 3)
    assert lines['woodshed_groups{state="partial"}'] == "1"
    assert lines['woodshed_queue{state="ready"}'] == "1"
    assert lines['woodshed_slots{state="offered"}'] == "5"
    assert lines['woodshed_policy_version{endpoint="policy"}'] == "4"
    assert lines['woodshed_http_requests_total{route="/v1/rollouts",method="POST",status="201"}'] == "1"
    assert "woodshed_oldest_ready_group_seconds" not in lines
    end(home, made["attempts"][3:], 1.0)
    assert "woodshed_oldest_ready_group_seconds 0" in (await talks.call("GET", "/metrics"))[1]


def test_an_answer_may_hold_what_is_no_unicode() -> None:
    """A name with a half surrogate pair is told, escaped; anything else is UTF-8."""
    odd = Settled(done=("a\udc80b",), lost=("ü",))
    assert json.loads(bytes(plain(odd).body)) == odd.to_json()
    assert "ü".encode() in bytes(plain(Settled(done=(), lost=("ü",))).body)


def test_the_offer_of_the_tests_is_what_a_command_makes() -> None:
    """One endpoint by name; the roots are resolved."""
    offer = an_offer()
    assert list(offer.endpoints) == ["policy"]
    assert offer.roots[0].is_absolute()
