"""Which events a broker's own subscribers should have and have not: the paper's LostBuffer, bounded.

Paper epidemic, section 4.2: an event whose number is greater than the one expected for its source and pattern
tells that those between are lost. A *stream* is (origin, pattern, epoch). Of a stream only the highest number
that is accounted for is kept: everything up to it has come, is in the list of losses, or was given up.

Where we differ from the paper:

* Only what is counted after the subscription is missed: a stream begins at a baseline, given by `watch` or, for
  an origin or an epoch never heard of, guessed from its first number (`baseline_before`).
* An epoch that was followed still is when a newer one begins: an origin that crashed counts anew, and its last
  events before that may be lost to us and with others. One that is over when it is first heard of is not.
* Loss at the tail is noticed by the origin's high-water messages.
* A loss leaves the list when the event comes, when nobody here subscribes any longer, when it is too old, was
  asked for too often, or when there are too many; the last three count as given up.
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
    """Where a stream begins that is heard of for the first time at `number`.

    A low number says that the stream is young, and that the numbers below it were on their way to us, too. A
    high one says that we came late; what was before is not ours.
    """
    return 0 if number <= blind else number - 1


class AnswerTime:
    """How long answers take, and so how long one is waited for: a few times as long, at most `longest_ns` at first."""

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        self._smoothed_ns: float | None = None

    def took(self, elapsed_ns: int) -> None:
        if self._smoothed_ns is None:
            self._smoothed_ns = elapsed_ns
        else:
            self._smoothed_ns += (elapsed_ns - self._smoothed_ns) / SMOOTHING

    def pause_ns(self, attempts: int) -> int:
        """The pause before the next attempt after so many: doubling, bounded."""
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
        """False while it is nothing but a baseline."""

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
    """The losses of the patterns that are watched. Calls must not go back in time.

    At most `max_lost` losses are listed, the newest; at most `max_streams` streams are followed, those heard of
    last. A loss is worth asking for after `grace_ns`, since it may be late only, and is given up when it is older
    than `max_age_ns` or was asked for more than `max_attempts` times.
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
        """Every stream, the one not heard of for the longest time first."""
        self._lost: OrderedDict[tuple[StreamKey, int], _Loss] = OrderedDict()
        """In the order in which they were noticed."""
        self.given_up = 0
        self.unlisted = 0
        """Numbers so far below their stream's newest that they were never listed."""

    @property
    def lost(self) -> int:
        """How many losses are listed."""
        return len(self._lost)

    def watches(self, pattern: bytes) -> bool:
        return pattern in self._watched

    def watch(self, pattern: bytes, baselines: Iterable[tuple[str, int, int]]) -> None:
        """Somebody here subscribes: what (origin, epoch, number) leaves above the number is ours.

        For a pattern that is watched already, baselines of origins not heard of yet are added or raised.
        """
        self._watched.setdefault(pattern, {})
        for origin, epoch, number in baselines:
            newest = self._newest(origin, pattern)
            if newest is None or (not newest.heard and epoch > newest.epoch):
                self._follow((origin, pattern, epoch), number, heard=False)
            elif not newest.heard and epoch == newest.epoch:
                newest.high = max(newest.high, number)

    def unwatch(self, pattern: bytes) -> None:
        """Nobody here subscribes any longer: nothing of the pattern is missed."""
        for epochs in self._watched.pop(pattern, {}).values():
            for stream in epochs.values():
                del self._recent[stream]
        for entry in [entry for entry in self._lost if entry[0][1] == pattern]:
            del self._lost[entry]

    def arrived(self, origin: str, numbers: PatternNumbers, now: int, count: int = 1) -> None:
        """So many events, the first of which has these numbers, are here, by the tree or recovered."""
        for pattern, epoch, first in numbers:
            if pattern in self._watched:
                key = (origin, pattern, epoch)
                last = first + count - 1
                for number in range(first, last + 1) if self._lost else ():
                    self._strike_off(key, number, now)
                self._account(key, last, first - 1, now)

    def _strike_off(self, key: StreamKey, number: int, now: int) -> None:
        loss = self._lost.pop((key, number), None)
        if loss is not None and loss.attempts == 1:  # else it may be an earlier attempt's answer
            self._answer_time.took(now - loss.asked_at)

    def high_water(self, origin: str, numbers: PatternNumbers, now: int) -> None:
        """The origin has counted up to these numbers: whatever has not come by now is lost."""
        for pattern, epoch, number in numbers:
            if pattern in self._watched:
                self._account((origin, pattern, epoch), number, number, now)

    def due(self, now: int) -> Mapping[StreamKey, RangeSet]:
        """The numbers that are lost since the grace or longer, streams with the oldest losses first."""
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
        """Numbers that were due, as (first, last), are asked for once more; for the next time they wait longer."""
        for first, last in ranges:
            for number in range(first, last + 1):
                loss = self._lost.get((key, number))
                if loss is None:
                    continue
                if now < loss.next_at:
                    continue  # one question to several is one attempt
                loss.asked_at = now
                loss.next_at = now + self._answer_time.pause_ns(loss.attempts)
                loss.attempts += 1
                if loss.attempts > self._max_attempts:
                    del self._lost[key, number]
                    self.given_up += 1

    def expire(self, now: int) -> int:
        """Give up what was lost too long ago; returns how many that were."""
        before = self.given_up
        while self._lost and now - next(iter(self._lost.values())).noticed_at > self._max_age_ns:
            self._give_up_oldest()
        return self.given_up - before

    def _account(self, key: StreamKey, high: int, last_missing: int, now: int) -> None:
        """The stream has reached `high`; its numbers up to `last_missing` that nobody accounted for are lost."""
        stream = self._heard(key, min(high, last_missing + 1))
        if stream is not None and high > stream.high:
            self._lose(key, stream.high + 1, last_missing, now)
            stream.high = high

    def _heard(self, key: StreamKey, number: int) -> _Stream | None:
        """The stream, begun if it is new; None if its epoch was over before it was heard of."""
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
        """Of an epoch later than all that are followed."""
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
        """List `first` to `last`, or as many of the newest as can be listed: the cost does not grow with the gap."""
        listed_from = max(first, last + 1 - self._max_lost)
        self.unlisted += listed_from - first
        for number in range(listed_from, last + 1):
            # A stream that was forgotten and begins again may find its old losses here; they keep their age.
            if (key, number) not in self._lost:
                self._lost[key, number] = _Loss(now)
        while len(self._lost) > self._max_lost:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        self._lost.popitem(last=False)
        self.given_up += 1
