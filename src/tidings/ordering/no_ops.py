"""No-ops in an event service: what takes the number of an event whose publisher died, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from tidings.model.event import NOOP_ATTRIBUTE, ORDER_ATTRIBUTE
from tidings.model.predicates import Scalar
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.machine import PublishNoOps
from tidings.protocol.sequencing.stamps import encode_stamp
from tidings.services.service import EventService

RETRY_S = 1.0

log = logging.getLogger("tidings")


async def publish_no_ops(service: EventService, layout: Layout, fact: PublishNoOps) -> None:
    """Returns once they are with the service; NotConfirmed and ConnectionFailed as for any event."""
    order = encode_stamp(layout.fingerprint, fact.stamp, fact.count)
    attributes: dict[str, Scalar] = {ORDER_ATTRIBUTE: order, NOOP_ATTRIBUTE: True}
    await service.publish(layout.no_op_topic(fact.stamp.topic), attributes, internal=True)


class NoOpOutbox:
    """Publishes what a sequencer says, one after the other, until the service has it: it is said once.

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
            key, fact = next(iter(self._waiting.items()))
            try:
                await publish_no_ops(self._service, self._layout, fact)
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.warning("no-ops are not published yet: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            failures = 0
            del self._waiting[key]
            self._published(fact)
        self._task = None

    async def close(self) -> None:
        """What waits is forgotten here; the sequencer has it."""
        self._waiting.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
