"""One connection to an existing broker, and how its URL is read."""

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
    """The connection broke, or does not answer; another one may do better."""


class ConnectionRefused(ConnectionFailed):
    """The broker does not want us: trying again is no use."""


class Loss(NamedTuple):
    reason: str
    final: bool


class AdapterSession(ABC):
    """It lives from the connection to its loss, which `ended` tells. It never connects again.

    Its methods raise SessionLost where the connection fails them.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()

    def end(self, reason: str, *, final: bool = False) -> None:
        """The first reason counts."""
        if not self.ended.done():
            self.ended.set_result(Loss(reason, final))

    @abstractmethod
    async def start(self) -> None:
        """Connect; ConnectionFailed or Refused if that cannot be."""

    @abstractmethod
    async def write(self, batch: Sequence[Publication]) -> None:
        """Send these, in order. Each is confirmed or failed to the service's `outgoing` when the broker answers."""

    @abstractmethod
    async def subscribe(self, incoming: Incoming) -> None:
        """Returns once the broker has confirmed it; SubscriptionRefused if it does not want it."""

    @abstractmethod
    async def unsubscribe(self, incoming: Incoming) -> None:
        """Also of one whose `subscribe` failed."""

    @abstractmethod
    async def close(self, *, forget: bool) -> None:
        """`forget`: the broker need keep nothing for us. Never raises for a connection that is gone."""

    def status(self) -> dict[str, Any]:
        """What there is to say of this broker beside what all services say."""
        return {}


class AdapterUrl(NamedTuple):
    """What a URL says."""

    scheme: str
    address: Address
    user: str | None
    password: str | None
    path: str

    @property
    def server(self) -> str:
        """For people: without the password."""
        return f"{self.scheme}://{self.address}{self.path}"


def parse_url(url: str, schemes: Sequence[str], default_port: int, *, with_path: bool = False) -> AdapterUrl:
    """AddressError names what is wrong with it; a password is never part of that."""
    scheme, separator, rest = url.partition("://")
    shown = f"{scheme}{separator}{rest.rpartition('@')[2]}"
    if not separator or scheme not in schemes:
        known = " or ".join(f"{name}://" for name in schemes)
        raise AddressError(f"{shown!r} is not a URL of this service: it must start with {known}")
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
