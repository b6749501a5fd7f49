"""A subscriber of ordered events: shows each event when everything that its stamp names has been shown.

Event n of topic T is next when n follows the clock of T and no subscribed topic of its stamp has a clock below its
entry (below, not different from: in paper ordering, figure 17, an event waits for ever for a clock that has moved on).
Two rules apply while subscriptions change:

* Rule 3, fence: the first event of a new topic waits until the topics subscribed before have reached the walk's clocks.
* Rule 4, hold: while a subscription to u is pending, events whose stamp has an entry for u wait.

A notification stands for one number, or for several consecutive ones that differ in nothing else (a run). It is
compared, kept and shown as one, and cut where something must come between.

Only the head of each topic is examined. The clock of an unsubscribed topic is infinite, that of a pending one is below
all values, so one comparison per entry suffices. A head that cannot be shown registers on the one entry that blocks
it, and its scan resumes there: an event costs its group once, however many wait.

For a service that loses events (section 4 of the paper), `Patience` limits the buffer's size and time. When either is
exceeded, the oldest event is forced: what precedes it and is here is shown first, what is missing is skipped. If a
skipped event arrives later, it is shown at once, marked out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from msgspec import Struct

from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Fact, Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.ordering.messages import MAX_TOPICS, ChangeSubscription, Identity, WalkDone
from tidings.core.ordering.resuming import Fence, Resumed, Resumption
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.waiting import NO_OP, NO_RELEASES, NoOp, Releases, TopicQueue, Waiting
from tidings.core.structures.range_map import RangeMap

NOT_SUBSCRIBED = 2**63
"""Above every value: nothing waits for it."""
UNDER_WAY = -1
"""Below every value: every event with an entry for it waits."""
REPEAT_NS = 200_000_000
MAX_CHANGES = 1024
MAX_BUFFERED = 65_536
"""Total of waiting events over a reliable service: as many as it may have in flight to one subscriber. Beyond, the
order breaks (`OrderStalled`): showing one would be wrong, and dropping one would go unnoticed."""
MAX_AHEAD = 2**26
"""A number further ahead of the clock is rejected."""
LOOK_EVERY = 256


class Patience(Struct, frozen=True):
    """How long, and for how many buffered events, to wait for what a service may have lost."""

    events: int
    limit_ns: int


class OrderedEvent(Fact, frozen=True, gc=False):
    """Shows the application what has the `count` numbers from the stamp's on."""

    stamp: Timestamp
    event: object
    out_of_order: bool = False
    count: int = 1


class TopicsJoined(Fact, frozen=True, gc=False):
    """All events on these topics that are published from now on are shown: those after these clocks."""

    topics: tuple[int, ...]
    clocks: tuple[int, ...]


class TopicsLeft(Fact, frozen=True, gc=False):
    """The servers know that the subscriber has left these topics."""

    topics: tuple[int, ...]


class ResumptionRefused(Fact, frozen=True, gc=False):
    """The servers' numbers are not those that the earlier run saw; nothing is shown."""

    topic: int


class ClocksSurveyed(Fact, frozen=True, gc=False):
    """The answer to `survey`: all events published before it was requested have numbers up to these."""

    clocks: tuple[tuple[int, int], ...]


class OrderStalled(Fact, frozen=True, gc=False):
    """Too many events wait for one that does not arrive; nothing more is shown."""

    buffered: int


class _Change:
    __slots__ = ("add", "remove")

    def __init__(self, add: tuple[int, ...], remove: tuple[int, ...]) -> None:
        self.add = add
        self.remove = remove


class OrderedSubscriber(Part):
    """Puts the events of one ordered subscription in order.

    `threshold` is that of the servers' groups: 2 for total order, 1 for causal order and with `patience`. The caller
    must subscribe to a topic in the event service before it joins it here.
    """

    name = "ordered-subscriber"
    handles = {WalkDone: "on_walk_done"}

    def __init__(
        self,
        port: Port,
        chain: Chain,
        *,
        threshold: int,
        incarnation: int = 0,
        version: int = 0,
        patience: Patience | None = None,
        repeat_ns: int = REPEAT_NS,
        max_buffered: int = MAX_BUFFERED,
        on_silence: Callable[[str], None] = lambda server: None,
        releases: Releases = NO_RELEASES,
    ) -> None:
        super().__init__(port)
        self._releases = releases
        self._ended = False
        if patience is not None and (threshold != 1 or patience.events < 1):
            raise ValueError("patience requires threshold 1 and room for at least one event")
        self.identity: Identity = (port.node, incarnation)
        self.clock = [NOT_SUBSCRIBED] * chain.topics
        self._chain = chain
        self._fences = threshold > 1
        self._patience = patience
        self._repeat_ns = repeat_ns
        self._repeats = 0
        self._max_buffered = max_buffered
        self._kept_since_look = 0
        self._on_silence = on_silence
        self._queues: dict[int, TopicQueue] = {}
        """By topic, subscribed or pending."""
        self._under_way: dict[int, int] = {}
        """Pending topic -> the highest value that events forced meanwhile have passed."""
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """Topic -> heap of (value, topic whose head waits for it)."""
        self._arrivals: deque[tuple[int, int, int, int]] = deque()
        """With patience: (when it will be forced, topic, first and last number) of what waits or has waited, the oldest
        first."""
        self._expected = 0
        """How many numbers wait on topics that are not pending."""
        self._version = version
        """That of the last change. A restarted subscriber counts from above all versions that earlier runs may have
        used."""
        self._resumed: Mapping[int, Resumed] = {}
        """Where an earlier run stopped, until the servers have confirmed that they still know the subscriber."""
        self._wanted: set[int] = set()
        """The topics after the last requested change."""
        self._topics: frozenset[int] = frozenset()
        """The topics that the servers know of, or that the current request tells them."""
        self._ever: set[int] = set()
        """All that were ever in `_topics`."""
        self._changes: deque[_Change] = deque()
        self._current: tuple[_Change, ChangeSubscription, tuple[int, ...]] | None = None
        """The pending change, its request, and the topics that were subscribed before."""

    @property
    def buffered(self) -> int:
        """The number of waiting events."""
        return sum(queue.count for queue in self._queues.values())

    @property
    def settled(self) -> bool:
        """True if no change of subscription is pending."""
        return self._current is None

    @property
    def wanted(self) -> tuple[int, ...]:
        """The topics after all requested changes."""
        return tuple(sorted(self._wanted))

    @property
    def lowest(self) -> int | None:
        """The lowest of its topics; None without topics, or while they change."""
        return max(self._topics) if self._topics and self._current is None else None

    def start_of(self, topic: int) -> Resumed:
        """Return where a topic that has just been joined begins."""
        return Resumed(self.clock[topic], self._queues[topic].fence)

    def waits_for(self) -> tuple[int, int] | None:
        """Return the topic and number of the missing event; number 0: the subscription to the topic is pending."""
        for topic, queue in self._queues.items():
            if queue.events and (missing := self._first_missing(topic)) is not None:
                return missing
        return None

    def _first_missing(self, topic: int) -> tuple[int, int] | None:
        for _ in range(len(self._queues) + 1):
            queue = self._queues[topic]
            if topic in self._under_way:
                return topic, 0
            number = self.clock[topic] + 1
            waiting = queue.events.get(number)
            if waiting is None:
                return topic, number
            index, values = waiting.stamp.index, waiting.stamp.values
            if queue.fence is not None:
                index, values = queue.fence[0] + index, queue.fence[1] + values
            blocked = [rank for rank, value in zip(index, values, strict=True) if self.clock[rank] < value]
            if not blocked:
                return None
            topic = blocked[0]
        return None

    # --- Changes of subscriptions

    def subscribe(self, *topics: int) -> None:
        """Join topics; `TopicsJoined` follows."""
        self.change(topics, ())

    def unsubscribe(self, *topics: int) -> None:
        """Leave topics: at once for the application, in the background at the servers."""
        self.change((), topics)

    def resume(self, earlier: Resumption) -> None:
        """Continue as the subscriber of an earlier run; call it first. `TopicsJoined` follows."""
        self._ever |= {*earlier.ever}
        self._resumed = earlier.topics
        self.change(earlier.topics, ())

    def change(self, add: Iterable[int], remove: Iterable[int]) -> None:
        """Join and leave topics in one step, after all changes requested before."""
        adds, removes = tuple(sorted(set(add))), tuple(sorted(set(remove)))
        if not self._chain.knows(adds) or self._wanted & {*adds} or not self._wanted >= {*removes}:
            raise ValueError(f"cannot join topics {adds} or cannot leave topics {removes}")
        if len(self._ever | self._wanted | {*adds}) > MAX_TOPICS or len(self._changes) >= MAX_CHANGES:
            raise ValueError(f"more than {MAX_TOPICS} topics, or more than {MAX_CHANGES} pending changes")
        self._wanted = (self._wanted | {*adds}) - {*removes}
        if adds or removes:
            for topic in removes:
                if topic not in self._under_way:
                    self._drop(topic)
            self._changes.append(_Change(adds, removes))
            self._start_next()

    def survey(self) -> None:
        """Request the clocks of all topics; `ClocksSurveyed` follows, after all changes requested before."""
        if self._wanted and len(self._changes) < MAX_CHANGES:
            self._changes.append(_Change((), ()))
            self._start_next()

    def _drop(self, topic: int) -> None:
        """Show nothing of the topic, and wait for nothing of it, from now on."""
        queue = self._queues.pop(topic, None)
        if queue is not None:
            self.clock[topic] = NOT_SUBSCRIBED
            if topic not in self._under_way:
                self._expected -= queue.count
            self._release_all(queue)
            self._rescan()

    def drop_all(self) -> None:
        """End the subscriber: nothing that waits or arrives is shown."""
        self._ended = True
        for queue in self._queues.values():
            self._release_all(queue)

    def _release_all(self, queue: TopicQueue) -> None:
        events, queue.events = queue.events, RangeMap()
        for first, last, waiting in events:
            self._release_event(waiting.event, first, last)

    def _release_event(self, event: object, first: int, last: int) -> None:
        self._releases.drop(event.token if isinstance(event, NoOp) else event, first, last - first + 1)

    def _start_next(self) -> None:
        if self._current is not None or not self._changes:
            return
        change = self._changes.popleft()
        for topic in change.remove:
            self._drop(topic)
        before = tuple(sorted(self._queues))
        for topic in change.add:
            self._queues[topic] = TopicQueue()
            self._under_way[topic] = 0
            self.clock[topic] = UNDER_WAY
        self._topics = self._topics.difference(change.remove).union(change.add)
        self._ever |= self._topics
        self._version += 1
        ghosts = tuple(sorted(self._ever - self._topics))
        topics = tuple(sorted(self._topics))
        resumes = bool(self._resumed)
        request = ChangeSubscription(self.identity, self._version, topics, ghosts, resumes)
        self._current = change, request, before
        self._repeats = 0
        self._rescan()
        self._send_request(request)

    def _send_request(self, request: ChangeSubscription) -> None:
        lowest = max((*request.topics, *request.ghosts))
        self.port.send(self._chain.server_of(lowest), request)
        self.port.set_timer((self.name, "repeat"), self.port.now + self._repeat_ns)

    def repeat(self, server: str) -> None:
        """Send the pending request again: another replica is active for that server."""
        if self._current is not None:
            request = self._current[1]
            if self._chain.server_of(max((*request.topics, *request.ghosts))) == server:
                self._send_request(request)

    def on_walk_done(self, sender: str, message: WalkDone) -> None:
        if self._current is None or (message.subscriber, message.version) != (self.identity, self._version):
            return
        change, request, before = self._current
        walk = dict(zip(message.index, message.values, strict=False))
        if not walk.keys() >= {*request.topics}:
            self.port.emit(Misbehaviour(sender, "its answer to a change of subscription lacks clocks"))
            return
        self._current = None
        self.port.cancel_timer((self.name, "repeat"))
        resumed, self._resumed = self._resumed, {}
        for topic, earlier in resumed.items():
            if walk[topic] < earlier.clock:
                self.port.emit(ResumptionRefused(topic))
                return
        self._complete(change, walk, before, resumed)
        if change.add:
            self.port.emit(TopicsJoined(change.add, tuple(self.clock[topic] for topic in change.add)))
        if change.remove:
            self.port.emit(TopicsLeft(change.remove))
        if not change.add and not change.remove:
            self.port.emit(ClocksSurveyed(tuple([(topic, walk[topic]) for topic in sorted(self._queues)])))
        for topic in change.add:
            self._release(topic)
        self._rescan()
        self._start_next()

    def _complete(
        self,
        change: _Change,
        walk: dict[int, int],
        before: tuple[int, ...],
        resumed: Mapping[int, Resumed],
    ) -> None:
        """Set the clocks of the new topics only: events of the others are in flight. A resumed topic continues where
        the earlier run stopped: everything since then is in flight as well."""
        for topic in change.add:
            queue = self._queues[topic]
            start = resumed.get(topic) or Resumed(walk[topic], self._fence(walk, before))
            self.clock[topic] = start.clock
            queue.fence = start.fence
            for number in start.open:
                queue.skip(number, number)

    def _fence(self, walk: dict[int, int], before: tuple[int, ...]) -> Fence | None:
        """Return the fence of rule 3, if it applies."""
        if not self._fences:
            return None
        return before, tuple([walk[topic] for topic in before])

    def _release(self, topic: int) -> None:
        """End a topic's pending state; what forced events have passed meanwhile is late."""
        forced = self._under_way.pop(topic)
        queue = self._queues[topic]
        for first, last, waiting in queue.events.take(0, self.clock[topic]):
            self._show_late(queue, waiting.stamp, waiting.event, first, last)
        for first, last, waiting in queue.events.take(0, forced):
            self._skip_to(topic, last)
            self._show_late(queue, waiting.stamp, waiting.event, first, last)
        self._skip_to(topic, forced)
        self._expected += queue.count
        for first, last, _ in queue.events:
            self._expect(topic, first, last)
        self._make_room(topic)

    # --- Events

    def receive(self, stamp: Timestamp, event: object, count: int = 1) -> None:
        """Take a notification for the `count` numbers from the stamp's on."""
        topic, first, last = stamp.topic, stamp.number, stamp.number + count - 1
        queue = self._queues.get(topic)
        if queue is None or first < 1 or self._ended:
            self._release_event(event, first, last)
            return
        clock = self.clock[topic]
        if first <= clock:
            self._show_late(queue, stamp, event, first, min(last, clock))
            first = clock + 1
        elif clock != UNDER_WAY and first > clock + MAX_AHEAD:
            self.port.emit(Misbehaviour(f"topic {topic}", f"event {first} is too far ahead of {clock}"))
            self._release_event(event, first, last)
            return
        if first <= last:
            self._keep(queue, Waiting(stamp, event), first, last)

    def _keep(self, queue: TopicQueue, waiting: Waiting, first: int, last: int) -> None:
        """Keep or show what is new. Events replace waiting no-ops of the same numbers."""
        topic = waiting.stamp.topic
        is_next = first == self.clock[topic] + 1
        is_head = is_next and not queue.events and topic not in self._under_way
        if is_head:  # the common case, and mostly it need not wait
            queue.begin(first, waiting.stamp)
            if self._is_next(queue):
                self._pass(topic, queue, first, last, waiting)
                if topic in self._waiting:
                    self._settle(self._woken(topic))
                return
            self._block(topic, queue)
        fresh = queue.events.free(first, last)
        is_new = fresh == [(first, last)]
        for begin, end, held in () if is_new else queue.events.overlapping(first, last):
            if isinstance(held.event, NoOp) and not isinstance(waiting.event, NoOp):
                queue.events.take(begin, end)
                queue.events.add(begin, end, waiting)
                self._release_event(held.event, begin, end)
            else:
                self._release_event(waiting.event, begin, end)
        for begin, end in fresh:
            queue.events.add(begin, end, waiting)
            self._expected += 0 if topic in self._under_way else end - begin + 1
        if fresh and is_next and fresh[0][0] == first:
            if not is_head:
                self._settle((topic,))
        elif fresh and self._patience is None:
            self._check_room(last - first + 1)
        if self._patience is not None:
            for begin, end in fresh:
                for left_first, left_last, _ in queue.events.overlapping(begin, end):
                    self._expect(topic, left_first, left_last)
            self._make_room(topic)

    def _check_room(self, count: int) -> None:
        """Check the buffer's size now and then: adding it up takes time proportional to the topics."""
        self._kept_since_look += count
        if self._kept_since_look >= LOOK_EVERY:
            self._kept_since_look = 0
            if self.buffered > self._max_buffered:
                self.port.emit(OrderStalled(self.buffered))

    def receive_no_op(self, stamp: Timestamp, token: object = None, count: int = 1) -> None:
        """Take no-ops; they are passed over when it is their turn."""
        self.receive(stamp, NO_OP if token is None else NoOp(token), count)

    def _show_late(self, queue: TopicQueue, stamp: Timestamp, event: object, first: int, last: int) -> None:
        """Show what was skipped of these passed numbers; release the rest: it was shown, or is not ours."""
        if isinstance(event, NoOp):
            self._release_event(event, first, last)
            return
        skipped = queue.skipped
        unskipped = skipped.missing(first, last + 1)
        skipped.remove(first, last + 1)
        start = first
        for begin, stop in [*unskipped, (last + 1, last + 1)]:
            if start < begin:
                self.port.emit(OrderedEvent(stamp.at(start), event, out_of_order=True, count=begin - start))
            if begin < stop:
                self._release_event(event, begin, stop - 1)
            start = stop

    def _rescan(self) -> None:
        """Scan all heads anew: topics were added or removed, so earlier results are void."""
        self._waiting.clear()
        for queue in self._queues.values():
            queue.scanned = 0
        self._settle(self._queues)

    def _settle(self, topics: Iterable[int]) -> None:
        """Show all that can be shown after these topics may have changed."""
        ready = deque(topics)
        while ready:
            topic = ready.popleft()
            if self._advance(topic):
                ready.extend(self._woken(topic))

    def _advance(self, topic: int) -> bool:
        """Show the heads of a topic while they are next; False if none was."""
        queue = self._queues[topic]
        first = number = self.clock[topic] + 1
        while (head := queue.events.first) is not None and head[0] == number:
            if queue.scanned != number:
                queue.begin(number, head[2].stamp)
            if not self._is_next(queue):
                self._block(topic, queue)
                break
            self._show(topic, queue, *head)
            number = head[1] + 1
        return number > first

    def _is_next(self, queue: TopicQueue) -> bool:
        """Resume the scan of the head; on False, `position` is the entry that blocks it."""
        clock, index, values = self.clock, queue.index, queue.values
        for position in range(queue.position, len(index)):
            if clock[index[position]] < values[position]:
                queue.position = position
                return False
        return True

    def _block(self, topic: int, queue: TopicQueue) -> None:
        """Register the head on the entry that blocks it."""
        waits_for, value = queue.index[queue.position], queue.values[queue.position]
        heappush(self._waiting.setdefault(waits_for, []), (value, topic))

    def _woken(self, topic: int) -> list[int]:
        """Return the topics whose heads waited for a value that the topic's clock has reached."""
        heap = self._waiting.get(topic)
        woken: list[int] = []
        while heap and heap[0][0] <= self.clock[topic]:
            woken.append(heappop(heap)[1])
        return woken

    def _show(self, topic: int, queue: TopicQueue, first: int, last: int, waiting: Waiting) -> None:
        queue.events.take(first, last)
        self._expected -= last - first + 1
        self._pass(topic, queue, first, last, waiting)

    def _pass(self, topic: int, queue: TopicQueue, first: int, last: int, waiting: Waiting) -> None:
        """Advance the clock past these numbers: it is their turn."""
        stamp, event, count = waiting.stamp.at(first), waiting.event, last - first + 1
        queue.fence = None
        self.clock[topic] = last
        if isinstance(event, NoOp):
            queue.skip(first, last)  # their events may still arrive
            if event.token is not None:
                self._releases.pass_over(stamp, event.token, count)
        else:
            self.port.emit(OrderedEvent(stamp, event, count=count))

    # --- Numbers that a reliable service has lost

    @property
    def can_skip(self) -> bool:
        """True if what remains without a missing event is in order: its stamps name everything before it. With
        threshold 2 they do not, because an order may follow from the missing event alone."""
        return not self._fences or len(self._queues) == 1

    def lacking(self, clocks: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Return topic, first and last of the numbers up to these clocks that have not arrived."""
        found: list[tuple[int, int, int]] = []
        for topic, clock in clocks:
            queue = self._queues.get(topic)
            if queue is not None and topic not in self._under_way and self.clock[topic] < clock:
                free = queue.events.free(self.clock[topic] + 1, clock)
                found.extend((topic, first, last) for first, last in free)
        return found

    def skip(self, lacking: Iterable[tuple[int, int, int]]) -> None:
        """Go on without these numbers: what is here and precedes them is shown first. If they arrive after all, they
        are not shown. Requires that the subscriber `can_skip` and is `settled`."""
        for topic, _, last in lacking:
            if topic in self._queues and self.clock[topic] < last:
                self._force(topic, last)

    # --- Services that lose events

    def _expect(self, topic: int, first: int, last: int) -> None:
        """Limit how long these numbers wait."""
        if self._patience is None or topic in self._under_way:  # not known yet whether they are ours
            return
        at = self.port.now + self._patience.limit_ns
        if not self._arrivals:
            self.port.set_timer((self.name, "patience"), at)
        self._arrivals.append((at, topic, first, last))

    def _make_room(self, topic: int) -> None:
        """Force the oldest events until the rest fits; for a pending topic, drop them."""
        if self._patience is None:
            return
        if topic in self._under_way:
            queue = self._queues[topic]
            while (surplus := queue.count - self._patience.events) > 0 and queue.events.first is not None:
                first, last, waiting = queue.events.first
                last = min(last, first + surplus - 1)
                queue.events.take(first, last)
                self._release_event(waiting.event, first, last)
        while self._expected > self._patience.events and (oldest := self._oldest()) is not None:
            self._force(*oldest)

    def _oldest(self) -> tuple[int, int] | None:
        """Return the topic and number of what has waited longest."""
        while self._arrivals:
            _, topic, first, last = self._arrivals[0]
            queue = self._queues.get(topic)
            left = [] if queue is None or topic in self._under_way else queue.events.overlapping(first, last)
            if left:
                return topic, left[0][0]
            self._arrivals.popleft()
        return None

    def _force(self, topic: int, number: int) -> None:
        """Show the event after all that precedes it and is here; skip what is missing."""
        moved: dict[int, None] = {}
        stack = [(topic, number)]
        while stack:
            topic, number = stack[-1]
            queue = self._queues[topic]
            if self.clock[topic] >= number:
                stack.pop()
                continue
            moved[topic] = None
            head = queue.events.first
            if head is None or head[0] > number:
                self._skip_to(topic, number)
                continue
            first, last, waiting = head
            unmet = self._unmet(waiting.stamp, stack)
            if unmet is not None:
                stack.append(unmet)
                continue
            self._skip_to(topic, first - 1)
            self._show(topic, queue, first, min(last, number), waiting)
        woken = [other for topic in moved for other in self._woken(topic)]
        self._settle(dict.fromkeys((*moved, *woken)))

    def _unmet(self, stamp: Timestamp, stack: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the first entry to reach before, unless it is on the stack (false stamps could make a cycle)."""
        for rank, value in zip(stamp.index, stamp.values, strict=True):
            if self.clock[rank] >= value:
                continue
            if rank in self._under_way:
                self._under_way[rank] = max(self._under_way[rank], value)
            elif not any(rank == topic and number <= value for topic, number in stack):
                return rank, value
        return None

    def _skip_to(self, topic: int, number: int) -> None:
        """Raise the clock to at least `number`. With patience, what it passes may still be shown late."""
        first = self.clock[topic] + 1
        if number >= first:
            self._queues[topic].fence = None
            self.clock[topic] = number
            if self._patience is None:
                self._releases.skip(topic, first, number - first + 1)
            else:
                self._queues[topic].skip(first, number)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "repeat":
            if self._current is not None:
                self._repeats += 1
                if self._repeats % 2 == 0:
                    lowest = max((*self._current[1].topics, *self._current[1].ghosts))
                    self._on_silence(self._chain.server_of(lowest))
                self._send_request(self._current[1])
            return
        while (oldest := self._oldest()) is not None and self._arrivals[0][0] <= self.port.now:
            self._force(*oldest)
        if self._arrivals:
            self.port.set_timer(name, self._arrivals[0][0])
