"""Certificates for a tree: an authority of its own, and one for every host that listens.

    certs/ca.pem, certs/ca.key          the authority; children name ca.pem, and the key stays where it was made
    certs/plant.pem, certs/plant.key    of a host; its node names both

An authority that is there already is used again, so that hosts can come later.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from windrow.io.atomic import replacing
from windrow.nodes.transport.security import AccessError

_KEY = ec.EllipticCurvePrivateKey


def write(folder: Path, hosts: Iterable[str], days: int = 365) -> list[Path]:
    """Write what is not there yet; returns the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, written = _authority(folder, days)
    for host in hosts:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", host)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(host, ca.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        written += _save(folder, name, builder.sign(ca_key, hashes.SHA256()), key)
    return written


def _names(host: str) -> list[x509.GeneralName]:
    try:
        return [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        loopback = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if host == "localhost" else []
        return [x509.DNSName(host), *loopback]


def _authority(folder: Path, days: int) -> tuple[x509.Certificate, _KEY, list[Path]]:
    """The authority of a folder, its key, and the files that were written for it, if it was not there."""
    cert, key = folder / "ca.pem", folder / "ca.key"
    if cert.exists() and key.exists():
        old_key = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(old_key, ec.EllipticCurvePrivateKey):
            raise AccessError(f"{key} was not made by windrow tree certs; choose another directory")
        return x509.load_pem_x509_certificate(cert.read_bytes()), old_key, []
    new_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "windrow tree")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and lists
    builder = (
        _builder("windrow tree", name, new_key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(new_key.public_key()), critical=False)
    )
    signed = builder.sign(new_key, hashes.SHA256())
    return signed, new_key, _save(folder, "ca", signed, new_key)


def _builder(name: str, issuer: x509.Name, key: _KEY, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of hosts differ
        .not_valid_after(now + timedelta(days=days))
    )


def _save(folder: Path, name: str, cert: x509.Certificate, key: _KEY) -> list[Path]:
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with replacing(paths[1]) as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, pem, plain))
    return list(paths)
