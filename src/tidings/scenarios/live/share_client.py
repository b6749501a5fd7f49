"""Runs durable subscribers and members of groups of a live scenario over real sockets.

As everywhere here, a report leaves before the network learns of its fact. So even after kill -9, no event is
acknowledged without its report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from tidings.core.client.dead_letter import dead_letter
from tidings.core.client.group_member import GroupMember
from tidings.core.client.share_holder import ShareHolder
from tidings.core.events.event import source_text
from tidings.core.events.payload import typed_payload
from tidings.core.events.subscription import Order
from tidings.core.facts import Misbehaviour, PublicationConfirmed
from tidings.scenarios.actor import Window
from tidings.scenarios.file.channels import delay_sampler
from tidings.scenarios.file.shares import PlannedShare
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.client import follow
from tidings.scenarios.live.facts import SubscriberWork
from tidings.scenarios.live.link import ClientRole, LiveLink, report
from tidings.scenarios.share_actor import HandedEvent, ShareActor
from tidings.scenarios.trace.shares import NEW

log = logging.getLogger("tidings.cli")


class LiveShareSubscriber(ClientRole):
    """Hosts the actor of a durable subscriber or of a member of a group."""

    def __init__(self, work: SubscriberWork, share: PlannedShare, link: LiveLink, seed: int) -> None:
        super().__init__(work.name, link)
        self._work = work
        self._share = share
        self._position = work.position
        self._source = source_text(work.name, work.made)
        work_ns = delay_sampler(share.work_ms, Random(f"{seed}:work:{work.name}:{work.made}"))
        order = Order(work.order)
        self.actor = ShareActor(self, work.name, work.filter, order, share, work_ns, made=work.made)

    async def run(self) -> None:
        await follow(self, self._work, self.actor.change)

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed) and self._share.dead_letter is not None:
            report(words.Confirmed(self._source, fact.first, fact.last, self.go.now))
        self.actor.on_fact(fact)

    # --- The actor's host

    @property
    def now(self) -> int:
        return self.go.wall_ns + self.go.now

    @property
    def shares(self) -> ShareHolder | GroupMember:
        return self.link.connection.client.shares

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_ns / NS_PER_S, action)

    def _since_start(self, at: int) -> int:
        return at - self.go.wall_ns

    def requested(self, window: Window) -> None:
        subscription, at_ns = window.subscription, self._since_start(window.requested_at)
        start = None if self._work.start == NEW else self._work.start
        report(words.Requested(self.name, subscription.id, subscription.topics, at_ns, start))

    def joined(self, window: Window, life: str) -> None:
        report(words.JoinedReport(self.name, window.subscription.id, life))

    def accepted(self, window: Window) -> None:
        at_ns = self._since_start(window.accepted_at)
        report(words.Accepted(self.name, window.subscription.id, at_ns))

    def detached(self, window: Window) -> None:
        at_ns = self._since_start(window.cancelled_at)
        report(words.DetachedReport(self.name, window.subscription.id, at_ns))

    def taken(self, window: Window, taken: HandedEvent) -> bool:
        publication, now = taken.publication, self.go.now
        source = source_text(publication.source, publication.incarnation)
        event = (self.name, window.subscription.id, source, publication.sequence)
        expires_at = publication.expires_at
        if expires_at is not None and now > self._since_start(expires_at):
            report(words.ExpiredReport(*event, self._since_start(publication.published_at)))
            return False
        taken.position, self._position = self._position, self._position + 1
        report(words.HandedReport(*event, now, taken.attempt, taken.out_of_order))
        return True

    def acknowledged(self, taken: HandedEvent) -> None:
        report(words.AcknowledgedReport(self.name, taken.position, self.go.now))

    def answered(self, taken: HandedEvent, accepted: bool) -> None:
        report(words.AnsweredReport(self.name, taken.position, accepted))

    def bury(self, taken: HandedEvent) -> int:
        share, event = self._share, taken.publication.event()
        assert share.dead_letter is not None and share.max_deliveries is not None
        attributes = dict(dead_letter(event, share.name, share.max_deliveries))
        payload, now, sequence = (
            typed_payload(event.payload_item),
            self.go.now,
            self.link.session.next_sequence,
        )
        report(
            words.PublishedReport(
                self._source, sequence, share.dead_letter, attributes, len(payload.data), now
            )
        )
        return self.link.application.publish(share.dead_letter, attributes, payload, self.now)

    def refused(self, reason: str) -> None:
        log.warning("%s: %s", self.name, reason)

    def accused(self, fact: Misbehaviour) -> None:
        log.warning("%s: %s: %s", self.name, fact.peer, fact.what)
