"""Publishes a sequencer's no-ops through an event service, and retries until the service confirms them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidings.core.errors import TidingsError
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.no_ops import NoOpOutbox
from tidings.core.ordering.server.machine import PublishNoOps

if TYPE_CHECKING:
    from tidings.bus.service import EventService

RETRY_S = 1.0
TIMEOUT_S = 30.0
"""For all no-ops that are sent together."""

log = logging.getLogger("tidings")


class NoOpPublisher:
    """Publishes no-ops one batch at a time. `make_service` returns a service that is not open: the publisher opens it
    on first use, and makes another one after a failure."""

    def __init__(
        self, make_service: Callable[[], EventService], layout: Layout, published: Callable[[str, int], None]
    ) -> None:
        self._make_service = make_service
        self._outbox = NoOpOutbox(layout, published)
        self._service: EventService | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, fact: PublishNoOps) -> None:
        self._outbox.add(fact)
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._publish_all())

    async def _publish_all(self) -> None:
        logged = False
        while facts := self._outbox.take():
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._publish(facts)
                logged = False
            except Exception as error:  # whatever it is, retry later
                if not logged:
                    log.warning("cannot publish no-ops yet, retrying: %s", error or "no answer in time")
                logged = True
                for fact in reversed(facts):
                    self._outbox.failed(fact)
                await self._close_service()
                await asyncio.sleep(RETRY_S)
        self._task = None

    async def _publish(self, facts: list[PublishNoOps]) -> None:
        if self._service is None:
            service = self._make_service()
            await service.open()
            self._service = service
        begun = [
            (fact, await self._service.send(self._outbox.event(fact, *self._service.reserve())))
            for fact in facts
        ]
        for fact, batch in begun:
            await batch.confirmed()
            self._outbox.confirmed(fact)

    async def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            with suppress(TidingsError, OSError):
                await service.close()

    async def close(self) -> None:
        """Stop. No-ops that wait are dropped here; the sequencer still has them."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._close_service()
