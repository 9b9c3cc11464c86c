"""The network of one sandbox: answers its questions for names, judges its connections, and carries what may pass."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from woodshed.model.network import NetworkPolicy
from woodshed.sandbox.egress import dns
from woodshed.sandbox.egress.admission import Admission
from woodshed.sandbox.egress.ca import Authority
from woodshed.sandbox.egress.decisions import Decisions
from woodshed.sandbox.egress.doors import Door, door, questions
from woodshed.sandbox.egress.inject import Secret
from woodshed.sandbox.egress.names import Names
from woodshed.sandbox.egress.rules import Rules
from woodshed.sandbox.egress.upstream import ASKING, Outside
from woodshed.sandbox.egress.visit import HEAD_S, Visit
from woodshed.sandbox.egress.wires import Plain, Wire

_MOST_QUESTIONS = 100
"""On one connection of DNS over TCP."""


class Egress:
    """Everything the sandbox sends arrives at the sockets given to :meth:`serve`; nothing of it goes anywhere else."""

    def __init__(
        self, policy: NetworkPolicy, outside: Outside, *, secrets: Mapping[str, Secret] | None = None,
        authority: Authority | None = None,
    ) -> None:
        """``authority`` where a rule has ``intercept``; ``secrets`` by the variable that holds their placeholder."""
        self.decisions, self.rules = Decisions(), Rules(policy)
        self._outside, self._secrets, self._authority = outside, secrets or {}, authority
        self._asking = asyncio.Semaphore(ASKING)
        self._names, self._most = Names(), policy.connections
        self._doors: list[Door] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, asked: socket.socket, named: socket.socket, listeners: Sequence[socket.socket]) -> None:
        """Begin. ``asked``: UDP port 53, bound to any address; ``named``: TCP port 53; ``listeners``: of rules."""
        self._outside.seats.enter(self)
        self._doors = [questions(asked, self._answer), door(named, self._ask, self._free),
                       *(door(listener, self._admit, self._free) for listener in listeners)]

    async def close(self) -> None:
        """Nothing passes any more. Idempotent."""
        for one in self._doors:
            one.close()
        self._doors = []
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._outside.seats.leave(self)
        self.decisions.close()

    # -- names ---------------------------------------------------------------------------------------------------------

    def _answer(self, data: bytes) -> bytes | None:
        """The answer to one message of DNS. What is allowed has one address; nothing is asked of anybody."""
        try:
            question = dns.read(data)
        except dns.Malformed as error:
            self.decisions.made("refused", "dns", reason=str(error))
            return error.reply
        if not self.rules.knows(question.name):
            self.decisions.made("refused", "dns", host=question.name, reason="no rule for this host")
            return dns.answer(question, dns.NXDOMAIN)
        if question.kind != dns.A:
            return dns.answer(question, dns.NOERROR)  # the name is there, and has nothing of this kind: no AAAA, no ECH
        address, new = self._names.address(question.name)
        if new:
            self.decisions.made("allowed", "dns", host=question.name)
        return dns.answer(question, dns.NOERROR, socket.inet_aton(address))

    async def _over_tcp(self, wire: Wire) -> None:
        """RFC 1035, section 4.2.2: each message behind its length."""
        buffer = bytearray()
        for _ in range(_MOST_QUESTIONS):
            async with asyncio.timeout(HEAD_S):
                while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2], "big"):
                    data = await wire.read()
                    if not data:
                        return
                    buffer += data
            end = 2 + int.from_bytes(buffer[:2], "big")
            answer = self._answer(bytes(buffer[2:end]))
            del buffer[:end]
            if answer is None:
                return
            await wire.write(len(answer).to_bytes(2, "big") + answer)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _ask(self, end: socket.socket) -> None:
        self._begin(end, self._quietly(end))

    def _admit(self, end: socket.socket) -> None:
        self._begin(end, self._connection(end))

    def _free(self) -> bool:
        return self._outside.seats.free(self)

    def _begin(self, end: socket.socket, doing: Coroutine[Any, Any, None]) -> None:
        """Run ``doing`` unless too many run."""
        if len(self._tasks) >= self._most:
            doing.close()
            self.decisions.made("refused", "tcp", reason=f"more than {self._most} connections")
            end.close()
            return
        self._outside.seats.take(self)
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._outside.seats.give_back(self)

    async def _quietly(self, end: socket.socket) -> None:
        wire = Plain(end)
        try:
            await self._over_tcp(wire)
        except OSError:
            pass  # TimeoutError is one
        finally:
            wire.close()

    async def _connection(self, end: socket.socket) -> None:
        wire, orderly = Plain(end), False
        try:
            orderly = await self._judge(wire, end)
        finally:
            wire.close(abort=not orderly)

    async def _judge(self, wire: Plain, end: socket.socket) -> bool:
        """Let a connection pass or not; whether it came to an orderly end."""
        address, port = end.getsockname()[:2]
        name = self._names.name(address)
        if name is None:
            self.decisions.made("refused", "tcp", host=address, port=port, reason="an address that no name led to")
            return False
        grant = self.rules.find(name, port)
        if grant is None:
            self.decisions.made("refused", "tcp", host=name, port=port, reason="no rule for this port")
            return False
        visit = Visit(name, port, grant, self.decisions)
        return await Admission(visit, self._outside, self._asking, self._secrets, self._authority).run(wire)
