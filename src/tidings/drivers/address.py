"""The address that a broker or sequencer listens on: host and port, as in URLs and error messages."""

from __future__ import annotations

import ipaddress
from typing import Literal, NamedTuple

from tidings.core.errors import AddressError

DEFAULT_PORT = 7400
SEQUENCER_PORT = 7500
"""The default port of `tidings sequencer`."""
MAX_PORT = 65_535

Transport = Literal["tcp", "udp"]


class Address(NamedTuple):
    """A host, by name or IP address, and a port."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True only if traffic surely stays on this machine; a name other than localhost might not."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str, *, default_port: int = DEFAULT_PORT) -> Address:
    """Parse `host`, `host:port`, `[ipv6]` or `[ipv6]:port`; AddressError says what is wrong."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise AddressError(f"{text!r} is not an address: write [HOST]:PORT")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    elif ":" in text and not _is_ip(text):
        raise AddressError(f"{text!r} is not an address: write HOST:PORT, or [IPV6]:PORT")
    if not host:
        raise AddressError(f"{text!r} is not an address: the host is missing")
    if not port:
        return Address(host, default_port)
    if not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise AddressError(f"{text!r} is not an address: the port must be a number from 0 to {MAX_PORT}")
    return Address(host, int(port))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def url(address: Address, transport: Transport = "tcp", *, tls: bool = False) -> str:
    """Return the URL of the address."""
    scheme = "tidings+tls" if tls else "tidings" if transport == "tcp" else "tidings+udp"
    return f"{scheme}://{address}"
