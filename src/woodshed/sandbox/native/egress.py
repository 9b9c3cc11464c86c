"""The egress of a native sandbox: its sockets are made in the sandbox's network namespace and served from here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from woodshed.model.network import NetworkPolicy
from woodshed.sandbox.egress import inject, outer
from woodshed.sandbox.egress.ca import VARIABLES, Authority
from woodshed.sandbox.egress.inject import Secret
from woodshed.sandbox.egress.proxy import Egress
from woodshed.sandbox.egress.upstream import Outside
from woodshed.sandbox.native.files import Files

CA_FILE = "/dev/shm/woodshed-ca.pem"  # noqa: S108 (the box's own; writable under any policy, and in no capture)


class Network:
    """What one sandbox has of the network by its policy."""

    def __init__(self, policy: NetworkPolicy, outside: Outside, authority: Authority | None) -> None:
        """Raises UsageError where a secret is missing."""
        secrets = inject.read(policy)
        self.egress = Egress(policy, outside, secrets=secrets, authority=authority)
        self._secrets: Mapping[str, Secret] = secrets
        self._authority = authority

    def trust(self) -> dict[str, str]:
        """Variables by which programs find the authority that this sandbox is to trust."""
        return dict.fromkeys(VARIABLES, CA_FILE) if self._authority is not None else {}

    def placeholders(self) -> dict[str, str]:
        """What stands for secrets, by variable."""
        return {name: secret.placeholder.decode() for name, secret in self._secrets.items()}

    def take(self, fds: list[int]) -> None:
        """Serve the sockets that the fork server hands over, in the order of ``inside/networks.py``."""
        asked, named, *listeners = (socket.socket(fileno=fd) for fd in fds)
        self.egress.serve(asked, named, listeners)

    async def introduce(self, files: Files) -> None:
        """Leave the file that :meth:`trust` names, in a sandbox that serves. Raises SandboxDied, OSError."""
        if self._authority is not None:
            await files.write(CA_FILE, self._authority.bundle())


def check(policy: NetworkPolicy) -> None:
    """Its secrets are there, and what it needs is installed. Raises UsageError, Unsupported."""
    inject.read(policy)
    outer.chosen()
    if any(rule.intercept for rule in policy.rules):
        Authority()


def notes(policy: NetworkPolicy) -> tuple[str, ...]:
    """What the policy does not hold though it may look so, a sentence each."""
    told = ["network: '*' lets data out to every public host, an attacker's too"
            for rule in policy.rules if rule.host == "*"]
    told += [f"network: {rule.host} is raw, so nothing but its name, port and bytes is checked"
             for rule in policy.rules if rule.raw]
    if policy and outer.chosen():
        told.append("network: a proxy outside resolves names, so it alone keeps them from leading to private addresses")
    return tuple(told)


async def network(policy: NetworkPolicy, outside: Outside) -> Network | None:
    """Of a policy with rules; None where there are none. Raises UsageError, Unsupported."""
    if not policy:
        return None
    await outside.prepare(policy)
    intercepts = any(rule.intercept for rule in policy.rules)
    return Network(policy, outside, await asyncio.to_thread(Authority) if intercepts else None)
