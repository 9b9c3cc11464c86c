"""Which hosts a task declares for its agent and its verifier, as rules of a sandbox's policy."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import NoReturn

from pydantic import ValidationError

from woodshed.model.network import HostRule, NetworkPolicy
from woodshed.tasks.schema import AgentTable, EnvironmentTable, NetworkMode, VerifierTable

Fail = Callable[[str, str, str], NoReturn]
_NONE, _PUBLIC = NetworkPolicy(), NetworkPolicy(rules=(HostRule(host="*"),))
_HOSTS = "Name hosts, as in example.com or *.example.com."


def network(
    phase: AgentTable | VerifierTable, environment: EnvironmentTable, name: str, fail: Fail, *,
    within: str = "environment",
) -> NetworkPolicy:
    """What ``phase`` (the table ``name``) may reach: its own word, else ``environment``'s (the table ``within``).

    None where both are silent: unlike in Harbor, a task that says nothing has no network.
    """
    own = _declared(phase, name, fail)
    if own is not None:
        return own
    declared = _declared(environment, within, fail)
    if declared is None and environment.allow_internet:
        return _PUBLIC
    return declared or _NONE


def _declared(table: AgentTable | VerifierTable | EnvironmentTable, name: str, fail: Fail) -> NetworkPolicy | None:
    field = f"{name}.allowed_hosts"
    if table.allowed_hosts and table.network_mode is not NetworkMode.ALLOWLIST:
        fail(field, 'hosts are only for network_mode = "allowlist"', "Write that mode, or remove the hosts.")
    if table.network_mode is None:
        return None
    if table.network_mode is not NetworkMode.ALLOWLIST:
        return _PUBLIC if table.network_mode is NetworkMode.PUBLIC else _NONE
    hosts = dict.fromkeys(host.strip().lower().rstrip(".") for host in table.allowed_hosts or ())
    return NetworkPolicy(rules=tuple(_rule(host, field, fail) for host in hosts))


def _rule(host: str, field: str, fail: Fail) -> HostRule:
    if _address(host):
        fail(field, f"{host} is an address, and a sandbox reaches hosts by their names alone", _HOSTS)
    if host == "*":
        fail(field, "'*' is no host of an allowlist", 'Write network_mode = "public" for all of them.')
    try:
        return HostRule(host=host)
    except ValidationError:
        fail(field, f"{host[:80]!r} is no host", _HOSTS)


def _address(host: str) -> bool:
    try:
        ipaddress.ip_network(host.strip("[]"), strict=False)
    except ValueError:
        return False
    return True
