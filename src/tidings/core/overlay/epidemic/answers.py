"""Answers an Ask or a Solicit from the cache, within bounds.

A request names ranges, and may name absurd ones: its cost is bounded by the cache and by the answers left in this
round, never by the request. A broker that asks again for what was just sent to it gets no second answer: requests may
be replayed, or cross with the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.blocks import Assembly, in_blocks
from tidings.core.overlay.epidemic.budget import Budget, data_bytes
from tidings.core.overlay.epidemic.cache import Cached
from tidings.core.overlay.epidemic.messages import Carried, Fragment, IdRanges, Lack, Lost, Want
from tidings.core.overlay.epidemic.recovery_state import RecoveryState
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.structures.range_set import RangeSet

MAX_REMEMBERED = 16_384
LOOKS_PER_ANSWER = 3
MAX_RANGES_LEFT = 64
"""The limit per entry of a request that is passed on: it must fit into a message."""

Identity = tuple[str, int, int]


class Answers:
    """Sends what other brokers ask for, within the round's limit and the budget."""

    def __init__(
        self, port: Port, settings: RecoverySettings, recovery_state: RecoveryState, budget: Budget
    ) -> None:
        self._port = port
        self._settings = settings
        self._recovery_state = recovery_state
        self._budget = budget
        self.begin_round()
        self._answered: dict[tuple[str, Identity], int] = {}
        """(broker, event) -> when it was sent"""
        self.answered = self.messages_sent = 0
        self.refused = 0
        """Answers not sent because the round's limit or the budget was used up."""

    def begin_round(self) -> None:
        self._left = self._settings.answers_per_round
        self._looks = LOOKS_PER_ANSWER * self._settings.answers_per_round

    def answer_ids(self, to: str, events: Sequence[IdRanges], by: str) -> int:
        """Send these events, or the blocks of them that are here; return how many events were sent."""
        sent = 0
        for source, incarnation, ranges in events:
            for start, stop in RangeSet((first, last + 1) for first, last in ranges):
                for entry in self._recovery_state.cache.id_range(source, incarnation, start, stop - 1):
                    if not self._may_look():
                        return sent
                    sent += self._send_events(to, entry, by)
                for sequence in range(start, stop):  # incomplete events were advertised, too
                    if not self._may_look():
                        return sent
                    assembly = self._recovery_state.assemblies.get(source, incarnation, sequence)
                    if assembly is not None:
                        sent += self._send_blocks(to, assembly, by, None)
        return sent

    def answer_lost(self, to: str, lost: Sequence[Lost], by: str) -> tuple[int, tuple[Lost, ...]]:
        """Send what is here; return how many events that was, and what is left for other brokers to answer.

        The paper's pseudo-code forwards a digest unchanged, so every holder would answer.
        """
        sent, rest = 0, []
        for origin, pattern, epoch, ranges in lost:
            left = RangeSet((first, last + 1) for first, last in ranges)
            for entry, number in self._found(origin, pattern, epoch, [*iter(left)]):
                if not self._may_look():
                    break
                sent += self._send_events(to, entry, by)
                left.remove(number, number + entry.stretch.count)
            if left:
                unserved = tuple((start, stop - 1) for start, stop in left)[:MAX_RANGES_LEFT]
                rest.append((origin, pattern, epoch, unserved))
        return sent, tuple(rest)

    def answer_partial(self, to: str, wants: Sequence[Want], by: str) -> tuple[int, tuple[Want, ...]]:
        """Send missing blocks; return how many events they are of, and what is left for other brokers to answer."""
        sent, rest = 0, []
        for want in wants:
            source, incarnation, sequence, lacks = want
            if not self._may_look():
                rest.append(want)
                continue
            entry = self._recovery_state.cache.get(source, incarnation, sequence)
            if entry is not None:
                sent += self._send_events(to, entry, by, lacks)
                continue
            assembly = self._recovery_state.assemblies.get(source, incarnation, sequence)
            if assembly is not None:
                sent += self._send_blocks(to, assembly, by, lacks)
            rest.append(want)
        return sent, tuple(rest)

    def _may_look(self) -> bool:
        """Limit the lookups and answers per round, because a request may name anything."""
        if self._left <= 0 or self._looks <= 0:
            self.refused += 1
            return False
        self._looks -= 1
        return True

    def _found(
        self, origin: str, pattern: bytes, epoch: int, ranges: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Cached, int]]:
        for start, stop in ranges:
            for entry in self._recovery_state.cache.find_range(origin, pattern, epoch, start, stop - 1):
                for listed, _, number in entry.numbers:
                    if listed == pattern:
                        yield entry, number

    def _send_events(self, to: str, entry: Cached, by: str, lacks: Sequence[Lack] | None = None) -> int:
        """Send the events of the entry that were not just sent; return how many that are."""
        source, incarnation, first = entry.identity
        unsent = RangeSet()
        for sequence in range(first, first + entry.stretch.count):
            if not self._just_sent(to, (source, incarnation, sequence)):
                unsent.add(sequence)
        sent = 0
        for start, stop in unsent:
            part = entry.cut(start, min(stop, start + max(self._left, 1)) - 1)
            if self._budget.allows(part.stretch.size_bytes, lacks):
                sent += self._send(to, part.identity, self.messages(part, by, lacks), part.stretch.count)
        return sent

    def _send_blocks(self, to: str, assembly: Assembly, by: str, lacks: Sequence[Lack] | None) -> int:
        if self._just_sent(to, assembly.id):
            return 0
        redundancy = self._settings.redundancy
        messages = assembly.fragments(self._port.random, redundancy=redundancy, lacks=lacks, route=(), by=by)
        return self._send(to, assembly.id, messages)

    def _just_sent(self, to: str, identity: Identity) -> bool:
        sent_at = self._answered.get((to, identity))
        return sent_at is not None and self._port.now - sent_at < self._settings.grace_ns

    def _send(self, to: str, first: Identity, messages: Sequence[Carried | Fragment], count: int = 1) -> int:
        if not messages:
            return 0
        if not self._budget.spend(sum(map(data_bytes, messages))):
            self.refused += 1
            return 0
        source, incarnation, sequence = first
        for place in range(count):
            self._remember((to, (source, incarnation, sequence + place)))
        self._left -= count
        self.answered += count
        self.messages_sent += len(messages)
        for message in messages:
            self._port.send(to, message)
        return count

    def _remember(self, key: tuple[str, Identity]) -> None:
        if len(self._answered) >= MAX_REMEMBERED:
            del self._answered[next(iter(self._answered))]
        self._answered.pop(key, None)
        self._answered[key] = self._port.now

    def pushed_block(self, assembly: Assembly, message: Fragment, by: str) -> Fragment:
        """Return what to push when a block comes: the block, or with coding a new combination of the blocks here."""
        if message.coefficients or self._settings.redundancy:
            fresh = assembly.recoded(message.generation, self._port.random, route=(), by=by)
            if fresh is not None:
                return fresh
        return replace(message, route=(), by=by)

    def messages(
        self, entry: Cached, by: str, lacks: Sequence[Lack] | None = None
    ) -> Sequence[Carried | Fragment]:
        """Return the messages that carry the entry: whole if it fits into a datagram, otherwise in blocks."""
        settings = self._settings
        carried = Carried(entry.origin, entry.numbers, (), by, entry.stretch)
        whole = in_blocks(carried, settings.block_bytes, settings.datagram_bytes)
        if whole is None:
            return (carried,)
        return whole.fragments(
            self._port.random, redundancy=settings.redundancy, lacks=lacks, route=(), by=by
        )
