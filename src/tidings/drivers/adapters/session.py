"""The interface of one connection to an existing broker, and the parser of its URL."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from tidings.core.errors import AddressError, ConnectionFailed
from tidings.core.events.event import Publication
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.address import Address, parse_address


class SessionLost(Exception):  # noqa: N818
    """The connection broke or does not answer; a new one may work."""


class ConnectionRefused(ConnectionFailed):
    """The broker refused the connection for good: do not retry."""


class Loss(NamedTuple):
    """Why a session ended; `final`: do not reconnect."""

    reason: str
    final: bool


class AdapterSession(ABC):
    """One connection, until it is lost; then `ended` has the reason. A session never reconnects.

    Its methods raise SessionLost if the connection fails.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()

    def end(self, reason: str, *, final: bool = False) -> None:
        """End the session; only the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(Loss(reason, final))

    @abstractmethod
    async def start(self) -> None:
        """Connect; raises ConnectionFailed, or ConnectionRefused if a retry is useless."""

    @abstractmethod
    async def write(self, batch: Sequence[Publication]) -> None:
        """Send these in order. When the broker answers, each is confirmed or failed in the service's `outgoing`."""

    @abstractmethod
    async def subscribe(self, incoming: Incoming) -> None:
        """Subscribe, and return once the broker has confirmed; raises SubscriptionRefused if it rejects."""

    @abstractmethod
    async def unsubscribe(self, incoming: Incoming) -> None:
        """Unsubscribe, even if `subscribe` failed."""

    async def cancel_held(self, name: str) -> None:
        """End a durable subscription or a group; raises SubscriptionRefused if the broker has none of that name."""
        raise NotImplementedError

    @abstractmethod
    async def close(self, *, forget: bool) -> None:
        """Close. `forget`: the broker need not keep anything for us. A lost connection is not an error."""

    def status(self) -> dict[str, Any]:
        """Return what this broker adds to the status of every service."""
        return {}


class AdapterUrl(NamedTuple):
    """The parts of a URL."""

    scheme: str
    address: Address
    user: str | None
    password: str | None
    path: str

    @property
    def server(self) -> str:
        """The URL to show to people, without the password."""
        return f"{self.scheme}://{self.address}{self.path}"


def parse_url(url: str, schemes: Sequence[str], default_port: int, *, with_path: bool = False) -> AdapterUrl:
    """Parse a broker's URL. AddressError says what is wrong with it, and never contains the password."""
    scheme, separator, rest = url.partition("://")
    shown = f"{scheme}{separator}{rest.rpartition('@')[2]}"
    if not separator or scheme not in schemes:
        known = " or ".join(f"{name}://" for name in schemes)
        raise AddressError(f"{shown!r} is not a URL for this service: it must start with {known}")
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError as error:
        raise AddressError(f"{shown!r} is not a URL: {error}") from None
    if parts.query or parts.fragment or (parts.path.strip("/") and not with_path):
        raise AddressError(f"{shown!r}: unexpected text after the address")
    credentials, _, location = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    return AdapterUrl(
        scheme,
        parse_address(location, default_port=default_port),
        unquote(user) if credentials else None,
        unquote(password) if colon else None,
        parts.path.rstrip("/") if with_path else "",
    )
