"""An archive in memory, for networks inside a process: everything that one broker's recorder was notified of.

It begins when the network does, keeps everything, and ends with the network. Streams start with it as they start with
an archive on disk (bus/history.py).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidings.bus.history_reader import HistoryGap, seam_key
from tidings.core.client.bookmark import Reached
from tidings.core.client.seam import Seam
from tidings.core.errors import SubscriptionRefused, TidingsError
from tidings.core.events.event import Event
from tidings.core.events.rerun import runs_of
from tidings.core.events.subscription import Interest, OrderName, Subscription
from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.share_history import HistoryPosition, HistoryRows
from tidings.core.overlay.guaranteed.share_messages import StartItem
from tidings.storage.starts import Start, first_offset, history_position

if TYPE_CHECKING:
    from tidings.bus.bus import Bus
    from tidings.bus.stream import Stream

BATCH_EVENTS = 1_000
POLL_S = 0.001


class MemoryArchive:
    """Records at a broker. `recorder` is a bus there, not open yet; `find_broker` returns the protocol's broker, which
    may restart."""

    def __init__(
        self,
        broker: str,
        recorder: Bus,
        find_broker: Callable[[], object],
        *topics: str,
        order: OrderName = "none",
    ) -> None:
        self.broker = broker
        self.events: list[Event] = []
        """By offset."""
        self._topics = topics
        self._order = order
        self._recorder = recorder
        self._find_broker = find_broker
        self._stream: Stream | None = None
        self._recording: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to record; return once everything published from now on is recorded."""
        await self._recorder.open()
        stream = self._recorder.subscribe(*self._topics, order=self._order)
        node = self._find_broker()
        if isinstance(node, GuaranteedBroker):
            node.attachments.archive = (self._recorder.client_name, stream.subscription.id)
        self._stream = await stream.__aenter__()
        self.watch(node)
        self._recording = asyncio.create_task(self._record(self._stream))

    def watch(self, node: object) -> None:
        """Tell the protocol's broker, which has started, who records its archive, and let it read that."""
        if isinstance(node, GuaranteedBroker):
            if self._stream is not None:
                node.attachments.archive = (self._recorder.client_name, self._stream.subscription.id)
            node.share_histories.archive = MemoryShareArchive(self)

    async def _record(self, stream: Stream) -> None:
        async for event in stream:  # which acknowledges the one before
            self.events.append(event)

    async def close(self) -> None:
        if self._recording is not None:
            self._recording.cancel()
            await asyncio.gather(self._recording, return_exceptions=True)
        await self._recorder.close()

    def fence(self) -> ArchiveFence:
        """Return the fence of the present broker; SubscriptionRefused while it is away."""
        node = self._find_broker()
        if not isinstance(node, GuaranteedBroker) or self._stream is None:
            raise SubscriptionRefused(f"{self.broker} keeps no archive at the moment")
        self.watch(node)
        return ArchiveFence(node.name, node.attachments, node.delivery)

    def has_reached(self, wanted: Reached) -> bool:
        """Return True if it has everything up to these numbers; SubscriptionRefused if it has no order."""
        stream = self._stream
        reached = None if stream is None else self._recorder.reached(stream.subscription.id, 0)
        if reached is None:
            raise SubscriptionRefused(
                f"the archive of {self.broker} has no order across publishers: use order 'fifo'"
            )
        return all(reached.done.get(rank, -1) >= number for rank, number in wanted.done.items())

    def history(self, start: Start, subscription: Subscription, seam: Seam) -> MemoryHistory:
        return MemoryHistory(self, start, subscription, seam)

    def bounds(self) -> tuple[int, int]:
        return 0, len(self.events)

    def published_ns(self, offset: int) -> int:
        return self.events[offset].published_at

    def offset_at(self, published_ns: int) -> int:
        late = (offset for offset, event in enumerate(self.events) if event.published_at >= published_ns)
        return next(late, len(self.events))


class MemoryShareArchive:
    """The archive for durable subscriptions and groups of its broker."""

    def __init__(self, archive: MemoryArchive) -> None:
        self._archive = archive

    def begin(self, start: StartItem, answer: Callable[[HistoryPosition | str], None]) -> None:
        try:
            answer(history_position(self._archive.broker, self._archive, start))
        except TidingsError as error:
            answer(str(error))

    def read(
        self, interest: Interest, position: HistoryPosition, answer: Callable[[HistoryRows | str], None]
    ) -> None:
        events = self._archive.events
        end = len(events)
        below = position.newest_below
        if position.next < below:
            shown = newest_offsets(events, interest, below)
            stop = below
        else:
            stop = min(position.next + BATCH_EVENTS, end if position.stop < 0 else position.stop)
            shown = [at for at in range(position.next, stop) if interest.selects(events[at])]
        rows = runs_of(events[at] for at in shown if at >= position.next)
        answer(HistoryRows(self._archive.broker, 0, stop, end, tuple(rows)))


def newest_offsets(events: Sequence[Event], interest: Interest, stop: int) -> list[int]:
    """Return the offset of the newest event before `stop` of each topic, of those selected, ascending."""
    newest: dict[str, int] = {}
    for offset in range(stop - 1, -1, -1):
        event = events[offset]
        if event.topic not in newest and interest.selects(event):
            newest[event.topic] = offset
    return sorted(newest.values())


class MemoryHistory:
    """Reads the history of one subscription. It has the methods of `HistoryReader`."""

    def __init__(self, archive: MemoryArchive, start: Start, subscription: Subscription, seam: Seam) -> None:
        self._archive = archive
        self._start = start
        self._interest = subscription.interest()
        self._key = seam_key(subscription)
        self._seam = seam
        self._next = self._stop = 0
        self._shown: list[int] | None = None
        """With start "last", the offsets to show."""

    async def open(self) -> None:
        self._archive.fence()
        self._next = first_offset(self._archive, self._start)

    async def settle(self, client: str, subscription: str, reached: Reached | None) -> list[HistoryGap]:
        if reached is None:
            await self._pass_fence(client, subscription)
        else:
            await self._reach(reached)
        self._stop = len(self._archive.events)
        if self._start == "last":
            self._shown = newest_offsets(self._archive.events, self._interest, self._stop)
        return []

    async def _reach(self, reached: Reached) -> None:
        while not self._archive.has_reached(reached):  # noqa: ASYNC110 - as below
            await asyncio.sleep(POLL_S)

    async def _pass_fence(self, client: str, subscription: str) -> None:
        fence = self._archive.fence()
        taken = fence.raise_for(client, subscription)
        while not fence.is_passed(taken):  # noqa: ASYNC110 - the protocol has no asyncio.Event
            await asyncio.sleep(POLL_S)

    async def read(self) -> list[Event] | None:
        if self._next >= self._stop:
            return None
        end = min(self._next + BATCH_EVENTS, self._stop)
        batch = self._archive.events[self._next : end]
        for event in batch:
            self._seam.pass_by(*self._key(event))
        shown = self._shown
        if shown is None:
            found = [event for event in batch if self._interest.selects(event)]
        else:
            found = [
                self._archive.events[at]
                for at in shown[bisect_left(shown, self._next) : bisect_left(shown, end)]
            ]
        self._next = end
        return found

    def close(self) -> None:
        """Nothing to release."""
