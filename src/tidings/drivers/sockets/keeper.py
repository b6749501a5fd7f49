"""Keeps a node's links: it dials the peers that it wants, and redials them when a link is lost.

If both sides of a link may dial, two dials can cross. Exactly one connection survives, that of the node whose name
sorts lower: it refuses the other's Hello, and the other gives up its own dial when that arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidings.core.errors import ConnectionFailed
from tidings.core.kernel import RandomSource
from tidings.drivers.address import Address
from tidings.drivers.sockets.dialling import Backoff, explain
from tidings.drivers.sockets.session import SocketSession

LAST_DELAY_SECONDS = 2.0
CROSSING_SECONDS = 1.0
"""A Hello that crossed our own dial may arrive up to this long after the Welcome that answered ours."""


class LinkKeeper:
    """Keeps a session open with each wanted peer, whoever opens it.

    `open_session` dials; `standing` returns the session with a peer that is up, if there is one. `on_failure` is
    called with the reason when there is none.
    """

    def __init__(
        self,
        open_session: Callable[[str, Address], Awaitable[SocketSession]],
        standing: Callable[[str], SocketSession | None],
        random: RandomSource,
        on_failure: Callable[[str, Address, str], None],
    ) -> None:
        self._open_session = open_session
        self._standing = standing
        self._random = random
        self._on_failure = on_failure
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._dials: dict[str, asyncio.Task[SocketSession]] = {}
        self._backoffs: dict[str, Backoff] = {}
        """By peer. They outlive `unwant`: a peer that refuses at once may be wanted again at once."""

    def want(self, peer: str, address: Address) -> None:
        """Keep a link to the peer. It starts in the next turn of the loop, so the protocol may call this."""
        if peer not in self._keepers:
            self._keepers[peer] = asyncio.get_running_loop().create_task(self._keep(peer, address))

    def unwant(self, peer: str) -> None:
        keeper = self._keepers.pop(peer, None)
        if keeper is not None:
            keeper.cancel()
            session = self._standing(peer)
            if session is not None:
                self._backoff(peer).ended(session)

    def dials(self, peer: str) -> bool:
        """Return True if a dial to that peer is under way."""
        return peer in self._dials

    def give_way(self, peer: str) -> None:
        """Cancel a dial that is under way: the peer's own connection is used."""
        dial = self._dials.get(peer)
        if dial is not None:
            dial.cancel()

    def forget_all(self) -> None:
        for peer in list(self._keepers):
            self.unwant(peer)
        self._backoffs.clear()

    async def stop(self) -> None:
        keepers = list(self._keepers.values())
        self.forget_all()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, peer: str, address: Address) -> None:
        while True:
            session = self._standing(peer)
            if session is None:
                await self._backoff(peer).wait()
                session = self._standing(peer) or await self._dial(peer, address)
            if session is not None:
                end = await asyncio.shield(session.ended)
                self._backoff(peer).ended(session)
                self._on_failure(peer, address, end.reason)

    def _backoff(self, peer: str) -> Backoff:
        return self._backoffs.setdefault(peer, Backoff(self._random, LAST_DELAY_SECONDS))

    async def _dial(self, peer: str, address: Address) -> SocketSession | None:
        """Return a settled session, or None if there is no connection or the peer's is used."""
        dial = asyncio.ensure_future(self._open_session(peer, address))
        self._dials[peer] = dial
        try:
            await asyncio.wait([dial])
        finally:
            dial.cancel()
            if self._dials.get(peer) is dial:
                del self._dials[peer]
        if dial.cancelled():
            return None
        error = dial.exception()
        if error is None:
            return dial.result()
        if not isinstance(error, OSError | ConnectionFailed):
            raise error
        self._backoff(peer).failed()
        self._on_failure(peer, address, explain(error))
        return None


def crosses(us: str, peer: str, standing: SocketSession | None, now: float) -> bool:
    """Return True if the peer's Hello crossed a dial of ours that has just led to the standing session."""
    if standing is None or standing.dial is None or us > peer:
        return False
    return now - standing.up_at < CROSSING_SECONDS
