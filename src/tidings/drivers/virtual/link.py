"""One direction of a link between two simulated nodes, and its traffic counts."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from random import Random

from tidings.core.events.event import Publication
from tidings.core.messages import Message, Notify
from tidings.core.wire.codec import BATCH_OVERHEAD_BYTES, encoder_of, size_of
from tidings.drivers.virtual.schedule import Schedule
from tidings.scenarios.file.channels import delay_sampler, loss_sampler
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.schema import ConstantDelay

NS_PER_BYTE_AT_1_MBPS = 8_000


Handlers = dict[type, Callable[[str, Message], None]]


class LinkTraffic:
    """Counts the messages of one class over one link."""

    __slots__ = ("dropped", "encode", "messages", "size_bytes", "size_of")

    def __init__(self, kind: type) -> None:
        self.encode = encoder_of(kind)
        self.size_of = size_of(kind)
        self.messages = 0
        self.size_bytes = 0
        self.dropped = 0


class VirtualLink:
    """Carries messages from `source` to `target`, subject to the faults in effect."""

    __slots__ = (
        "_bandwidth_mbps",
        "_constant_ns",
        "_delays_only",
        "_draw_delay_ns",
        "_draw_loss",
        "_duplicate",
        "_free_at",
        "_plain",
        "_random",
        "_reorder",
        "_schedule",
        "cuts",
        "extra_loss",
        "handlers",
        "notifications",
        "others",
        "publication_bytes",
        "publications",
        "publications_dropped",
        "slowness",
        "source",
        "target",
    )

    def __init__(
        self,
        schedule: Schedule,
        source: str,
        target: str,
        handlers: Handlers,
        spec: LinkSpec,
        random: Random,
    ) -> None:
        self.source = source
        self.target = target
        self.cuts = 0
        self.extra_loss: tuple[float, ...] = ()
        self.slowness = 1.0
        self._schedule = schedule
        self.handlers = handlers
        """A message's handler is looked up when it is sent, and called when it arrives."""
        self.publications = self.publication_bytes = self.publications_dropped = 0
        self.notifications = LinkTraffic(Notify)
        self.others: dict[type, LinkTraffic] = {}
        self._random = random
        self._draw_delay_ns = delay_sampler(spec.delay_ms, random)
        self._draw_loss = loss_sampler(spec.loss, random)
        self._duplicate = spec.duplicate
        self._reorder = spec.reorder
        self._bandwidth_mbps = spec.bandwidth_mbps
        self._free_at = 0
        self._delays_only = not (self._draw_loss or spec.duplicate or spec.reorder or spec.bandwidth_mbps)
        constant = isinstance(spec.delay_ms, ConstantDelay)
        self._constant_ns = self._draw_delay_ns() if constant else None
        self._plain = self._delays_only

    def refresh(self) -> None:
        """Adapt to a change of `cuts`, `extra_loss` or `slowness`; to be called after each."""
        undisturbed = not self.cuts and not self.extra_loss and self.slowness == 1.0
        self._plain = undisturbed and self._delays_only

    def drop(self, message: Message) -> None:
        """Count a message, already counted as sent, as dropped."""
        kind = message.__class__
        if kind is Publication:
            self.publications_dropped += 1
        elif kind is Notify:
            self.notifications.dropped += 1
        else:
            self.others[kind].dropped += 1

    def traffic(self) -> dict[type, LinkTraffic]:
        """Return the traffic so far, by class of message."""
        result = dict(self.others)
        if self.publications:
            carried = result[Publication] = LinkTraffic(Publication)
            carried.messages = self.publications
            carried.size_bytes = self.publication_bytes
            carried.dropped = self.publications_dropped
        if self.notifications.messages:
            result[Notify] = self.notifications
        return result

    def transmit(self, message: Message) -> None:
        """Count the message and schedule its arrival; this is fast if the link only delays.

        Publications are counted in the link itself: one object fewer to touch for most messages.
        """
        kind = message.__class__
        if kind is Publication:
            size_bytes: int = message.size_bytes  # type: ignore[union-attr]
            self.publications += 1
            self.publication_bytes += size_bytes
        elif kind is Notify:
            size_bytes = message.stretch.size_bytes + BATCH_OVERHEAD_BYTES  # type: ignore[union-attr]
            notifications = self.notifications
            notifications.messages += 1
            notifications.size_bytes += size_bytes
        else:
            traffic = self.others.get(kind)
            if traffic is None:
                traffic = self.others[kind] = LinkTraffic(kind)
            encode = traffic.encode
            size_bytes = traffic.size_of(message) if encode is None else len(encode(message))
            traffic.messages += 1
            traffic.size_bytes += size_bytes
        if not self._plain:
            self._transmit_disturbed(message, size_bytes)
            return
        delay_ns = self._constant_ns
        if delay_ns is None:
            delay_ns = self._draw_delay_ns()
        schedule = self._schedule
        at = schedule.now + delay_ns
        bucket = schedule.buckets.get(at)
        if bucket is None:  # `schedule.at`, inlined for speed
            schedule.buckets[at] = [(self.handlers[kind], self.source, message)]
            heappush(schedule.instants, at)
        else:
            bucket.append((self.handlers[kind], self.source, message))

    def _transmit_disturbed(self, message: Message, size_bytes: int) -> None:
        if self.cuts or self._is_lost():
            self.drop(message)
            return
        self._schedule_arrival(message, size_bytes)
        if self._duplicate and self._random.random() < self._duplicate:
            self._schedule_arrival(message, size_bytes)

    def _is_lost(self) -> bool:
        lost = self._draw_loss is not None and self._draw_loss()
        for rate in self.extra_loss:
            lost |= self._random.random() < rate
        return lost

    def _schedule_arrival(self, message: Message, size_bytes: int) -> None:
        delay_ns = self._draw_delay_ns()
        if self._reorder and self._random.random() < self._reorder:
            delay_ns += self._draw_delay_ns()
        leaves_at = self._departs_at(size_bytes) if self._bandwidth_mbps else self._schedule.now
        if self.slowness != 1.0:
            delay_ns = round(delay_ns * self.slowness)
        handler = self.handlers[message.__class__]
        self._schedule.at(leaves_at + delay_ns, handler, self.source, message)

    def _departs_at(self, size_bytes: int) -> int:
        """Return when the last byte leaves over a limited bandwidth: after everything sent before."""
        leaves_at = max(self._schedule.now, self._free_at)
        leaves_at += round(size_bytes * NS_PER_BYTE_AT_1_MBPS / self._bandwidth_mbps)
        self._free_at = leaves_at
        return leaves_at
