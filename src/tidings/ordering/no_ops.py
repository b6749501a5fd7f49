"""No-ops in an event service: what takes the number of an event whose publisher died, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tidings.model.event import NOOP_ATTRIBUTE, ORDER_ATTRIBUTE
from tidings.model.predicates import Scalar
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.machine import PublishNoOps
from tidings.protocol.sequencing.stamps import encode_stamp
from tidings.services.receipts import Receipt
from tidings.services.service import EventService

RETRY_S = 1.0
MAX_UNDER_WAY = 256
"""At once."""

log = logging.getLogger("tidings")


async def begin_no_ops(service: EventService, layout: Layout, fact: PublishNoOps) -> Receipt:
    """On their way; NotConfirmed and ConnectionFailed as for any event."""
    order = encode_stamp(layout.fingerprint, fact.stamp, fact.count)
    attributes: dict[str, Scalar] = {ORDER_ATTRIBUTE: order, NOOP_ATTRIBUTE: True}
    return await service.publish(layout.no_op_topic(fact.stamp.topic), attributes, internal=True, wait=False)


async def publish_no_ops(service: EventService, layout: Layout, fact: PublishNoOps) -> None:
    """Returns once they are with the service."""
    await (await begin_no_ops(service, layout, fact))


class NoOpOutbox:
    """Publishes what a sequencer says, some at a time, until the service has it: it is said once.

    What waits here is what the sequencer itself keeps for that long.
    """

    def __init__(
        self, service: EventService, layout: Layout, published: Callable[[PublishNoOps], None]
    ) -> None:
        self._service = service
        self._layout = layout
        self._published = published
        self._waiting: OrderedDict[tuple[str, int], PublishNoOps] = OrderedDict()
        """They go from the first on; a dict would step over all that went before, each time."""
        self._task: asyncio.Task[None] | None = None

    def add(self, fact: PublishNoOps) -> None:
        self._waiting[fact.server, fact.number] = fact
        if self._task is None:
            self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        failures = 0
        while self._waiting:
            try:
                await self._publish_some()
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.warning("no-ops are not published yet: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            failures = 0
        self._task = None

    async def _publish_some(self) -> None:
        begun = [
            (key, fact, await begin_no_ops(self._service, self._layout, fact))
            for key, fact in list(islice(self._waiting.items(), MAX_UNDER_WAY))
        ]
        for key, fact, receipt in begun:
            await receipt
            self._waiting.pop(key, None)
            self._published(fact)

    async def close(self) -> None:
        """What waits is forgotten here; the sequencer has it."""
        self._waiting.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
