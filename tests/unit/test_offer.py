"""What a service offers: tasks below folders that were given, agents that read nothing, endpoints that fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from servekit import a_task
from woodshed.errors import Missing, UsageError
from woodshed.model.delivery import Address, Asked
from woodshed.model.rollout import CaptureLevel
from woodshed.services.offer import Offer, made, pattern


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Two folders that are served, one that is not, and links between them."""
    for name in ("one/a", "one/deep/b", "one/deep/c", "two/a", "two/d", "hidden/secret"):
        a_task(tmp_path / name)
    (tmp_path / "one" / "inside").symlink_to(tmp_path / "one" / "deep")
    (tmp_path / "one" / "out").symlink_to(tmp_path / "hidden" / "secret")
    (tmp_path / "one" / "up").symlink_to("..")
    return tmp_path


@pytest.fixture
def offer(places: Path) -> Offer:
    """Of both folders."""
    return made([places / "one", places / "two"], endpoints=["policy=tiny@http://10.0.0.5:8000/v1"],
                patterns=["http://127.0.0.1:*/v1"])


def test_tasks_are_named_below_the_roots(offer: Offer, places: Path) -> None:
    """One by its path, a folder for all below it, each once, links that stay inside followed."""
    one = places / "one"
    assert offer.folders(["deep"]) == [one / "deep" / "b", one / "deep" / "c"]
    assert offer.folders(["deep/b", "inside/b", "d"]) == [one / "deep" / "b", places / "two" / "d"]


@pytest.mark.parametrize("name", ["../hidden/secret", "/etc", "deep/../../hidden", "..", "deep\\b", "a\0", "/",
                                  "deep//../.."])
def test_a_path_is_no_name(offer: Offer, name: str) -> None:
    """Whatever leads out, or could, is refused before anything is looked at."""
    with pytest.raises(UsageError):
        offer.folders([name])


@pytest.mark.parametrize("name", ["out", "up", "up/hidden/secret", "nothing", "deep/b/task.toml", "x" * 300])
def test_what_leads_elsewhere_is_not_there(offer: Offer, name: str) -> None:
    """A link out of its root is as good as nothing, and so is what is no folder; nothing tells them apart."""
    with pytest.raises(Missing) as caught:
        offer.folders([name])
    assert caught.value.message == f"no task {name!r}"


def test_a_name_of_two_folders_is_neither(offer: Offer) -> None:
    """Which was meant is not guessed."""
    with pytest.raises(UsageError, match="2 of the folders"):
        offer.folders(["a"])


@pytest.mark.parametrize("agent", ["replay:/etc/passwd", "patch:/etc/passwd", "cheat:x", "external:/tmp/x.toml",
                                   "external:command:id", "external", "replay", "none", "nop:x"])
def test_agents_that_read_or_run_are_not_offered(offer: Offer, agent: str) -> None:
    """Files and commands of the asker's are none of ours, unless the operator names them."""
    with pytest.raises(UsageError, match="not offered"):
        offer.agent(Asked(tasks=["d"], agent=agent))


def test_the_operator_offers_more(places: Path) -> None:
    """By name on the command line, or declared in a file, with limits of its own that a request may replace."""
    file = places / "serve.toml"
    file.write_text('[agents.coder]\nharness = "loop"\nlimits = {turns = 7}\n'
                    '[endpoints.big]\nname = "qwen"\nbase_url = "http://10.0.0.9/v1"\nsampling = {temperature = 1.0}\n')
    offer = made([places / "one"], file=file, agents=["external:command:true"])
    coder, label = offer.agent(Asked(tasks=["a"], agent="coder"), version=4)
    assert (coder.name, coder.harness, coder.limits.turns, label) == ("coder", "loop", 7, "big")
    assert coder.model is not None
    assert (coder.model.sampling.temperature, coder.model.policy_version) == (1.0, "4")
    assert offer.agent(Asked(tasks=["a"], agent="external:command:true"))[0].harness == "external:command:true"


def test_what_is_asked_of_the_sampler_is_laid_over(offer: Offer) -> None:
    """Only what was said replaces the endpoint's own; capture asks for logprobs, and refuses less."""
    asked = Asked.model_validate({"tasks": ["a"], "agent": "loop", "sampling": {"top_p": 0.5}, "capture": True})
    agent, label = offer.agent(asked)
    assert agent.model is not None
    assert (agent.model.sampling.top_p, agent.model.sampling.max_tokens, label) == (0.5, 2048, "policy")
    assert (agent.model.capture, agent.model.capture_least) == ("auto", CaptureLevel.LOGPROBS)


def test_an_endpoint_is_declared_or_fits(offer: Offer) -> None:
    """By its name, by an address that fits; anything else is refused, and a request's address carries no key."""
    label, model = offer.endpoint(Address(base_url="http://127.0.0.1:9999/v1/", model="m"))
    assert (label, model.name, model.key_variable) == ("http://127.0.0.1:9999/v1", "m", None)
    with pytest.raises(Missing):
        offer.endpoint("other")
    with pytest.raises(UsageError, match="not allowed"):
        offer.endpoint(Address(base_url="http://169.254.169.254/v1", model="m"))


@pytest.mark.parametrize(("text", "url", "allowed"), [
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1", True),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1/", True),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8001/v1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.evil:8000/v1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5.evil.org:8000/v1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1x", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1/../admin", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1/%2e%2e/admin", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000@evil.org/v1", False),
    ("http://10.0.0.*:8000/v1", "http://user@10.0.0.5:8000/v1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1?x=1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1#x", False),
    ("http://10.0.0.*:8000/v1", "https://10.0.0.5:8000/v1", False),
    ("http://10.0.0.*:8000/v1", "http://10.0.0.5:8000/v1,http://evil.org/v1", False),
    ("https://*.example.org", "https://a.example.org/v1", True),
    ("https://*.example.org", "https://A.B.EXAMPLE.org/v1", True),
    ("https://*.example.org", "https://example.org/v1", False),
    ("https://*.example.org", "https://evilexample.org/v1", False),
    ("https://*.example.org", "https://a.example.org.evil.net/v1", False),
    ("https://*.example.org", "https://a.example.org:8443/v1", False),
    ("https://*.example.org:*", "https://a.example.org:8443/v1", True),
    ("http://localhost:8000", "http://localhost:8000/v1", True),
    ("http://localhost:8000", "http://localhost:8000\\@evil.org/v1", False),
    ("http://localhost:8000", "http://localhost:99999/v1", False),
    ("http://[::1]:8000", "http://[::1]:8000/v1", True),
])
def test_a_pattern_allows_what_it_says(text: str, url: str, allowed: bool) -> None:
    """And nothing that only looks like it."""
    assert pattern(text).allows(url) is allowed


@pytest.mark.parametrize("text", ["*", "http://*", "http://*:80", "ftp://x", "http://a*b.org", "http://10.*", "x.org",
                                  "http://a.*.org", "http://*.1.2.3", "http://u@x.org", "http://*.*.org", ""])
def test_a_pattern_that_says_too_much_is_none(text: str) -> None:
    """A star stands for names below one, or for a number of an address, and a scheme is always said."""
    with pytest.raises(UsageError):
        pattern(text)
