"""A subscriber of ordered events: shows each when everything that its stamp names has been shown.

Event n of topic T is next when n follows the clock of T and no subscribed topic of its stamp has a clock below its
entry (below, not other than: paper ordering, figure 17, waits for ever for a clock that has gone on). Two rules hold
at changes of subscriptions:

* fence: the first event of a new topic waits until the topics that were there before have reached the walk's clocks;
* hold: while a subscription to u is under way, events whose stamp has an entry for u wait.

What comes stands for one number or for several in a row that differ in nothing else (a run): it is compared, kept and
shown as one, and cut where something must come between.

Only the head of each topic is looked at. The clock of a topic that is not subscribed is infinite, that of one under
way is below all values, so one comparison per entry says all. A head that cannot be shown registers on the one entry
that stops it, and its scan goes on from there: an event costs its group once, however many wait.

Over a service that loses events (section 4 of the paper), with `Patience`: a buffer of limited size and time. When
either is exceeded the oldest event is forced: what precedes it and is here goes before it, what is not is skipped,
and shown at once, marked out of order, if it comes after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Protocol

from msgspec import Struct

from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Fact, Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.ordering.messages import MAX_TOPICS, ChangeSubscription, Identity, WalkDone
from tidings.core.ordering.resuming import Fence, Resumed, Resumption
from tidings.core.ordering.stamps import Chain
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet

NOT_SUBSCRIBED = 2**63
"""Above every value: nobody waits for it."""
UNDER_WAY = -1
"""Below every value: whoever has an entry for it waits."""
REPEAT_NS = 200_000_000
MAX_CHANGES = 1024
MAX_BUFFERED = 65_536
"""Events that wait in all, of a reliable service: as many as such a service has on its way to one subscriber. Beyond,
the order is given up (`OrderStalled`): showing one would be wrong, dropping one would be silent."""
MAX_AHEAD = 2**26
"""A number further ahead of the clock than this is not believed."""
LOOK_EVERY = 256
MAX_SKIPPED = 1024
"""Ranges of numbers per topic that may be shown late; of the lowest ones, what comes later is dropped."""


class Patience(Struct, frozen=True):
    """How long to wait for what a service may have lost."""

    events: int
    limit_ns: int


class OrderedEvent(Fact, frozen=True, gc=False):
    """The application is shown what has these numbers, `count` from the stamp's on."""

    stamp: Timestamp
    event: object
    out_of_order: bool = False
    count: int = 1


class TopicsJoined(Fact, frozen=True, gc=False):
    """From now on all events of these topics that are published are shown: those after these clocks."""

    topics: tuple[int, ...]
    clocks: tuple[int, ...]


class TopicsLeft(Fact, frozen=True, gc=False):
    """Nobody counts on the subscriber for these topics any longer."""

    topics: tuple[int, ...]


class ResumptionRefused(Fact, frozen=True, gc=False):
    """The servers' numbers are not those that the earlier life saw; nothing is shown."""

    topic: int


class OrderStalled(Fact, frozen=True, gc=False):
    """So many events wait for one that does not come; nothing is shown any more."""

    buffered: int


class NoOp:
    """In the place of events whose publisher died, or that are not for this subscriber: it takes numbers and is never
    shown. `token` is for whoever must know when they are passed."""

    __slots__ = ("token",)

    def __init__(self, token: object = None) -> None:
        self.token = token


NO_OP = NoOp()


class Releases(Protocol):
    """Told what becomes of all numbers that a subscriber was given and does not show: so nothing is held for ever."""

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        """The turn of no-ops with this token has come, `count` from the stamp's number on."""

    def drop(self, event: object, number: int, count: int) -> None:
        """The event, or the token, was not needed for these numbers, or is not any more."""


class _NoReleases:
    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        pass

    def drop(self, event: object, number: int, count: int) -> None:
        pass


NO_RELEASES: Releases = _NoReleases()


class _Waiting(Struct, frozen=True):
    """The stamp is that of some number; those of the others are the same but for the number."""

    stamp: Timestamp
    event: object


class _Queue:
    """What waits of one topic."""

    __slots__ = ("events", "fence", "index", "position", "scanned", "skipped", "values")

    def __init__(self) -> None:
        self.events: RangeMap[_Waiting] = RangeMap()
        self.fence: Fence | None = None
        """What the first event waits for, whatever its stamp."""
        self.skipped = RangeSet()
        """Numbers up to the clock that were not shown."""
        self.scanned = 0
        """The head whose `index` and `values` are met up to `position`."""
        self.index: tuple[int, ...] = ()
        self.values: tuple[int, ...] = ()
        self.position = 0

    @property
    def count(self) -> int:
        """How many numbers wait."""
        return sum(last - first + 1 for first, last, _ in self.events)

    def begin(self, number: int, stamp: Timestamp) -> None:
        """A new head."""
        self.scanned = number
        self.position = 0
        self.index, self.values = stamp.index, stamp.values
        if self.fence is not None:
            index, values = self.fence
            self.index, self.values = index + self.index, values + self.values

    def skip(self, first: int, last: int) -> None:
        self.skipped.add_range(first, last + 1)
        if self.skipped.range_count > MAX_SKIPPED:
            _, stop = next(iter(self.skipped))
            self.skipped.trim_below(stop)


class _Change:
    __slots__ = ("add", "remove")

    def __init__(self, add: tuple[int, ...], remove: tuple[int, ...]) -> None:
        self.add = add
        self.remove = remove


class OrderedSubscriber(Part):
    """`threshold` is that of the servers' groups: 2 for total order, 1 for causal order and with `patience`.

    The caller is subscribed in the event service to a topic before it asks for it here.
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
            raise ValueError("patience needs groups of threshold 1, and room for one event at least")
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
        self._queues: dict[int, _Queue] = {}
        """Of the topics that are subscribed or under way."""
        self._under_way: dict[int, int] = {}
        """Topic -> the number up to which events forced meanwhile have gone past it."""
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """Topic -> heap of (value, topic of a head that waits for it)."""
        self._arrivals: deque[tuple[int, int, int, int]] = deque()
        """With patience: (when it will be forced, topic, first and last number) of what waits, or did, the oldest
        first."""
        self._expected = 0
        """Numbers that wait, of topics that are not under way."""
        self._version = version
        """Of the last change. A later life counts from above all that those before it may have reached."""
        self._resumed: Mapping[int, Resumed] = {}
        """How far an earlier life came, until the servers have said that they still know it."""
        self._wanted: set[int] = set()
        """The topics after the last change asked for."""
        self._topics: frozenset[int] = frozenset()
        """The topics that the servers know of, or are being told of."""
        self._ever: set[int] = set()
        """They and all that were among them before."""
        self._changes: deque[_Change] = deque()
        self._current: tuple[_Change, ChangeSubscription, tuple[int, ...]] | None = None
        """The change under way, its request, and the topics that were subscribed before."""

    @property
    def buffered(self) -> int:
        """How many events wait."""
        return sum(queue.count for queue in self._queues.values())

    @property
    def settled(self) -> bool:
        """No change of subscription is under way."""
        return self._current is None

    @property
    def wanted(self) -> tuple[int, ...]:
        """The topics after all changes asked for."""
        return tuple(sorted(self._wanted))

    @property
    def lowest(self) -> int | None:
        """The lowest of its topics; None while it has none, or they change."""
        return max(self._topics) if self._topics and self._current is None else None

    def start_of(self, topic: int) -> Resumed:
        """Where a topic begins that has just been joined."""
        return Resumed(self.clock[topic], self._queues[topic].fence)

    def waits_for(self) -> tuple[int, int] | None:
        """The topic and number of the event for want of which others wait; number 0: its own subscription."""
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
        """The answer is `TopicsJoined`."""
        self.change(topics, ())

    def unsubscribe(self, *topics: int) -> None:
        """At once for the application; the servers are told in the background."""
        self.change((), topics)

    def resume(self, earlier: Resumption) -> None:
        """Go on as the subscriber that an earlier life was, before anything else; the answer is `TopicsJoined`."""
        self._ever |= {*earlier.ever}
        self._resumed = earlier.topics
        self.change(earlier.topics, ())

    def change(self, add: Iterable[int], remove: Iterable[int]) -> None:
        """Join and leave topics in one step, after the changes asked for before."""
        adds, removes = tuple(sorted(set(add))), tuple(sorted(set(remove)))
        if not self._chain.knows(adds) or self._wanted & {*adds} or not self._wanted >= {*removes}:
            raise ValueError(f"topics {adds} cannot be joined, or topics {removes} cannot be left")
        if len(self._ever | self._wanted | {*adds}) > MAX_TOPICS or len(self._changes) >= MAX_CHANGES:
            raise ValueError("too many topics, or changes under way")
        self._wanted = (self._wanted | {*adds}) - {*removes}
        if adds or removes:
            for topic in removes:
                if topic not in self._under_way:
                    self._drop(topic)
            self._changes.append(_Change(adds, removes))
            self._start_next()

    def _drop(self, topic: int) -> None:
        """Nothing of the topic is shown, or waited for, from now on."""
        queue = self._queues.pop(topic, None)
        if queue is not None:
            self.clock[topic] = NOT_SUBSCRIBED
            if topic not in self._under_way:
                self._expected -= queue.count
            self._release_all(queue)
            self._look_again()

    def drop_all(self) -> None:
        """The subscriber is no more: nothing that waits, or comes, is shown."""
        self._ended = True
        for queue in self._queues.values():
            self._release_all(queue)

    def _release_all(self, queue: _Queue) -> None:
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
            self._queues[topic] = _Queue()
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
        self._look_again()
        self._send_request(request)

    def _send_request(self, request: ChangeSubscription) -> None:
        lowest = max((*request.topics, *request.ghosts))
        self.port.send(self._chain.server_of(lowest), request)
        self.port.set_timer((self.name, "repeat"), self.port.now + self._repeat_ns)

    def repeat(self, server: str) -> None:
        """Another speaks for that server now."""
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
            self.port.emit(Misbehaviour(sender, "it answers a change of subscription without its clocks"))
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
        for topic in change.add:
            self._release(topic)
        self._look_again()
        self._start_next()

    def _complete(
        self,
        change: _Change,
        walk: dict[int, int],
        before: tuple[int, ...],
        resumed: Mapping[int, Resumed],
    ) -> None:
        """The clocks of the new topics alone: events of the others are on their way. One that is resumed goes on where
        its earlier life ended: all since then is on its way as well."""
        for topic in change.add:
            queue = self._queues[topic]
            start = resumed.get(topic) or Resumed(walk[topic], self._fence(walk, before))
            self.clock[topic] = start.clock
            queue.fence = start.fence
            for number in start.open:
                queue.skip(number, number)

    def _fence(self, walk: dict[int, int], before: tuple[int, ...]) -> Fence | None:
        """Rule 3."""
        if not self._fences:
            return None
        return before, tuple([walk[topic] for topic in before])

    def _release(self, topic: int) -> None:
        """The topic is no longer under way; what was forced meanwhile came before its turn."""
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
        """The service notifies of what has `count` numbers from the stamp's on."""
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
            self.port.emit(Misbehaviour(f"topic {topic}", f"an event has the number {first}, after {clock}"))
            self._release_event(event, first, last)
            return
        if first <= last:
            self._keep(queue, _Waiting(stamp, event), first, last)

    def _keep(self, queue: _Queue, waiting: _Waiting, first: int, last: int) -> None:
        """What was not here before, and no-ops that wait are replaced by their events."""
        topic = waiting.stamp.topic
        is_next = first == self.clock[topic] + 1
        is_head = is_next and not queue.events and topic not in self._under_way
        if is_head:  # mostly, and it need not wait
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
            self._look_at_room(last - first + 1)
        if self._patience is not None:
            for begin, end in fresh:
                for left_first, left_last, _ in queue.events.overlapping(begin, end):
                    self._expect(topic, left_first, left_last)
            self._make_room(topic)

    def _look_at_room(self, count: int) -> None:
        """Now and then: adding up costs as much as the topics."""
        self._kept_since_look += count
        if self._kept_since_look >= LOOK_EVERY:
            self._kept_since_look = 0
            if self.buffered > self._max_buffered:
                self.port.emit(OrderStalled(self.buffered))

    def receive_no_op(self, stamp: Timestamp, token: object = None, count: int = 1) -> None:
        """The service notifies of no-ops: in their turn they are passed over."""
        self.receive(stamp, NO_OP if token is None else NoOp(token), count)

    def _show_late(self, queue: _Queue, stamp: Timestamp, event: object, first: int, last: int) -> None:
        """These numbers have been passed. What was skipped is shown now; the rest was shown, or is not ours."""
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

    def _look_again(self) -> None:
        """Clocks of topics came or went: nothing that was found out about heads holds any longer."""
        self._waiting.clear()
        for queue in self._queues.values():
            queue.scanned = 0
        self._settle(self._queues)

    def _settle(self, topics: Iterable[int]) -> None:
        """Show all that can be shown now that these topics may have news."""
        ready = deque(topics)
        while ready:
            topic = ready.popleft()
            if self._advance(topic):
                ready.extend(self._woken(topic))

    def _advance(self, topic: int) -> bool:
        """Show the heads of a topic as long as they are next; False if none was."""
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

    def _is_next(self, queue: _Queue) -> bool:
        """Scan on from where the head was stopped; `position` is then the entry that stops it."""
        clock, index, values = self.clock, queue.index, queue.values
        for position in range(queue.position, len(index)):
            if clock[index[position]] < values[position]:
                queue.position = position
                return False
        return True

    def _block(self, topic: int, queue: _Queue) -> None:
        """The head waits for the entry that stops it."""
        waits_for, value = queue.index[queue.position], queue.values[queue.position]
        heappush(self._waiting.setdefault(waits_for, []), (value, topic))

    def _woken(self, topic: int) -> list[int]:
        """The topics whose heads waited for a value that the topic's clock has reached."""
        heap = self._waiting.get(topic)
        woken: list[int] = []
        while heap and heap[0][0] <= self.clock[topic]:
            woken.append(heappop(heap)[1])
        return woken

    def _show(self, topic: int, queue: _Queue, first: int, last: int, waiting: _Waiting) -> None:
        queue.events.take(first, last)
        self._expected -= last - first + 1
        self._pass(topic, queue, first, last, waiting)

    def _pass(self, topic: int, queue: _Queue, first: int, last: int, waiting: _Waiting) -> None:
        """Their turn has come."""
        stamp, event, count = waiting.stamp.at(first), waiting.event, last - first + 1
        queue.fence = None
        self.clock[topic] = last
        if isinstance(event, NoOp):
            queue.skip(first, last)  # their events may come yet
            if event.token is not None:
                self._releases.pass_over(stamp, event.token, count)
        else:
            self.port.emit(OrderedEvent(stamp, event, count=count))

    # --- Services that lose events

    def _expect(self, topic: int, first: int, last: int) -> None:
        """These wait, and not for ever."""
        if self._patience is None or topic in self._under_way:  # whether it is ours is not known yet
            return
        at = self.port.now + self._patience.limit_ns
        if not self._arrivals:
            self.port.set_timer((self.name, "patience"), at)
        self._arrivals.append((at, topic, first, last))

    def _make_room(self, topic: int) -> None:
        """If there is no room for all that wait, the oldest do not any longer."""
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
        """The topic and number of what waits longest."""
        while self._arrivals:
            _, topic, first, last = self._arrivals[0]
            queue = self._queues.get(topic)
            left = [] if queue is None or topic in self._under_way else queue.events.overlapping(first, last)
            if left:
                return topic, left[0][0]
            self._arrivals.popleft()
        return None

    def _force(self, topic: int, number: int) -> None:
        """Show the event, after what is here of all that precedes it; what is not here is skipped."""
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
        """The first entry that must be reached before; what is asked for already (by false stamps) is not again."""
        for rank, value in zip(stamp.index, stamp.values, strict=True):
            if self.clock[rank] >= value:
                continue
            if rank in self._under_way:
                self._under_way[rank] = max(self._under_way[rank], value)
            elif not any(rank == topic and number <= value for topic, number in stack):
                return rank, value
        return None

    def _skip_to(self, topic: int, number: int) -> None:
        """The clock goes to `number` at least; what it passes was not shown."""
        if number > self.clock[topic]:
            self._queues[topic].skip(self.clock[topic] + 1, number)
            self.clock[topic] = number

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
