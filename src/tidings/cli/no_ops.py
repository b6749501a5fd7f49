"""No-ops of a sequencer process: published in the event service, again and again until it has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidings.model.errors import TidingsError
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.machine import PublishNoOps

if TYPE_CHECKING:
    from tidings.services.service import EventService

RETRY_S = 1.0
PUBLISH_TIMEOUT_S = 30.0
MAX_WAITING = 65_536
"""Further ones are left out here. The sequencer has them, and says them again when it starts again."""

log = logging.getLogger("tidings.cli")


class NoOpPublisher:
    """`make_service` gives the service, not open yet; None: there is none, and no-ops stay where they are."""

    def __init__(
        self,
        make_service: Callable[[], EventService] | None,
        layout: Layout,
        published: Callable[[str, int], None],
    ) -> None:
        self._make_service = make_service
        self._layout = layout
        self._published = published
        self._service: EventService | None = None
        self._waiting: dict[tuple[str, int], PublishNoOps] = {}
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    def add(self, fact: PublishNoOps) -> None:
        if self._make_service is None:
            self._tell("a publisher died, and subscribers may wait for its events: --service is missing")
        elif len(self._waiting) >= MAX_WAITING:
            self._tell(f"{MAX_WAITING} no-ops wait for the service already")
        else:
            self._waiting[fact.server, fact.number] = fact
            if self._task is None:
                self._task = asyncio.create_task(self._publish_all())

    def _tell(self, what: str) -> None:
        """Once in a row."""
        if what != self._told:
            self._told = what
            log.warning("%s", what)

    async def _publish_all(self) -> None:
        while self._waiting:
            key, fact = next(iter(self._waiting.items()))
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                    await self._publish(fact)
            except (TidingsError, OSError) as error:  # TimeoutError is one
                self._tell(f"no-ops are not published yet: {error or 'no answer in time'}")
                await self._close_service()
                await asyncio.sleep(RETRY_S)
                continue
            self._told = ""
            del self._waiting[key]
            self._published(fact.server, fact.number)
        self._task = None

    async def _publish(self, fact: PublishNoOps) -> None:
        from tidings.ordering.no_ops import publish_no_ops

        if self._service is None:
            assert self._make_service is not None
            service = self._make_service()
            await service.open()
            self._service = service
        await publish_no_ops(self._service, self._layout, fact)

    async def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            with suppress(TidingsError, OSError):
                await service.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._close_service()
