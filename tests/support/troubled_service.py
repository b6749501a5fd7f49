"""An event service around a real one that loses, repeats, delays and withholds notifications, and refuses events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from tidings.bus.embedded import Embedded, local_bus
from tidings.bus.ordered_service import OrderedService
from tidings.bus.receipts import Batch
from tidings.bus.sequencing import LocalSequencing
from tidings.bus.service import EventService, Notify
from tidings.core.errors import NotConfirmed
from tidings.core.events.event import WHOLE, Event, EventId
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import Subscription
from tidings.core.filters.language.predicates import Scalar

LONGEST_DELAY_S = 0.02


class TroubledService(EventService):
    def __init__(self, inner: EventService, random: Random, *, lossless: bool | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.streams = inner.streams
        self._subscription_numbers = inner._subscription_numbers
        self.loses = self.repeats = self.delays = self.refuses = 0.0
        """Shares of the notifications, and of the publications."""
        self.lingers_s = 0.0
        """How long a publication takes at most."""
        self.hangs = False
        """Publications are neither taken nor refused."""
        self.withholds: Callable[[Event], bool] = lambda event: False
        self.withheld: list[tuple[Notify, Event]] = []
        self.arrived: dict[str, set[EventId]] = defaultdict(set)
        """Of each subscription, the events that were notified at least once."""
        self._random = random
        self._lossless = inner.lossless if lossless is None else lossless
        self._paid: dict[str, int] = defaultdict(int)

    @property
    def lossless(self) -> bool:
        return self._lossless

    @property
    def strips(self) -> bool:
        return self.inner.strips

    async def open(self) -> None:
        await self.inner.open()
        if self.inner.lossless:
            self._lossless = True

    async def close(self) -> None:
        await self.inner.close()

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        wait: bool = True,
    ) -> Any:
        publish: Any = self.inner.publish
        return await self._trouble(lambda: publish(topic, attributes, payload, wait=wait))

    async def publish_many(self, events: Any) -> int:
        published = 0
        for event in events:
            await self.publish(*event)
            published += 1
        return published

    def reserve(self) -> EventId:
        return self.inner.reserve()

    async def send(self, stretch: Stretch) -> Batch:
        batch: Batch = await self._trouble(lambda: self.inner.send(stretch))
        return batch

    async def _trouble(self, publish: Callable[[], Awaitable[Any]]) -> Any:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.lingers_s:
            await asyncio.sleep(self._random.random() * self.lingers_s)
        if self._random.random() < self.refuses:
            if self._random.random() < 0.5:
                await publish()
            raise NotConfirmed("refused on purpose")
        return await publish()

    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        def troubled(event: Event) -> None:
            if self.withholds(event):
                self.withheld.append((notify, event))
                self.inner.taken(subscription.id)  # what is behind it may come
                self._paid[subscription.id] += 1
            elif self._random.random() >= self.loses:
                if event.carrier.kind <= WHOLE:
                    self.arrived[subscription.id].add(event.id)
                self._notify(notify, event)
                if self._random.random() < self.repeats:
                    self._notify(notify, event)

        await self.inner.add_subscription(subscription, troubled, paced=paced)

    def _notify(self, notify: Notify, event: Event) -> None:
        if self._random.random() < self.delays:
            delay_s = self._random.random() * LONGEST_DELAY_S
            asyncio.get_running_loop().call_later(delay_s, notify, event)
        else:
            notify(event)

    def release(self) -> None:
        self.withholds = lambda event: False
        withheld, self.withheld = self.withheld, []
        for notify, event in withheld:
            notify(event)

    async def remove_subscription(self, subscription_id: str) -> None:
        await self.inner.remove_subscription(subscription_id)

    def taken(self, subscription_id: str, count: int = 1) -> None:
        paid = min(count, self._paid[subscription_id])
        self._paid[subscription_id] -= paid
        self.inner.taken(subscription_id, count - paid)

    async def status(self) -> dict[str, Any]:
        return await self.inner.status()


def troubled_client(
    network: Embedded, at: str, name: str, *, seed: int = 0, lossless: bool | None = None, **options: Any
) -> tuple[OrderedService, TroubledService]:
    """A client of an embedded network whose service is troubled; not open yet."""
    ordering = network.ordering
    assert ordering is not None
    service = TroubledService(local_bus(network.network, at, name), Random(seed), lossless=lossless)
    return OrderedService(service, lambda: LocalSequencing(ordering, name), **options), service
