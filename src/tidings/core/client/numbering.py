"""Numbers publications: runs of events get numbers, then go to the service, all in the order of the calls.

So an event's sequence is known at the call, and sequences follow the application's order whatever the sequencers do.
Events of consecutive calls that belong to one entry of the layout make one run. It is encoded at the call and gets its
numbers in one request; the answer becomes its header. An event on an unordered topic waits only behind events that
wait for numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from tidings.core.client.beneath import Beneath
from tidings.core.errors import OrderError
from tidings.core.events.payload import Payload
from tidings.core.events.run import RunMaker, Stretch, cut, stamped
from tidings.core.facts import PublicationFailed, PublicationNumbered, PublicationSent
from tidings.core.filters.language.predicates import Scalar
from tidings.core.ordering.messages import MAX_BATCH
from tidings.core.ordering.module import OrderingModule, PublishNow
from tidings.core.structures.range_map import RangeMap

FULL = "too many events wait for numbers: publish more slowly"


class _Part:
    """Published events that are not with the service yet."""

    __slots__ = ("handle", "ready", "stretch")

    def __init__(self, stretch: Stretch, *, ready: bool) -> None:
        self.stretch = stretch
        self.ready = ready
        """True if it has its stamp, or needs none."""
        self.handle: int | None = None


class OrderNumbering:
    """Requests numbers and hands events to the service in order.

    `wanted` says whether anybody wants an order at all. If the service does not confirm publications (`confirms` is
    False), an event counts as published when it is handed over.
    """

    def __init__(
        self,
        beneath: Beneath,
        module: OrderingModule,
        emit: Callable[[object], None],
        *,
        wanted: Callable[[], bool],
        confirms: bool,
    ) -> None:
        self.refusal = ""
        """Why no more numbers are given out; empty if they are."""
        self._beneath = beneath
        self._module = module
        self._layout = module.layout
        self._emit = emit
        self._wanted = wanted
        self._confirms = confirms
        self._making = RunMaker(*beneath.identity)
        """The events of the latest calls."""
        self._rank: int | None = None
        """The entry that they belong to."""
        self._parts: deque[_Part] = deque()
        """Events before them that are not with the service."""
        self._handles: RangeMap[int] = RangeMap()
        """Unconfirmed sequences -> their handle in the module."""

    def publish(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> int:
        """Publish an event and return its sequence. Raises OrderError if its topic gets no more numbers. All errors are
        raised before the sequence is reserved."""
        rank = self._layout.rank_of(topic) if self._wanted() else None
        if rank is None and not self._parts and not self._making:
            sequence = self._beneath.reserve()
            self._beneath.publish_as(sequence, topic, attributes, payload, published_at)
            self._emit(PublicationSent(sequence, sequence))
            return sequence
        if rank is not None and self.refusal:
            raise OrderError(self.refusal)
        if rank is not None and self._module.is_full:
            raise OrderError(FULL)
        if rank != self._rank:
            self.close()
            self._rank = rank
        sequence = self._beneath.next_sequence
        is_full = self._making.add(sequence, topic, attributes, payload, published_at)
        self._beneath.reserve()
        if is_full:
            self._ask(self._making.take_full())
        self._module.gather(self)
        return sequence

    def close(self) -> None:
        """End the current run."""
        self._ask(self._making.take_all())

    def _ask(self, made: list[Stretch]) -> None:
        rank = self._rank
        for stretch in made:
            for start in range(stretch.first, stretch.last + 1, MAX_BATCH):
                part = _Part(cut(stretch, start, start + MAX_BATCH - 1), ready=rank is None)
                self._parts.append(part)
                if rank is not None:
                    self._module.publish(rank, part, part.stretch.count)
        self._hand_over()

    def on_publish_now(self, fact: PublishNow) -> None:
        part = fact.event
        assert isinstance(part, _Part)
        part.stretch = stamped(part.stretch, self._layout.fingerprint, fact.stamp)
        part.handle, part.ready = fact.handle, True
        entries = 1 + len(fact.stamp.index)
        self._emit(PublicationNumbered(part.stretch.first, part.stretch.last, entries))
        self._hand_over()

    def _hand_over(self) -> None:
        parts = self._parts
        while parts and parts[0].ready:
            part = parts.popleft()
            stretch = part.stretch
            if part.handle is not None and self._confirms:
                self._handles.add(stretch.first, stretch.last, part.handle)
            self._beneath.publish_stretch(stretch)
            self._emit(PublicationSent(stretch.first, stretch.last))
            if part.handle is not None and not self._confirms:
                self._module.published(part.handle, stretch.count)

    def is_waiting(self, sequence: int) -> bool:
        """Return whether it waits for its number, or behind an event that does."""
        first = self._parts[0].stretch.first if self._parts else self._making.first
        return first is not None and sequence >= first

    # --- Answers of the service

    def on_confirmed(self, first: int, last: int) -> None:
        for handle, count in self._take(first, last):
            self._module.published(handle, count)

    def on_failed(self, sequence: int) -> None:
        for handle, count in self._take(sequence, sequence):
            self._module.failed(handle, count)

    def _take(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove and return the handles of these sequences, with the count of each."""
        return [(handle, end - begin + 1) for begin, end, handle in self._handles.take(first, last)]

    # --- Failure

    def refuse(self, reason: str) -> None:
        """Give out no more numbers: fail what waits for one, or behind such an event."""
        self.refusal = reason
        waiting = [part.stretch for part in self._parts] + self._making.take_all()
        self._parts.clear()
        for stretch in waiting:
            for sequence in range(stretch.first, stretch.last + 1):
                self._emit(PublicationFailed(sequence, reason, unordered=True))

    def leave(self) -> None:
        """Stop publishing; events without a number get none."""
        self._parts.clear()
        self._making.take_all()
        self._module.leave()
