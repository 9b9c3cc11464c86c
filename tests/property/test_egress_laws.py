"""Laws of what reads a hostile sandbox: only its own refusal is raised, and how bytes are cut makes no difference."""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from woodshed.sandbox.egress import dns, http, tls
from woodshed.sandbox.egress.addresses import why_refused
from woodshed.sandbox.egress.answers import Answer, Unreadable
from woodshed.sandbox.egress.decisions import KINDS, ONE_BY_ONE, Decisions
from woodshed.sandbox.egress.inject import Blot, Secret, put
from woodshed.sandbox.egress.names import MOST, Names

LABELS = st.lists(st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True), min_size=1, max_size=6)
SECRET = b"sesame-open"
PARTS = st.sampled_from((SECRET, b"sesame-", b"open", b"s", b"-" + SECRET, b"x"))
NAMES = st.integers(0, 3 * MOST).map(lambda number: f"n{number}.test")
HEADS = st.sampled_from((
    b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", b"POST /x HTTP/1.1\r\nHost: a.org\r\nContent-Length: 9\r\n\r\nnine bits",
    b"PUT /y HTTP/1.1\r\nhost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    b"10\r\n0123456789abcdef\r\n0\r\n\r\n",
    b"DELETE / HTTP/1.0\r\nHOST:a.org:80\r\n\r\n",
))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """``data`` in pieces that end at the places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def edited(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    """Something close to ``data``, where random bytes alone would not get far."""
    made = bytearray(data)
    for place, byte in edits:
        made[place % len(made)] = byte
    return bytes(made)


EDITS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=5)
PLACES = st.lists(st.integers(0, 5000), max_size=8)


def _question(labels: list[str], kind: int) -> bytes:
    name = b"".join(bytes((len(label),)) + label.encode() for label in labels) + b"\0"
    return struct.pack("!HHHHHH", 1, 0x0100, 1, 0, 0, 0) + name + struct.pack("!HH", kind, 1)


@given(LABELS, st.integers(0, 65535), EDITS, st.binary(max_size=80))
def test_dns_reads_a_question_or_refuses(
    labels: list[str], kind: int, edits: list[tuple[int, int]], noise: bytes
) -> None:
    """A question is read as it was asked; anything else raises Malformed, and every reply is well formed and small."""
    asked = dns.read(_question(labels, kind))
    assert (asked.name, asked.kind) == (".".join(labels), kind)
    for data in (edited(_question(labels, kind), edits), noise, _question(labels, kind)[:12] + noise):
        try:
            reply = dns.answer(dns.read(data), dns.NOERROR, b"\xc6\x12\0\1")
        except dns.Malformed as error:
            reply = error.reply or b""
        assert len(reply) <= 512
        assert not reply or (reply[:2] == data[:2] and reply[2] & 0x80)


def _hello(name: str) -> bytes:
    raw = name.encode()
    listed = b"\0" + struct.pack("!H", len(raw)) + raw
    extension = struct.pack("!HHH", 0, len(listed) + 2, len(listed)) + listed
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack("!H", len(extension)) + extension
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + struct.pack("!H", len(message)) + message


@given(LABELS, EDITS, st.binary(max_size=200), PLACES)
def test_tls_reads_a_hello_or_refuses(
    labels: list[str], edits: list[tuple[int, int]], noise: bytes, places: list[int]
) -> None:
    """However it is cut a hello gives its name once it is whole; anything else raises Malformed or waits for more."""
    data = _hello(".".join(labels))
    seen = bytearray()
    for piece in cut(data, places):
        seen += piece
        found = tls.read(seen)
        assert (found is not None) == (len(seen) == len(data))
    assert found is not None
    assert found.name == ".".join(labels)
    for odd in (edited(data, edits), noise, b"\x16\3\1" + noise, data[:9] + noise):
        with suppress(tls.Malformed):
            tls.read(odd)


def _requests(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """What is forwarded of each request in a stream, and whether it ended in a refusal."""
    buffer, out, body = bytearray(), list[bytes](), http.Body(0)
    try:
        for piece in pieces:
            buffer += piece
            while True:
                if not body.done:
                    out[-1] += body.take(buffer)
                    if not body.done:
                        break
                request = http.take(buffer)
                if request is None:
                    break
                out.append(request.written())
                body = http.Body(request.length)
    except http.Refused:
        return out, True
    return out, False


@given(st.lists(HEADS, min_size=1, max_size=4), PLACES, EDITS)
def test_requests_are_the_same_however_they_are_cut(
    heads: list[bytes], places: list[int], edits: list[tuple[int, int]]
) -> None:
    """Pipelined requests are found whole or in pieces alike, sound or broken, and nothing but Refused is raised."""
    stream = b"".join(heads)
    whole, refused = _requests([stream])
    assert (len(whole), refused) == (len(heads), False)
    assert _requests(cut(stream, places)) == (whole, False)
    odd = edited(stream, edits)
    got, stopped = _requests([odd])
    again, stopped_again = _requests(cut(odd, places))
    assert stopped == stopped_again
    assert got[:-1] == again[:-1] or got == again


@given(st.lists(HEADS, min_size=1, max_size=3), EDITS)
def test_what_is_forwarded_reads_the_same_again(heads: list[bytes], edits: list[tuple[int, int]]) -> None:
    """A strict reader of what was written finds the same requests: there is no second meaning in it."""
    written, refused = _requests([edited(b"".join(heads), edits)])
    if not refused:
        assert _requests([b"".join(written)]) == (written, False)


@given(st.binary(max_size=300))
def test_http_reads_noise(noise: bytes) -> None:
    """Noise is refused or waited for, and the same whether it comes whole or byte by byte."""
    for data in (noise, b"GET " + noise, b"GET / HTTP/1.1\r\n" + noise + b"\r\n\r\n"):
        assert _requests([data])[1] == _requests([bytes([byte]) for byte in data])[1]
    with suppress(http.Refused):
        http.Body(None).take(bytearray(noise))


PIECES = st.sampled_from((
    b" ", b"\t", b"a", b",", b":", b";", b"\r\n", b"\r", b"\n", b"\r\n ", b"\r\nX:", b"\r\n\r\n", b"0", b"-", b"A",
    b"\0", b"\xff", b"chunked", b"\r\nTransfer-Encoding: chunked", b"\x16\3\1\0\1", b"\x16\3\1\x40\0", b"\x3fa", b"\1a",
    b"\xc0\x0c", b"\0\0",
))
RUNS = st.lists(st.tuples(PIECES, st.integers(1, 40_000)), min_size=1, max_size=4)
STARTS = st.sampled_from((
    b"", b"GET / HTTP/1.1\r\nHost: a.org\r\nX: a", b"GET /", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"\x16\3\1",
    b"\x16\3\1\x40\0\1\0\x70\0", b"\0\1\1\0\0\1\0\0\0\0\0\0",
))


@given(STARTS, RUNS)
def test_long_runs_of_anything_are_read_or_refused_at_once(start: bytes, runs: list[tuple[bytes, int]]) -> None:
    """Whatever repeats tens of thousands of times is no work for a reader, raises nothing but its own refusal, and is
    not waited on without end: each reader has had enough, or has what it wanted, within its bound."""
    stream = start + b"".join(piece * (count // len(piece)) for piece, count in runs)
    with suppress(dns.Malformed):
        dns.read(stream)
    with suppress(dns.Malformed):
        dns.read(stream[:dns.LARGEST])
    with suppress(tls.Malformed):
        assert tls.read(stream) is not None or len(stream) < tls.LARGEST
    buffer = bytearray(stream)
    with suppress(http.Refused):
        while (request := http.take(buffer)) is not None:
            http.Body(request.length).take(buffer)
        assert len(buffer) < http.LARGEST_HEAD
    with suppress(http.Refused):
        http.Body(None).take(bytearray(stream))
    for size in (1 << 20, 7_000):
        answer = Answer(Blot([SECRET, b"a" * 40]), bodiless=False)
        with suppress(Unreadable):
            for at in range(0, len(stream), size):
                answer.pass_on(stream[at:at + size])
                assert len(answer._buffer) < 70_000


@given(st.binary(max_size=5000), st.integers(0, 0xFFFF), st.integers(0, 3))
def test_dns_reads_noise(noise: bytes, flags: int, count: int) -> None:
    """A header that promises anything, and bytes after it, are a question or Malformed; every reply is short."""
    for data in (noise, struct.pack("!HHHHHH", 7, flags, count, 0xFFFF, 0, 1) + noise):
        try:
            reply = dns.answer(dns.read(data), dns.NXDOMAIN)
        except dns.Malformed as error:
            reply = error.reply or b""
        assert len(reply) <= 512


CONTENTS = st.binary(max_size=40) | st.sampled_from((b"\0\7\0\0\4a.io", b"\0\3\x02h2", b"\0\0", b"\xff\xff"))
EXTENSIONS = st.lists(st.tuples(st.sampled_from((0, 16, 43, 51, 0xFE0D)), CONTENTS), max_size=6)


@given(EXTENSIONS, st.integers(-3, 3), PLACES)
def test_tls_reads_extensions_of_any_content(
    extensions: list[tuple[int, bytes]], wrong: int, places: list[int]
) -> None:
    """Extensions twice, empty, too long for what holds them, in any number of records: a Hello, or Malformed."""
    body = b"".join(struct.pack("!HH", kind, len(content)) + content for kind, content in extensions)
    hello = b"\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0" + struct.pack("!H", max(0, len(body) + wrong)) + body
    message = b"\1" + len(hello).to_bytes(3, "big") + hello
    records = b"".join(b"\x16\3\1" + struct.pack("!H", len(piece)) + piece for piece in cut(message, places) if piece)
    try:
        found = tls.read(records)
    except tls.Malformed:
        return
    assert found is None or found.name in (None, "a.io")


@given(st.lists(PARTS, max_size=20), PLACES)
def test_a_secret_never_passes_whatever_its_pieces(parts: list[bytes], places: list[int]) -> None:
    """The length stays, the secret is gone, and everything else comes through."""
    stream, blot = b"".join(parts), Blot([SECRET])
    out = b"".join(blot.pass_on(piece) for piece in cut(stream, places)) + blot.rest()
    assert out == stream.replace(SECRET, b"*" * len(SECRET))


@given(st.binary(max_size=60), PLACES, st.lists(st.sampled_from((SECRET, b"another-secret")), min_size=1, unique=True))
def test_what_is_held_back_tells_nothing(stream: bytes, places: list[int], secrets: list[bytes]) -> None:
    """How much passes at once depends on how much came, never on what it is: a delay would tell of a secret."""
    one, other = Blot(secrets), Blot(secrets)
    for piece in cut(stream, places):
        alike = (SECRET * 6)[:len(piece)]
        assert len(one.pass_on(piece)) == len(other.pass_on(alike))


@given(st.lists(st.sampled_from((b"abcdefgh", b"efghijkl", b"abcdefghij", b"x", b"abcd", b"ij")), max_size=8), PLACES)
def test_secrets_that_overlap_are_gone_alike(parts: list[bytes], places: list[int]) -> None:
    """Where one begins in another, or continues it, every byte of either is blotted out."""
    values, stream = (b"abcdefgh", b"efghijkl", b"abcdefghij"), b"".join(parts)
    shown = bytearray(stream)
    for value in values:
        for at in range(len(stream)):
            if stream.startswith(value, at):
                shown[at:at + len(value)] = b"*" * len(value)
    blot = Blot(values)
    assert b"".join(blot.pass_on(piece) for piece in cut(stream, places)) + blot.rest() == bytes(shown)


def _answered(stream: bytes, places: list[int], *, bodiless: bool = False) -> bytes:
    answer = Answer(Blot([SECRET]), bodiless=bodiless)
    return b"".join(answer.pass_on(piece) for piece in cut(stream, places)) + answer.rest()


def _body(answer: bytes) -> bytes:
    """Of the last head in ``answer``, which is chunked."""
    rest, body = answer.rpartition(b"chunked\r\n\r\n")[2], b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[:int(size, 16)]
        assert rest[int(size, 16):][:2] == b"\r\n"
        rest = rest[int(size, 16) + 2:]
        if int(size, 16) == 0:
            assert rest == b""
            return body


@given(st.lists(PARTS, max_size=20), PLACES, PLACES, st.sampled_from((b"", b";x=y")), st.booleans())
def test_no_chunk_hides_a_secret(
    parts: list[bytes], chunks: list[int], places: list[int], extension: bytes, trailer: bool
) -> None:
    """However a host frames what it repeats, the secret is gone from it and from its head, and all else is there."""
    body = b"".join(parts)
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in cut(body, chunks) if piece)
    end = b"0\r\nX-Sum: 1\r\n\r\n" if trailer else b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nX: " + SECRET + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    got = _answered(b"HTTP/1.1 100 Continue\r\n\r\n" + head + framed + end, places)
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\n" + head.replace(SECRET, b"*" * len(SECRET)))
    assert _body(got) == body.replace(SECRET, b"*" * len(SECRET))


@given(st.binary(max_size=300), PLACES, EDITS, st.booleans())
def test_a_hosts_noise_is_passed_on_or_ends(
    noise: bytes, places: list[int], edits: list[tuple[int, int]], bodiless: bool
) -> None:
    """What cannot be read raises Unreadable and nothing else, and only so much as was sent is ever kept."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    for data in (noise, b"HTTP/1.1 200 OK\r\n\r\n" + noise, chunked[:47] + noise, edited(chunked, edits)):
        with suppress(Unreadable):
            _answered(data, places, bodiless=bodiless)
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + noise
    assert _answered(plain, places) == plain.replace(SECRET, b"*" * len(SECRET))


FIELDS = st.tuples(st.sampled_from((b"A", b"Authorization", b"Accept-Encoding")), st.binary(max_size=40))


@given(st.lists(FIELDS, max_size=5))
def test_what_holds_no_placeholder_stays(fields: list[tuple[bytes, bytes]]) -> None:
    """Only placeholders are replaced, and with secrets in play nothing compressed is asked for."""
    made = put(fields, [Secret("T", SECRET)])
    kept = [field for field in fields if field[0] != b"Accept-Encoding"]
    assert made.fields == [*kept, (b"Accept-Encoding", b"identity")]
    assert made.names == []
    assert put(fields, []).fields == fields


@given(st.lists(NAMES, max_size=200))
def test_addresses_tell_names(asked: list[str]) -> None:
    """Each known name has one address of 198.18.0.0/15 that leads back to it."""
    names = Names()
    for name in asked:
        address, _ = names.address(name)
        assert ipaddress.ip_address(address) in ipaddress.ip_network("198.18.0.0/15")
        assert names.name(address) == name
        assert names.address(name) == (address, False)
    addresses = {names.address(name)[0] for name in set(asked)}
    assert len(addresses) == len(set(asked))


def test_names_are_bounded() -> None:
    """The one unused for longest is forgotten, its address leads nowhere, and it is not soon given to another."""
    names = Names()
    first, _ = names.address("first.test")
    kept, _ = names.address("kept.test")
    for number in range(MOST):
        names.address(f"n{number}.test")
        assert names.name(kept) == "kept.test"
    assert names.name(first) is None
    assert len(names._addresses) == len(names._names) == MOST


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=30)), max_size=50), st.integers(0, 3000))
def test_no_decision_is_lost_and_no_log_is_flooded(made: list[tuple[int, str]], repeats: int) -> None:
    """The counts told add up to what was decided, in few words, printable."""
    decisions, told = Decisions(), list[dict[str, object]]()
    decisions.listen(lambda decision: told.append(dict(decision)))
    for port, host in made:
        decisions.made("refused", "dns", host=host, port=port, reason=host)
    for number in range(repeats):
        decisions.made("refused", "tcp", host=f"h{number % 3}")
    decisions.close()
    decisions.close()
    assert sum(int(str(decision.get("count", 1))) for decision in told) == len(made) + repeats
    assert len(told) <= ONE_BY_ONE + 13 * 53
    assert all(str(decision["host"]).isprintable() for decision in told)


def test_kinds_of_decisions_are_bounded() -> None:
    """A sandbox that asks for ever new names is told in a number of words that has an end."""
    decisions, told = Decisions(), list[object]()
    for number in range(20_000):
        decisions.made("refused", "dns", host=f"n{number}.test")
    decisions.listen(told.append)
    decisions.close()
    assert len(told) <= ONE_BY_ONE + KINDS + 20


@given(st.ip_addresses())
def test_what_python_calls_special_is_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """No address that the standard library knows as private, loopback, link-local, multicast or reserved passes."""
    special = (address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
               or address.is_reserved or address.is_unspecified or not address.is_global)
    if special:
        assert why_refused(str(address)) is not None
