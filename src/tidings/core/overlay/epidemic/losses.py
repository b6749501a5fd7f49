"""Detects events that this broker's subscribers should have but do not: the paper's LostBuffer, bounded.

Paper epidemic, section 4.2: an event whose number is greater than the one expected for its source and pattern reveals
that the numbers between are lost. A *stream* is (origin, pattern, epoch). For each stream we keep only the highest
number accounted for: everything up to it has come, is listed as lost, or was given up.

Where we differ from the paper:

* Only events counted after the subscription can be missed: a stream starts at a baseline, given by `watch` or, for an
  unknown origin or epoch, guessed from its first number (`baseline_before`).
* We keep following an epoch when a newer one starts: an origin that crashed counts from 0 again, and its last events
  before the crash may be lost here but held by others. We do not follow an epoch that is over when we first hear of it.
* High-water messages of the origin reveal a loss at the tail.
* A loss leaves the list when the event comes, when nobody here subscribes any longer, when it is too old, when it was
  requested too often, or when there are too many; the last three count as given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from tidings.core.overlay.epidemic.messages import PatternNumbers, Range
from tidings.core.structures.range_set import RangeSet

BLIND = 64
MAX_DOUBLINGS = 2
PATIENCE = 3
SMOOTHING = 8

StreamKey = tuple[str, bytes, int]
"""(origin, pattern, epoch)"""


def baseline_before(number: int, blind: int) -> int:
    """Return the baseline of a stream that we first hear of at `number`.

    A low number means that the stream is young, so the numbers below it were sent to us, too. A high one means that we
    came late, so earlier events are not for us.
    """
    return 0 if number <= blind else number - 1


class AnswerTime:
    """Measures how long answers take. We first wait a few times as long, but at most `longest_ns`, then double it."""

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        self._smoothed_ns: float | None = None

    def took(self, elapsed_ns: int) -> None:
        if self._smoothed_ns is None:
            self._smoothed_ns = elapsed_ns
        else:
            self._smoothed_ns += (elapsed_ns - self._smoothed_ns) / SMOOTHING

    def pause_ns(self, attempts: int) -> int:
        """Return the pause before the next attempt: it doubles with each attempt, up to a bound."""
        first_ns = self._longest_ns
        if self._smoothed_ns is not None:
            first_ns = min(round(PATIENCE * self._smoothed_ns), first_ns)
        return first_ns << min(attempts, MAX_DOUBLINGS)


class _Stream:
    __slots__ = ("heard", "high", "key")

    def __init__(self, key: StreamKey, high: int, *, heard: bool) -> None:
        self.key = key
        self.high = high
        """All numbers up to this one are accounted for."""
        self.heard = heard
        """False while we have only a baseline."""

    @property
    def epoch(self) -> int:
        return self.key[2]


class _Loss:
    __slots__ = ("asked_at", "attempts", "next_at", "noticed_at")

    def __init__(self, noticed_at: int) -> None:
        self.noticed_at = noticed_at
        self.attempts = 0
        self.asked_at = self.next_at = 0


class LossDetector:
    """Lists the losses of watched patterns. `now` must not decrease from call to call.

    It lists at most `max_lost` losses, the newest, and follows at most `max_streams` streams, the most recently heard.
    A loss is worth a request only after `grace_ns`, since the event may just be late. It is given up when it is older
    than `max_age_ns` or was requested more than `max_attempts` times.
    """

    def __init__(
        self,
        *,
        grace_ns: int,
        max_lost: int,
        max_streams: int,
        max_age_ns: int,
        max_attempts: int,
        answer_time: AnswerTime | None = None,
        blind: int = BLIND,
    ) -> None:
        if max_lost < 1 or max_streams < 1:
            raise ValueError(f"max_lost {max_lost} and max_streams {max_streams} must be positive")
        self._grace_ns = grace_ns
        self._max_lost = max_lost
        self._max_streams = max_streams
        self._max_age_ns = max_age_ns
        self._max_attempts = max_attempts
        self._answer_time = answer_time or AnswerTime(0)
        self._blind = blind
        self._watched: dict[bytes, dict[str, dict[int, _Stream]]] = {}
        """Pattern -> origin -> epoch -> stream, the newest epoch last."""
        self._recent: OrderedDict[_Stream, None] = OrderedDict()
        """All streams, the longest silent first."""
        self._lost: OrderedDict[tuple[StreamKey, int], _Loss] = OrderedDict()
        """In the order in which we noticed them."""
        self.given_up = 0
        self.unlisted = 0
        """Numbers so far below their stream's newest that they were never listed."""

    @property
    def lost(self) -> int:
        """The number of listed losses."""
        return len(self._lost)

    def watches(self, pattern: bytes) -> bool:
        return pattern in self._watched

    def watch(self, pattern: bytes, baselines: Iterable[tuple[str, int, int]]) -> None:
        """Watch a pattern that a client here subscribes to: numbers above each (origin, epoch, number) are for us.

        If the pattern is already watched, add or raise the baselines of origins not heard from yet.
        """
        self._watched.setdefault(pattern, {})
        for origin, epoch, number in baselines:
            newest = self._newest(origin, pattern)
            if newest is None or (not newest.heard and epoch > newest.epoch):
                self._follow((origin, pattern, epoch), number, heard=False)
            elif not newest.heard and epoch == newest.epoch:
                newest.high = max(newest.high, number)

    def unwatch(self, pattern: bytes) -> None:
        """Stop watching a pattern, and drop its losses, because nobody here subscribes any longer."""
        for epochs in self._watched.pop(pattern, {}).values():
            for stream in epochs.values():
                del self._recent[stream]
        for entry in [entry for entry in self._lost if entry[0][1] == pattern]:
            del self._lost[entry]

    def arrived(self, origin: str, numbers: PatternNumbers, now: int, count: int = 1) -> None:
        """Note `count` events that arrived, by the tree or recovered; the first one has these numbers."""
        for pattern, epoch, first in numbers:
            if pattern in self._watched:
                key = (origin, pattern, epoch)
                last = first + count - 1
                for number in range(first, last + 1) if self._lost else ():
                    self._strike_off(key, number, now)
                self._account(key, last, first - 1, now)

    def _strike_off(self, key: StreamKey, number: int, now: int) -> None:
        loss = self._lost.pop((key, number), None)
        if loss is not None and loss.attempts == 1:  # otherwise it may answer an earlier attempt
            self._answer_time.took(now - loss.asked_at)

    def high_water(self, origin: str, numbers: PatternNumbers, now: int) -> None:
        """Note that the origin has counted up to these numbers: whatever has not come by now is lost."""
        for pattern, epoch, number in numbers:
            if pattern in self._watched:
                self._account((origin, pattern, epoch), number, number, now)

    def due(self, now: int) -> Mapping[StreamKey, RangeSet]:
        """Return the numbers to ask for now: lost for at least the grace period; oldest losses first."""
        due: dict[StreamKey, RangeSet] = {}
        for (key, number), loss in self._lost.items():
            if now - loss.noticed_at < self._grace_ns:
                break
            if now < loss.next_at:
                continue
            ranges = due.get(key)
            if ranges is None:
                ranges = due[key] = RangeSet()
            ranges.add(number)
        return due

    def attempted(self, key: StreamKey, ranges: Sequence[Range], now: int) -> None:
        """Note one more request for numbers that were due, as (first, last); the next one waits longer."""
        for first, last in ranges:
            for number in range(first, last + 1):
                loss = self._lost.get((key, number))
                if loss is None:
                    continue
                if now < loss.next_at:
                    continue  # a request to several brokers is one attempt
                loss.asked_at = now
                loss.next_at = now + self._answer_time.pause_ns(loss.attempts)
                loss.attempts += 1
                if loss.attempts > self._max_attempts:
                    del self._lost[key, number]
                    self.given_up += 1

    def expire(self, now: int) -> int:
        """Give up losses that are too old; return how many."""
        before = self.given_up
        while self._lost and now - next(iter(self._lost.values())).noticed_at > self._max_age_ns:
            self._give_up_oldest()
        return self.given_up - before

    def _account(self, key: StreamKey, high: int, last_missing: int, now: int) -> None:
        """Raise the stream to `high`; list its unaccounted numbers up to `last_missing` as lost."""
        stream = self._heard(key, min(high, last_missing + 1))
        if stream is not None and high > stream.high:
            self._lose(key, stream.high + 1, last_missing, now)
            stream.high = high

    def _heard(self, key: StreamKey, number: int) -> _Stream | None:
        """Return the stream, started if it is new; None if its epoch was over before we heard of it."""
        origin, pattern, epoch = key
        stream = self._watched[pattern].get(origin, {}).get(epoch)
        if stream is None:
            newest = self._newest(origin, pattern)
            if newest is not None and epoch < newest.epoch:
                return None
            return self._follow(key, baseline_before(number, self._blind), heard=True)
        stream.heard = True
        self._recent.move_to_end(stream)
        return stream

    def _newest(self, origin: str, pattern: bytes) -> _Stream | None:
        epochs = self._watched[pattern].get(origin)
        return None if epochs is None else epochs[next(reversed(epochs))]

    def _follow(self, key: StreamKey, high: int, *, heard: bool) -> _Stream:
        """Start following a stream, whose epoch must be later than all followed ones."""
        if len(self._recent) >= self._max_streams:
            self._forget_oldest()
        stream = _Stream(key, high, heard=heard)
        self._recent[stream] = None
        origin, pattern, epoch = key
        self._watched[pattern].setdefault(origin, {})[epoch] = stream
        return stream

    def _forget_oldest(self) -> None:
        forgotten, _ = self._recent.popitem(last=False)
        origin, pattern, epoch = forgotten.key
        epochs = self._watched[pattern][origin]
        del epochs[epoch]
        if not epochs:
            del self._watched[pattern][origin]

    def _lose(self, key: StreamKey, first: int, last: int, now: int) -> None:
        """List `first` to `last`, or only as many of the newest as fit: the cost does not grow with the gap."""
        listed_from = max(first, last + 1 - self._max_lost)
        self.unlisted += listed_from - first
        for number in range(listed_from, last + 1):
            # A stream that was forgotten and starts again may find its old losses here; they keep their age.
            if (key, number) not in self._lost:
                self._lost[key, number] = _Loss(now)
        while len(self._lost) > self._max_lost:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        self._lost.popitem(last=False)
        self.given_up += 1
