"""A certificate authority of one sandbox, for hosts whose TLS its policy wants read. Needs ``woodshed[intercept]``.

Keys live in memory alone and go with the sandbox; nothing but the sandbox is told to trust them.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from woodshed.errors import Unsupported

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "npm_config_cafile",
    "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "HEX_CACERTS_PATH", "NIX_SSL_CERT_FILE",
)
"""By which programs are told of a file of trusted certificates."""
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_LIFE = timedelta(days=365)
_MOST = 16
"""Hosts whose context is kept; about 50 KB each."""


class Authority:
    """Vouches for hosts, to one sandbox. Raises Unsupported where ``cryptography`` is missing."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise Unsupported("network: intercept needs the package cryptography: pip install 'woodshed[intercept]'"
                              ) from error
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _certificate("Woodshed sandbox authority", self._key)
        self._host_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return _pem(self._certificate)

    def bundle(self) -> bytes:
        """What the sandbox is to trust: what this machine does, and this authority."""
        return _system() + self.pem

    def context(self, name: str) -> ssl.SSLContext:
        """For a server called ``name``. Takes a millisecond or two the first time."""
        if name not in self._contexts:
            if len(self._contexts) >= _MOST:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[name] = self._made(name)
        return self._contexts[name]

    def _made(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL reads a file by name alone; this one is nowhere on a disk.
        fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(self.chain(name))
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

    def chain(self, name: str) -> bytes:
        """Key and certificates of a server called ``name``, PEM."""
        from cryptography.hazmat.primitives import serialization

        key = self._host_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return key + _pem(_certificate(name, self._host_key, self._certificate, self._key)) + self.pem


def _certificate(
    name: str, key: EllipticCurvePrivateKey, issuer: x509.Certificate | None = None,
    issuer_key: EllipticCurvePrivateKey | None = None,
) -> x509.Certificate:
    """Of an authority, or of a host that ``issuer`` vouches for (RFC 5280; serial and names as browsers demand)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.now(UTC)
    signing = issuer_key or key
    kind = x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None)
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + _LIFE)
        .add_extension(kind, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


@cache
def _system() -> bytes:
    """What this machine trusts; nothing where no such file is found."""
    given = ssl.get_default_verify_paths().cafile
    for path in (*([given] if given else []), *_BUNDLES):
        try:
            return Path(path).read_bytes().rstrip(b"\n") + b"\n"
        except OSError:
            continue
    return b""
