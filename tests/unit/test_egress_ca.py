"""The authority of a sandbox: strict clients believe it for the one name, and nobody else does."""

from __future__ import annotations

import ssl
import sys
from contextlib import suppress

import pytest

from woodshed.errors import Unsupported
from woodshed.sandbox.egress.ca import Authority

pytest.importorskip("cryptography", reason="cryptography is missing: pip install 'woodshed[intercept]'")


def meet(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """The protocol agreed upon by both in memory. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (one, other):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return one.selected_alpn_protocol()


def strict(trusted: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusted.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def test_a_strict_client_believes_it_for_the_name() -> None:
    """Name, chain and extensions are as RFC 5280 wants them, and HTTP/1.1 is agreed upon."""
    authority = Authority()
    long = "x" * 60 + ".example-of-a-name-longer-than-a-common-name.test"
    for name in ("a.test", long):
        assert meet(authority.context(name), strict(authority.pem), name) == "http/1.1"
    assert authority.context("a.test") is authority.context("a.test")


def test_nobody_believes_it_for_another_name_or_from_another_sandbox() -> None:
    """Another name does not match, and another sandbox's authority is unknown."""
    authority, other = Authority(), Authority()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        meet(authority.context("a.test"), strict(authority.pem), "b.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(authority.context("a.test"), strict(other.pem), "a.test")


def test_the_bundle_holds_this_machines_authorities_too() -> None:
    """What a sandbox is to trust loads, and has one more than this machine trusts."""
    authority = Authority()
    bundle = authority.bundle()
    assert bundle.endswith(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.decode())
    assert context.cert_store_stats()["x509_ca"] >= 1


def test_names_are_kept_in_bounds() -> None:
    """A pattern that lets a sandbox ask for ever new names does not make us keep them all."""
    authority = Authority()
    for number in range(40):
        authority.context(f"n{number}.test")
    assert len(authority._contexts) == 16


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capability and the remedy are named."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(Unsupported, match=r"woodshed\[intercept\]"):
        Authority()
