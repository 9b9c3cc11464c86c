"""What a sandbox says is read strictly: DNS questions, ClientHellos, requests; and addresses are judged."""

from __future__ import annotations

import ssl
import struct

import pytest

from woodshed.sandbox.egress import dns, http, tls
from woodshed.sandbox.egress.addresses import is_own, why_refused

PUBLIC = ("1.1.1.1", "8.8.8.8", "151.101.0.223", "2606:4700::6810:84e5", "2a04:4e42::223")
PRIVATE = ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12:3456::1")
NEVER = (
    "0.0.0.0", "127.0.0.1", "127.255.0.1", "169.254.169.254", "169.254.170.2", "192.0.0.192", "192.0.2.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.7", "203.0.113.7", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "192.88.99.1", "100.100.100.200", "168.63.129.16", "::", "::1", "::ffff:1.1.1.1", "::ffff:10.0.0.1", "::1.1.1.1",
    "64:ff9b::1.1.1.1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::", "3fff::1", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "5f00::1",
    "not-an-address", "", "1.2.3",
)  # fmt: skip


def test_only_public_addresses_may_be_reached() -> None:
    """Public ones are, those of organisations where a rule says so, and all that is special never."""
    assert [why_refused(address) for address in PUBLIC] == [None] * len(PUBLIC)
    assert None not in [why_refused(address) for address in (*PRIVATE, *NEVER)]
    assert [why_refused(address, private=True) for address in (*PUBLIC, *PRIVATE)] == [None] * 11
    assert [address for address in NEVER if why_refused(address, private=True) is None] == []


def test_this_machines_own_addresses_are_known() -> None:
    """An address that a packet to it would be sent from is ours."""
    assert is_own("127.0.0.1", 80)
    assert not is_own("192.0.2.1", 80)


# -- DNS ---------------------------------------------------------------------------------------------------------------


def question(name: str, kind: int = dns.A, *, flags: int = 0x0100, count: int = 1, group: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split(".") if label)
    return struct.pack("!HHHHHH", 7, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, group)


def test_a_question_is_read_and_answered() -> None:
    """The name comes in lower case, and an answer repeats the question as it was asked and holds the address."""
    asked = dns.read(question("WWW.Example.org") + b"\0\0)\x04\xd0\0\0\0\0\0\0")  # and EDNS
    assert (asked.name, asked.kind) == ("www.example.org", dns.A)
    reply = dns.answer(asked, dns.NOERROR, b"\xc6\x12\0\1")
    ident, flags, questions, answers, *_ = struct.unpack_from("!HHHHHH", reply)
    assert (ident, flags & 0x8000, flags & 0x0F, questions, answers) == (7, 0x8000, 0, 1, 1)
    assert reply[12:].startswith(b"\3WWW\7Example\3org\0")
    assert reply.endswith(b"\0\4\xc6\x12\0\1")


@pytest.mark.parametrize(("data", "code"), [
    (b"", None), (b"\0" * 11, None), (question("a.org", flags=0x8100), None),
    (question("a.org", flags=0x2000), dns.NOTIMP), (question("a.org", group=3), dns.NOTIMP),
    (question("a.org", count=0), dns.FORMERR), (question("a.org", count=2), dns.FORMERR),
    (question("a.org")[:-1], dns.FORMERR), (question("a.org")[:14], dns.FORMERR),
    (question("a.org")[:12] + b"\xc0\x0c\0\1\0\1", dns.FORMERR), (question("a b.org"), dns.FORMERR),
    (question("a.org") + bytes(5000), dns.FORMERR), (question(".".join(["x" * 60] * 5)), dns.FORMERR),
])  # fmt: skip
def test_what_is_no_question_gets_an_error_or_nothing(data: bytes, code: int | None) -> None:
    """Answers are never answered; what is malformed gets a short error with its number."""
    with pytest.raises(dns.Malformed) as caught:
        dns.read(data)
    reply = caught.value.reply
    assert (reply and reply[3] & 0x0F) == code
    assert reply is None or (len(reply) == 12 and reply[:2] == data[:2])


# -- TLS ---------------------------------------------------------------------------------------------------------------


def hello(name: str | None, *protocols: str) -> bytes:
    """What this Python's OpenSSL says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def with_extension(data: bytes, kind: int, body: bytes) -> bytes:
    """A ClientHello with one more extension."""
    message = data[9:]
    at = 34
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at:at + 2], "big")
    at += 1 + message[at]
    extensions = message[at + 2:] + struct.pack("!HH", kind, len(body)) + body
    message = message[:at] + struct.pack("!H", len(extensions)) + extensions
    return b"\x16\3\1" + struct.pack("!H", len(message) + 4) + b"\1" + len(message).to_bytes(3, "big") + message


def test_a_client_hello_tells_its_host() -> None:
    """Name and protocols are found, whole or byte by byte, in one record or several."""
    data = hello("www.Example.org", "h2", "http/1.1")
    found = tls.read(data)
    assert found == tls.Hello("www.example.org", ("h2", "http/1.1"), hidden=False)
    assert [tls.read(data[:end]) for end in range(len(data))] == [None] * len(data)
    body = data[5:]
    parts = [body[:3], body[3:100], body[100:]]
    assert tls.read(b"".join(b"\x16\3\1" + struct.pack("!H", len(part)) + part for part in parts)) == found


def test_a_client_hello_without_a_name_or_with_ech_is_known_as_such() -> None:
    """No server name is None; an encrypted ClientHello is told."""
    nameless = tls.read(hello(None))
    assert nameless is not None
    assert nameless.name is None
    for kind in (0xFE0D, 0xFE08, 0xFFCE):  # and what came before it
        hidden = tls.read(with_extension(hello("a.org"), kind, b"\0" * 20))
        assert hidden is not None
        assert hidden.hidden


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n", b"\x16\x02\x00", b"\x16\3\1\0\0", b"\x16\3\1\xff\xff", b"\x16\3\1\0\4\2\0\0\0",
    b"\x15\3\1\0\2\2P",
    with_extension(hello("a.org"), 0, b"\0\7\0\0\4evil"), with_extension(hello(None), 0, b"\0\7\1\0\4evil"),
    with_extension(hello(None), 0, b"\0\x0e\0\0\4evil\0\0\4more"), with_extension(hello(None), 0, b"\0\7\0\0\4e il"),
    with_extension(hello(None), 0, b"\0\3\0\0\0"), with_extension(hello(None), 0, b"\0\7\0\0\4\xffvil"),
    b"\x16\3\1\0\1\1" * 40,
])  # fmt: skip
def test_what_is_no_client_hello_is_refused(data: bytes) -> None:
    """Other protocols, impossible lengths, two names, names of odd bytes, and a hello in crumbs."""
    with pytest.raises(tls.Malformed):
        tls.read(data)


# -- HTTP --------------------------------------------------------------------------------------------------------------


def take(text: str) -> http.Request:
    buffer = bytearray(text.encode("latin-1"))
    request = http.take(buffer)
    assert request is not None
    return request


def test_a_request_is_read_and_written_anew() -> None:
    """What concerns one connection alone is left out, framing and Host are written once, the rest stays as it came."""
    request = take("POST /a?b=c HTTP/1.1\r\nhost: A.org:80\r\nX-One: 1 \r\nConnection: keep-alive, X-One\r\n"
                   "TE: trailers\r\nContent-Length: 5\r\nProxy-Authorization: x\r\n\r\n")
    assert (request.method, request.path, request.host, request.port, request.length, request.last) == (
        "POST", "/a?b=c", "a.org", 80, 5, False)
    assert request.written() == (
        b"POST /a?b=c HTTP/1.1\r\nHost: a.org:80\r\nX-One: 1\r\nContent-Length: 5\r\n\r\n")
    assert request.written(host="b.org", close=True).startswith(b"POST /a?b=c HTTP/1.1\r\nHost: b.org\r\n")
    assert take("GET / HTTP/1.0\r\nHost: a\r\n\r\n").last
    last = take("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n")
    assert last.written().endswith(b"Connection: close\r\n\r\n")


HEAD = "GET / HTTP/1.1\r\nHost: a.org\r\n"


@pytest.mark.parametrize("text", [
    "GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n",
    "GET a.org HTTP/1.1\r\nHost: a.org\r\n\r\n", "GET * HTTP/1.1\r\nHost: a.org\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /\r\n", "GET / HTTP/1.1\nHost: a.org\n\n",
    "get / HTTP/1.1\r\n", " GET / HTTP/1.1",
    "GET / HTTP/1.1\r\n\r\n", HEAD + "Host: b.org\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.org, b.org\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: user@a.org\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.org/\r\n\r\n",
    "GET / HTTP/1.1\r\nHost : a.org\r\n\r\n",
    HEAD + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
    HEAD + "Content-Length: +1\r\n\r\n", HEAD + "Content-Length: 1, 1\r\n\r\n", HEAD + "Content-Length:\r\n\r\n",
    HEAD + "Transfer-Encoding: gzip, chunked\r\n\r\n", HEAD + "Transfer-Encoding: identity\r\n\r\n",
    HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + "Upgrade: websocket\r\nConnection: upgrade\r\n\r\n", HEAD + "Upgrade: h2c, websocket\r\n\r\n",
    HEAD + "Expect: other\r\n\r\n",
    HEAD + "X: a\r\n b\r\n\r\n", HEAD + "X: a\rb\r\n\r\n", HEAD + "X: a\nb\r\n\r\n", HEAD + "X: a\0b\r\n\r\n",
    HEAD + "X\r\n\r\n",
    HEAD + "X: a\r\n" * 200 + "\r\n", HEAD + "X: " + "a" * 40000, "GET /a b HTTP/1.1\r\nHost: a.org\r\n\r\n",
    "GET /\xe4 HTTP/1.1\r\nHost: a.org\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "\x00\x01\x02",
])  # fmt: skip
def test_a_request_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    """Targets and framing of proxies, smuggling and other protocols do not pass."""
    with pytest.raises(http.Refused):
        take(text)


def test_an_offer_of_http_2_is_left_out() -> None:
    """Clients that would rather speak HTTP/2 offer it in a request of HTTP/1.1; the server never hears of it."""
    offered = take(HEAD + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\nX: 1\r\n\r\n")
    assert offered.written() == HEAD.encode() + b"X: 1\r\n\r\n"


@pytest.mark.parametrize("value", ["a" + " " * 30000 + "b", " " * 30000 + "b", "a" + "\t" * 30000, "\t " * 15000])
def test_a_head_of_spaces_costs_no_more_than_another(value: str) -> None:
    """A field as long as may be is read at once, wherever its spaces are: a search from every space takes minutes here,
    and would hold up every sandbox."""
    for _ in range(100):
        assert take(HEAD + f"X: {value}\r\n\r\n").fields == [(b"X", value.strip(" \t").encode())]


def test_a_head_is_taken_when_it_is_whole() -> None:
    """Nothing is taken before its end, and nothing behind it."""
    data = bytearray(b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\nGET /next")
    assert [http.take(data[:end]) for end in range(31)] == [None] * 31
    assert http.take(data) is not None
    assert data == b"GET /next"


@pytest.mark.parametrize("data", [b"x\r\n", b"5;a=b\r\n", b"5\n", b"-1\r\n", b"\r\n", b"1\r\naXX",
                                  b"1\r\na\r\n0\r\nX: y\r\n\r\n",
                                  b"0" * 20, b"ffffffffffffff\r\n"])  # fmt: skip
def test_a_broken_chunk_is_refused(data: bytes) -> None:
    """Extensions, bare ends of lines, data longer or shorter than said, trailers."""
    with pytest.raises(http.Refused):
        http.Body(None).take(bytearray(data))
