"""Listens for streams, for datagrams, or for both on one port number."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from tidings.drivers.address import Address
from tidings.drivers.sockets.stream import StreamSession
from tidings.drivers.sockets.udp import DatagramEndpoint

PORT_ATTEMPTS = 50
"""How often to look for a port that is free for streams and for datagrams."""


class Listener:
    """Holds the listening sockets. `accept` makes the session of an incoming stream, `make_endpoint` the endpoint for
    datagrams. Streams wait until `start_serving`. Its methods raise OSError."""

    def __init__(
        self,
        accept: Callable[[], StreamSession],
        make_endpoint: Callable[[], DatagramEndpoint],
        make_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self.endpoint: DatagramEndpoint | None = None
        self._accept = accept
        self._make_endpoint = make_endpoint
        self._make_context = make_context
        self._server: asyncio.Server | None = None

    async def to_streams(self, address: Address) -> Address:
        """Listen for streams and return the IP address and port."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, *address, ssl=self._make_context(), start_serving=False
        )
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def to_datagrams(self, address: Address) -> Address:
        """Listen for datagrams and return the IP address and port."""
        _, self.endpoint = await asyncio.get_running_loop().create_datagram_endpoint(
            self._make_endpoint, local_addr=(address.host, address.port)
        )
        return self.endpoint.address

    async def to_both(self, address: Address) -> Address:
        """Listen for both on one port number; for port 0, on one that is free for both."""
        for attempt in range(PORT_ATTEMPTS):
            bound = await self.to_streams(address)
            try:
                await self.to_datagrams(bound)
                break
            except OSError:
                self.stop_serving()
                if address.port or attempt == PORT_ATTEMPTS - 1:
                    raise
        return bound

    async def start_serving(self) -> None:
        if self._server is not None:
            await self._server.start_serving()

    def stop_serving(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        self.stop_serving()
        if self.endpoint is not None:
            self.endpoint.close()
