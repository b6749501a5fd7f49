"""TLS, and the rule that everything stays on loopback unless TLS and a token protect it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from tidings.core.errors import ConnectionFailed
from tidings.drivers.address import Address, Transport


class Tls(NamedTuple):
    """PEM files. A broker needs `certificate` and `key`; the side that dials verifies against `authority`."""

    certificate: str | Path | None = None
    key: str | Path | None = None
    authority: str | Path | None = None
    """The certificates to trust; None: the system's."""


def check_listening(address: Address, transport: Transport, tls: Tls | None, token: str) -> None:
    """Raise ConnectionFailed unless a broker may listen there."""
    if transport == "udp" and tls is not None:
        raise ConnectionFailed("TLS requires TCP: UDP is not encrypted yet")
    if address.is_loopback:
        return
    if transport == "udp":
        raise ConnectionFailed(
            f"cannot listen on {address}: UDP is not encrypted yet; use a loopback address"
        )
    if tls is None or tls.certificate is None or tls.key is None or not token:
        raise ConnectionFailed(
            f"cannot listen on {address}: beyond loopback, a TLS certificate, its key and a token are required "
            "(--tls-cert, --tls-key, --token-file)"
        )


def check_dialling(address: Address, transport: Transport, tls: Tls | None) -> None:
    """Raise ConnectionFailed if messages would cross a network unencrypted."""
    if transport == "udp" and tls is not None:
        raise ConnectionFailed("TLS requires TCP: UDP is not encrypted yet")
    if not address.is_loopback and tls is None:
        raise ConnectionFailed(
            f"cannot connect to {address}: beyond loopback, TLS is required (tidings+tls://)"
        )


def server_context(tls: Tls) -> ssl.SSLContext:
    if tls.certificate is None or tls.key is None:
        raise ConnectionFailed("TLS needs both a certificate and a key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConnectionFailed(
            f"cannot use certificate {tls.certificate} with key {tls.key}: {_reason(error)}"
        ) from None
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.authority)
    except (OSError, ssl.SSLError) as error:
        raise ConnectionFailed(f"cannot use the certificates in {tls.authority}: {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _reason(error: OSError) -> str:
    """Return the reason without error numbers."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror or str(error)).lower()
