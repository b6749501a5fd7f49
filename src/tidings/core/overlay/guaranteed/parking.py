"""Parking: what a guaranteed broker does with publications that wait only for somebody unreachable.

A *parked* publication holds up nobody: the publisher's broker has it on disk and confirms it to the publisher. Parked
publications are bounded. Beyond the bound a gap takes their place, and the subscribers are told. On a full disk nothing
is given up; publishers are held up until there is room again.
"""

from __future__ import annotations

from tidings.core.kernel import Port, TimerName
from tidings.core.overlay.guaranteed.confirmations import Confirmations
from tidings.core.overlay.guaranteed.hops import Hops, Senders
from tidings.core.overlay.guaranteed.messages import Forward, ForwardGap
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queue, Queued
from tidings.core.overlay.guaranteed.sessions import Sessions
from tidings.core.overlay.guaranteed.spill import Spill, SpillLimits
from tidings.core.overlay.guaranteed.subscription_log import SubscriptionLog

SWEEP_NS = 250_000_000
SLOW_NS = 1_000_000_000
"""A client that has not taken a notification for this long counts as unreachable."""
PROMPT_NS = 20_000_000
"""The same, for a client that holds up a sender with few publications in flight, which may wait for just these."""
FEW = 16
SOON_NS = 2_000_000
SOON_PER_WAITING_NS = 4_000
"""An early sweep looks at everything that waits, so it is delayed in proportion to the number of entries."""
MEMORY_BYTES = 16 * 1024 * 1024
"""Beyond this, parked publications of other brokers' clients go to disk; those of our own clients always do."""


class Parking:
    """Parks entries of the queue. The owner calls `sweep` when the timer fires."""

    def __init__(
        self,
        port: Port,
        timer: TimerName,
        *,
        sessions: Sessions,
        log: SubscriptionLog,
        queue: Queue,
        hops: Hops,
        senders: Senders,
        confirmations: Confirmations,
        spill: Spill,
        limits: SpillLimits,
    ) -> None:
        self.gaps = 0
        """How many publications were given up."""
        self._port = port
        self._timer = timer
        self._sessions = sessions
        self._log = log
        self._queue = queue
        self._hops = hops
        self._senders = senders
        self._confirmations = confirmations
        self._spill = spill
        self._limits = limits
        self._memory_bytes = 0
        self._last_gaps: dict[Flow, Queued] = {}
        self._away: dict[Hop, int] = {}
        """Who is unreachable, with the serial of the last entry parked for them."""
        self._sweep_at: int | None = None
        self._sweep_all = False

    # --- Entries that come and go

    def placed(self, queued: Queued) -> None:
        """The entry now waits. Schedule a sweep, so that its publisher does not wait for what may be parked."""
        now = queued.taken_at
        if self._sweep_at is None:  # else one is already due by then
            self._sweep_by(now + SWEEP_NS)
        if self._queue.parked_count and self._is_stuck(queued, now):
            self._sweep_soon(now, SOON_NS)
        elif self._sweep_all and self._sweep_at is not None and self._sweep_at <= now + PROMPT_NS:
            pass  # it will be looked at in time
        elif self._is_waited_for(queued):
            self._sweep_soon(now, PROMPT_NS)

    def finished(self, queued: Queued) -> None:
        """Everybody has the entry."""
        if self._last_gaps and self._last_gaps.get(queued.flow) is queued:
            del self._last_gaps[queued.flow]
        if queued.parked and queued.message is not None:
            self._memory_bytes -= queued.size_bytes
        if queued.row is not None:
            self._spill.forget(queued)
            self.set_sweep()

    # --- Sweeping

    def set_sweep(self) -> None:
        self._sweep_by(self._port.now + SWEEP_NS)

    def sweep_soon(self) -> None:
        """Sweep early: even recent entries may be parked."""
        self._sweep_soon(self._port.now, SOON_NS)

    def _sweep_soon(self, now: int, after_ns: int) -> None:
        self._sweep_all = True
        if self._sweep_at is None or now + after_ns < self._sweep_at:  # else one is already due by then
            self._sweep_by(now + min(after_ns + SOON_PER_WAITING_NS * self._queue.unparked_count, SWEEP_NS))

    def _sweep_by(self, at: int) -> None:
        if self._sweep_at is None or at < self._sweep_at:
            self._sweep_at = at
            self._port.set_timer(self._timer, at)

    def sweep(self) -> list[Queued]:
        """Park what waits only for unreachable hops, and delete from disk what is done. Return the new gaps, which the
        caller must send."""
        self._sweep_at = None
        now = self._port.now
        newest = now if self._sweep_all else now - SWEEP_NS
        self._sweep_all = look_again = False
        if self._away:
            self._away = {name: last for name, last in self._away.items() if last in self._queue}
        stuck: list[Queued] = []
        blocked: set[Flow] = set()
        for queued in self._queue.unparked():
            if queued.taken_at > newest:
                break
            # In the order of each flow: a publisher's client forgets what is confirmed, and resends the rest.
            if queued.flow not in blocked and self._is_stuck(queued, now):
                stuck.append(queued)
                continue
            blocked.add(queued.flow)
            if not look_again and now - queued.taken_at < PROMPT_NS:
                look_again = self._is_waited_for(queued)
        if look_again:
            self._sweep_soon(now, PROMPT_NS)
        gaps = self._park(stuck) if stuck else []
        self._spill.sweep()
        if self._queue.unparked_count or self._spill.is_outdated:
            self.set_sweep()
        return gaps

    def _is_stuck(self, queued: Queued, now: int) -> bool:
        waited_ns = now - queued.taken_at
        for name, hop in queued.pending.items():
            if hop is None:
                if not isinstance(name, LocalClient):
                    frontier = self._sessions.frontier(self._log.labels[name])
                    if frontier is not None:
                        return False  # the session will be ready soon
                if waited_ns < SWEEP_NS and self._away.get(name) not in self._queue:
                    return False  # it may return at once
            elif isinstance(hop, LocalClient):
                is_prompt = waited_ns < PROMPT_NS or (waited_ns < SLOW_NS and not self._is_waited_for(queued))
                if is_prompt and not self._hops.is_behind(hop):
                    return False
            elif hop not in queued.parked_beyond:
                return False
        return True

    def _is_waited_for(self, queued: Queued) -> bool:
        """Return True if its sender may be waiting for it: it has few in flight, and clients of ours want this one."""
        return bool(queued.local) and self._senders.waiting(queued) <= FEW

    # --- Parking

    def _park(self, stuck: list[Queued]) -> list[Queued]:
        """Park these. Return the gaps in the place of those for which there is no room."""
        room = max(self._limits.entries - self._queue.parked_count, 0)
        kept, given_up = stuck[:room], stuck[room:]
        to_disk: list[Queued] = []
        room_bytes = self._limits.size_bytes - self._spill.size_bytes
        for position, queued in enumerate(kept):
            if not isinstance(queued.message, Forward) or not self._belongs_on_disk(queued):
                continue
            room_bytes -= queued.size_bytes
            if room_bytes < 0:
                given_up = kept[position:] + given_up
                kept = kept[:position]
                break
            to_disk.append(queued)
        if to_disk and not self._spill.keep(to_disk):
            first = to_disk[0].serial
            kept = [queued for queued in kept if queued.serial < first]
            given_up = []
        for queued in kept:
            self._set_parked(queued)
        return [gap for queued in given_up if (gap := self._give_up(queued)) is not None]

    def _belongs_on_disk(self, queued: Queued) -> bool:
        return queued.flow[0] == self._port.node or self._memory_bytes > MEMORY_BYTES

    def _set_parked(self, queued: Queued) -> None:
        self._queue.park(queued)
        self._away |= {name: queued.serial for name, hop in queued.pending.items() if hop is None}
        self._senders.go_on(queued)
        if queued.message is not None:
            self._memory_bytes += queued.size_bytes
        self._confirmations.parked(queued, queued.senders)

    # --- Beyond the bounds

    def _give_up(self, queued: Queued) -> Queued | None:
        """Replace the entry by a gap, for lack of room. Extend the flow's last gap if possible and return None; else
        return the new gap."""
        subscriptions = self._unserved(queued)
        count, senders = queued.count, queued.senders
        self.gaps += count
        self._hops.take_back(queued)
        gap = self._last_gaps.get(queued.flow)
        if gap is not None and self._extends(gap, queued, subscriptions):
            self._queue.remove(queued)
            self._senders.go_on(queued)
            made = None
        else:
            gap = made = self._last_gaps[queued.flow] = queued
            gap.size_bytes = 0
            self._senders.go_on(queued)
            gap.senders = []
        origin, source, incarnation = gap.flow
        message = ForwardGap(origin, gap.label, source, incarnation, gap.first, queued.last, subscriptions)
        self._queue.make_gap(gap, message)
        if made is not None:
            self._set_parked(made)
        for sender, number in senders:
            self._confirmations.passed(sender, queued.flow, number, count)
        return made

    def _extends(self, gap: Queued, queued: Queued, subscriptions: tuple[str, ...]) -> bool:
        return (
            gap.serial in self._queue
            and isinstance(gap.message, ForwardGap)
            and gap.message.subscriptions == subscriptions
            and gap.local == queued.local
            and gap.pending.keys() == queued.pending.keys()
            and not any(gap.hops.values())
        )

    def _unserved(self, queued: Queued) -> tuple[str, ...]:
        """Return the ids of other brokers' records that it is pending for."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            return message.subscriptions
        return tuple(
            entry.id
            for to in self._log.route(message.stretch, queued.label)
            if to.broker in queued.pending
            for entry in to.entries
            if entry.position <= queued.log_position and entry.id not in queued.excluded
        )
