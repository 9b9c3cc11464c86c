"""DNS messages (RFC 1035): one question read, one answer written. Hostile input raises Malformed and nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass

LARGEST = 4096
"""Bytes of a question that are looked at."""
A, AAAA = 1, 28
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP = 0, 1, 2, 3, 4
TTL_S = 10
_IN, _ANY_CLASS = 1, 255
_HEADER = struct.Struct("!HHHHHH")
_QR, _OPCODE, _RD, _AA, _RA = 0x8000, 0x7800, 0x0100, 0x0400, 0x0080
_LONGEST_NAME = 253


class Malformed(ValueError):
    """Not a question. ``reply`` is what may be sent back, if anything."""

    def __init__(self, message: str, reply: bytes | None = None) -> None:
        super().__init__(message)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Question:
    """``name`` in lower case without a final dot, '' for the root; ``raw`` is the question as it is to be repeated."""

    ident: int
    flags: int
    name: str
    kind: int
    raw: bytes


def read(data: bytes) -> Question:
    """The one question in ``data``. Whatever follows it (EDNS) is ignored. Raises Malformed."""
    if len(data) < _HEADER.size:
        raise Malformed("shorter than a header")
    ident, flags, questions, *_ = _HEADER.unpack_from(data)
    if flags & _QR:
        raise Malformed("an answer")  # never answered: two servers could keep each other busy
    if flags & _OPCODE:
        raise Malformed("not a query", _short(ident, flags, NOTIMP))
    refusal = _short(ident, flags, FORMERR)
    if questions != 1 or len(data) > LARGEST:
        raise Malformed("not one question", refusal)
    name, end = _name(data, refusal)
    if len(data) < end + 4:
        raise Malformed("cut off", refusal)
    kind, group = struct.unpack_from("!HH", data, end)
    if group not in (_IN, _ANY_CLASS):
        raise Malformed("not of the Internet", _short(ident, flags, NOTIMP))
    return Question(ident, flags, name, kind, data[_HEADER.size:end + 4])


def _name(data: bytes, refusal: bytes) -> tuple[str, int]:
    """The name after the header, and where it ends. Pointers are refused: a first name has nothing to point at."""
    labels: list[str] = []
    at = _HEADER.size
    while True:
        if at >= len(data):
            raise Malformed("cut off", refusal)
        length = data[at]
        at += 1
        if length == 0:
            break
        label = data[at:at + length]
        if length > 63 or len(label) < length:
            raise Malformed("not a label", refusal)
        if not all(byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_" for byte in label):
            raise Malformed("odd bytes in a name", refusal)
        labels.append(label.decode("ascii").lower())
        at += length
    name = ".".join(labels)
    if len(name) > _LONGEST_NAME:
        raise Malformed("a name too long", refusal)
    return name, at


def answer(question: Question, code: int, address: bytes | None = None) -> bytes:
    """The answer: ``code``, and with an ``address`` (4 bytes) the one A record of the name."""
    flags = _QR | _AA | _RA | (question.flags & _RD) | code
    head = _HEADER.pack(question.ident, flags, 1, 0 if address is None else 1, 0, 0)
    if address is None:
        return head + question.raw
    # 0xC00C points at the name of the question.
    return head + question.raw + struct.pack("!HHHIH", 0xC00C, A, _IN, TTL_S, len(address)) + address


def _short(ident: int, flags: int, code: int) -> bytes:
    """An answer that repeats no question."""
    return _HEADER.pack(ident, _QR | _RA | (flags & (_RD | _OPCODE)) | code, 0, 0, 0, 0)
