"""Network policies: contradictions are errors at load, and the longest host that matches decides, alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from woodshed.errors import UsageError
from woodshed.model import SandboxPolicy
from woodshed.model.network import HostRule, NetworkPolicy, split_address
from woodshed.sandbox.egress import inject
from woodshed.sandbox.egress.rules import Rules
from woodshed.services.boxes import load_policy

SECRET = {"name": "TOKEN", "env": "COMPANY_TOKEN"}
WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"host": "1.2.3.4"}, "host", "an address is no host"),
    ({"host": "::1"}, "host", "an address is no host"),
    ({"host": "exa mple.org"}, "host", "no host"),
    ({"host": "a.*.org"}, "host", "no host"),
    ({"host": "*."}, "host", "no host"),
    ({"host": ""}, "host", "no host"),
    ({"host": "bücher.example"}, "host", "xn--"),
    ({"host": "-x.org"}, "host", "no host"),
    ({"host": "x" * 64 + ".org"}, "host", "no host"),
    ({"host": "x.org", "ports": []}, "ports", "one or more"),
    ({"host": "x.org", "ports": [53]}, "ports", "53"),
    ({"host": "x.org", "ports": [0]}, "ports", "0"),
    ({"host": "x.org", "ports": [80, 80]}, "ports", "different"),
    ({"host": "x.org", "methods": ["GET"]}, "methods", "upstream_tls"),
    ({"host": "x.org", "read_only": True}, "read_only", "intercept"),
    ({"host": "x.org", "secrets": [SECRET]}, "secrets", "upstream_tls"),
    ({"host": "x.org", "upstream_tls": True, "methods": ["CONNECT"]}, "methods", "CONNECT"),
    ({"host": "x.org", "upstream_tls": True, "methods": ["get"]}, "methods", "capitals"),
    ({"host": "x.org", "upstream_tls": True, "methods": ["GET"], "read_only": True}, "read_only", "methods"),
    ({"host": "*.x.org", "upstream_tls": True, "secrets": [SECRET]}, "secrets", "pattern"),
    ({"host": "x.org", "upstream_tls": True, "secrets": [{"name": "T"}]}, "secrets", "one of env and file"),
    ({"host": "x.org", "upstream_tls": True, "secrets": [SECRET | {"file": "/x"}]}, "secrets", "one of env and file"),
    ({"host": "x.org", "upstream_tls": True, "secrets": [SECRET | {"name": "A=B"}]}, "secrets.0.name", "variable"),
    ({"host": "x.org", "raw": True, "intercept": True}, "raw", "nothing is read"),
    ({"host": "*", "private": True}, "private", "named"),
    ({"host": "*.x.org", "address": "10.0.0.1"}, "address", "named"),
    ({"host": "x.org", "address": "y.org:443"}, "address", "no IP address"),
    ({"host": "x.org", "address": "10.0.0.1:0"}, "address", "port"),
    ({"host": "x.org", "ca_file": "/ca.pem"}, "ca_file", "upstream_tls"),
    ({"host": "x.org", "upstream_tls": True, "ca_file": "ca.pem"}, "ca_file", "absolute"),
    ({"host": "x.org", "hosts": []}, "hosts", "unknown key"),
)


@pytest.mark.parametrize(("rule", "field", "word"), WRONG, ids=lambda value: str(value)[:60])
def test_a_rule_that_cannot_hold_is_refused_at_load(rule: dict[str, Any], field: str, word: str) -> None:
    """The error names the field of the rule and what is wrong."""
    with pytest.raises(UsageError) as caught:
        SandboxPolicy.parse({"network": {"rules": [rule]}}, file="p.toml")
    assert caught.value.field == f"network.rules.0.{field}"
    assert word in str(caught.value)


def test_rules_that_contradict_each_other_are_refused() -> None:
    """One host and port has one rule, and one variable one secret, which no other variable of the policy sets."""
    with pytest.raises(UsageError, match=r"two rules for x\.org on port 443"):
        NetworkPolicy.parse({"rules": [{"host": "x.org"}, {"host": "X.org.", "ports": [443]}]})
    other = {"host": "y.org", "upstream_tls": True, "secrets": [SECRET | {"env": "OTHER"}]}
    with pytest.raises(UsageError, match="two sources"):
        NetworkPolicy.parse({"rules": [{"host": "x.org", "upstream_tls": True, "secrets": [SECRET]}, other]})
    with pytest.raises(UsageError, match="set by a secret"):
        SandboxPolicy.parse({"network": {"rules": [other]}, "env": {"TOKEN": "x"}})
    with pytest.raises(UsageError, match="64 different ports"):
        NetworkPolicy.parse({"rules": [{"host": "x.org", "ports": list(range(1000, 1065))}]})


def test_no_network_is_the_default_and_may_be_said() -> None:
    """False, and no rules, are the same: none. True names no host and is an error that says what to write."""
    assert not SandboxPolicy().network
    assert SandboxPolicy.parse({"network": False}) == SandboxPolicy()
    assert SandboxPolicy(network=False) == SandboxPolicy.parse({"network": {}})
    with pytest.raises(UsageError, match=r"\[\[network\.rules\]\]"):
        SandboxPolicy.parse({"network": True})
    given = SandboxPolicy.parse({"network": {"rules": [{"host": "x.org"}]}})
    assert given.network
    assert SandboxPolicy.parse(given.to_json()) == given


def test_a_policy_file_may_have_rules(tmp_path: Path) -> None:
    """The example of the documentation loads."""
    file = tmp_path / "policy.toml"
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
    file.write_text(page.partition("```toml\n")[2].partition("```")[0])
    policy = load_policy(file)
    assert {rule.host for rule in policy.network.rules} >= {"pypi.org", "files.pythonhosted.org"}


def test_the_longest_host_decides_alone() -> None:
    """An exact host before patterns, a longer pattern before a shorter; what its rule leaves out no other gives."""
    rules = Rules(NetworkPolicy.parse({"rules": [
        {"host": "*", "ports": [443]}, {"host": "*.x.org", "ports": [80]}, {"host": "*.a.x.org", "ports": [81]},
        {"host": "b.x.org", "ports": [82]}, {"host": "b.x.org", "ports": [83]}]}))

    def ports(name: str) -> list[int]:
        return [port for port in range(75, 450) if rules.find(name, port) is not None]

    assert ports("anything.test") == ports("x.org") == [443]
    assert ports("c.x.org") == ports("c.d.x.org") == [80]
    assert ports("c.a.x.org") == [81]
    assert ports("a.x.org") == [80]
    assert ports("b.x.org") == [82, 83]
    assert not rules.knows("")
    assert not Rules(NetworkPolicy(rules=(HostRule(host="*.x.org"),))).knows("x.org")
    assert not Rules(NetworkPolicy(rules=(HostRule(host="x.org"),))).knows("evilx.org")


@pytest.mark.parametrize("name", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "a.0x7f.1", "x.1", "x.0x"])
def test_no_pattern_is_for_an_address_in_the_guise_of_a_name(name: str) -> None:
    """What a resolver or a proxy could take for an address is no name, however wide the rule."""
    rules = Rules(NetworkPolicy.parse({"rules": [{"host": "*"}, {"host": "*.0.0.1"}, {"host": "*.x"}]}))
    assert not rules.knows(name)
    assert rules.knows("1.0x7f.test")
    assert rules.knows("127.0.0.1.test")


@pytest.mark.parametrize(("text", "parts"), [
    ("10.0.0.1", ("10.0.0.1", None)), ("10.0.0.1:8080", ("10.0.0.1", 8080)), ("[::1]:443", ("::1", 443)),
    ("::1", ("::1", None)), ("[::1]", ("::1", None)), ("2001:db8::1", ("2001:db8::1", None)),
])
def test_addresses_have_a_port_or_not(text: str, parts: tuple[str, int | None]) -> None:
    """IPv4 and IPv6 literals, with a port where one follows; an IPv6 address is not cut at its last colon."""
    assert split_address(text) == parts


@pytest.mark.parametrize("content", [b"short", b"with a space in it", b"\n", b"line\nbreak-in-it", b"x" * 9000])
def test_what_is_no_secret_is_refused_without_being_told(content: bytes, tmp_path: Path) -> None:
    """A file that is too short, too long, or not one word is an error that does not show it."""
    path = tmp_path / "token"
    path.write_bytes(content)
    policy = NetworkPolicy.parse({"rules": [
        {"host": "x.org", "upstream_tls": True, "secrets": [{"name": "TOKEN", "file": str(path)}]}]})
    with pytest.raises(UsageError) as caught:
        inject.read(policy)
    assert content.decode().strip() not in str(caught.value) or not content.strip()


def test_a_secret_is_read_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the line's end; each sandbox gets a placeholder of its own, and no repr shows the value."""
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("COMPANY_TOKEN", "of-the-variable")
    policy = NetworkPolicy.parse({"rules": [{"host": "x.org", "upstream_tls": True, "secrets": [
        SECRET, {"name": "OTHER", "file": str(tmp_path / "token")}]}]})
    first, second = inject.read(policy), inject.read(policy)
    assert [secret.value for secret in first.values()] == [b"of-the-variable", b"of-the-file"]
    assert len({secret.placeholder for made in (first, second) for secret in made.values()}) == 4
    assert "of-the" not in repr(first)
