"""Agents and models by name, as the command line says them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.model import Agent, Sampling
from woodshed.services.agents import build, parse_model
from woodshed.services.endpoints import Endpoints


def test_a_name_and_an_address_are_an_endpoint() -> None:
    """NAME@URL is a model at that place; a slash at its end does not matter."""
    spec = parse_model("org/qwen3@http://[::1]:8000/v1/", sampling=Sampling(), key_variable="MY_KEY")
    assert (spec.name, spec.base_url, spec.key_variable) == ("org/qwen3", "http://[::1]:8000/v1", "MY_KEY")


@pytest.mark.parametrize("address", [
    "http://me:secret@host/v1", "https://secret@host/v1", "https://host/v1?key=secret", "https://host/v1#secret",
    "http://secret:99999/v1", "http://[secret/v1", "http:///secret", "http://host:0/secret",
])
def test_an_address_with_a_secret_or_without_a_place_is_refused(address: str) -> None:
    """What would be recorded with a password in it, or cannot be reached, is refused without showing it."""
    with pytest.raises(UsageError) as refused:
        parse_model(f"m@{address}", sampling=Sampling())
    assert "secret" not in str(refused.value)
    assert "--model-key" in str(refused.value)


async def test_a_persons_model_is_blamed_where_it_was_named(tmp_path: Path) -> None:
    """What is wrong with the model of a person is said of --person: malformed, without a host, or not answering."""
    for text in ("nobody", "m@http:///v1"):
        with pytest.raises(UsageError) as refused:
            parse_model(text, sampling=Sampling(), field="--person")
        assert refused.value.field == "--person"
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        person = parse_model(f"m@http://127.0.0.1:{deaf.getsockname()[1]}/v1", sampling=Sampling())
        with pytest.raises(UsageError, match="no model answers") as silent:
            await Endpoints(tmp_path, [], parallel=1, person=person).__aenter__()
    assert silent.value.field == "--person"


def test_tools_are_chosen_when_agents_are_built() -> None:
    """What an agent may use is part of its record; a tool that does not exist is refused before anything runs."""
    [agent] = build(["nop"], None, tools=["default", "jobs"])
    assert agent.tools == ("default", "jobs")
    assert Agent.model_validate(agent.model_dump(exclude={"tools"})).tools == ("default",)
    with pytest.raises(UsageError, match="Did you mean 'jobs'"):
        build(["nop"], None, tools=["job"])
