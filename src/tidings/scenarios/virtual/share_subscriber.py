"""Runs durable subscribers and members of groups in a simulated run."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidings.core.client.dead_letter import dead_letter
from tidings.core.client.group_member import GroupMember
from tidings.core.client.share_holder import ShareHolder
from tidings.core.events.event import Publication, source_text
from tidings.core.events.payload import typed_payload
from tidings.core.events.subscription import Order
from tidings.core.facts import Misbehaviour, PublicationConfirmed
from tidings.scenarios.actor import Window
from tidings.scenarios.file.channels import delay_sampler
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.times import nanoseconds
from tidings.scenarios.share_actor import HandedEvent, ShareActor
from tidings.scenarios.share_lives import Row
from tidings.scenarios.trace.shares import NEW
from tidings.scenarios.trace.writer import TraceWriter
from tidings.scenarios.virtual.client_node import SimulatedClient
from tidings.scenarios.virtual.sequencers import RunOrdering
from tidings.scenarios.virtual.share_tally import ShareTally
from tidings.scenarios.virtual.tally import Tally


class SimulatedShareSubscriber:
    """Hosts the actor of a durable subscriber or of a member of a group."""

    def __init__(
        self,
        client: SimulatedClient,
        plan: PlannedSubscriber,
        writer: TraceWriter,
        tally: Tally,
        counts: ShareTally,
        ordering: RunOrdering | None,
        seed: int,
    ) -> None:
        assert plan.share is not None, "a plain subscriber is a SimulatedSubscriber"
        self.failure: str | None = None
        self.client = client
        self.refusal = ""
        """Why its broker refused it last; empty once it is attached."""
        self._plan = plan
        self._share = plan.share
        self._name = plan.name
        self._writer = writer
        self._tally = tally
        self._counts = counts
        self._ordering = ordering
        self._node = client.node
        self._schedule = client.schedule
        self._position = 0
        work_ns = delay_sampler(plan.share.work_ms, Random(f"{seed}:work:{plan.name}"))
        self.actor = ShareActor(self, plan.name, plan.filter, Order(plan.order), plan.share, work_ns)
        client.subscriber = self._on_fact
        self._wanted: tuple[str, ...] | None = None
        """What the timeline says by now, also to a client that stands still and may crash before it acts."""
        client.on_start.append(self._back)
        client.on_crash.append(self.actor.crashed)
        for step in plan.timeline:
            self._schedule.at(nanoseconds(step.at_s), self._change, step.topics)

    def _change(self, topics: tuple[str, ...] | None, _second: object) -> None:
        self._wanted = topics
        if not self._node.holds(self._follow, None):
            self.actor.change(topics)

    def _follow(self, _first: object, _second: object) -> None:
        self.actor.change(self._wanted)

    def _back(self) -> None:
        if self._wanted is not None:
            self.actor.change(self._wanted)
        else:
            self.actor.forget()

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed):  # of dead letters
            source = source_text(self._name, self.client.session.incarnation)
            for sequence in range(fact.first, fact.last + 1):
                self._writer.confirmed(f"{source}:{sequence}", self.now)
        self.actor.on_fact(fact)

    def take_runs(self) -> None:
        """Do nothing: what its broker gives out arrives in runs."""

    @property
    def waiting(self) -> str:
        """Describes what it waits for or is not done with; empty if nothing."""
        return f"{self._name} is not attached: {self.refusal}" if self.refusal else self.actor.waiting

    # --- The actor's host

    @property
    def now(self) -> int:
        return self._schedule.now

    @property
    def shares(self) -> ShareHolder | GroupMember | None:
        return self.client.shares if self._node.up else None

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._schedule.at(self.now + delay_ns, self._act, (self.client.lives, action))

    def _act(self, due: tuple[int, Callable[[], None]], _second: object) -> None:
        life, action = due
        if self._node.up and life == self.client.lives and not self._node.holds(self._act, due):
            action()

    def requested(self, window: Window) -> None:
        subscription, plan, share = window.subscription, self._plan, self._share
        self._writer.subscribed(
            plan.name,
            subscription.id,
            subscription.topics,
            plan.filter,
            plan.order,
            window.requested_at,
            share_of=share.name if share.group else None,
            durable=share.durable,
            group_by=share.group_by or None,
            keep_for_ns=share.keep_for_ns or None,
            start=None if plan.start == NEW else plan.start,
        )

    def _row(self, window: Window) -> Row:
        return self._name, window.subscription.id

    def joined(self, window: Window, life: str) -> None:
        self._counts.joined(self._row(window), life)

    def accepted(self, window: Window) -> None:
        self.refusal = ""
        self._writer.accepted(self._name, window.subscription.id, window.accepted_at)
        self._counts.accepted(self._row(window), window.accepted_at)

    def detached(self, window: Window) -> None:
        self.refusal = ""
        self._writer.detached(self._name, window.subscription.id, window.cancelled_at)
        self._counts.left(self._row(window), window.cancelled_at)

    def taken(self, window: Window, taken: HandedEvent) -> bool:
        expires_at = taken.publication.expires_at
        if expires_at is not None and self.now > expires_at:
            return False
        taken.position, self._position = self._position, self._position + 1
        event_id = _text_id(taken.publication)
        self._writer.handed(
            self._name,
            window.subscription.id,
            taken.position,
            event_id,
            self.now,
            taken.attempt,
            taken.out_of_order,
        )
        self._counts.taken(self._row(window), taken, self.now)
        return True

    def acknowledged(self, taken: HandedEvent) -> None:
        """An acknowledgement without an answer counts, except of what somebody else was done with before."""
        taken.acknowledged_at = self.now
        if not self._counts.is_done((self._name, taken.subscription), taken.publication):
            self._writer.acknowledged(self._name, taken.position, self.now)

    def answered(self, taken: HandedEvent, accepted: bool) -> None:
        if accepted:
            self._writer.acknowledged(self._name, taken.position, taken.acknowledged_at)
            self._counts.done((self._name, taken.subscription), taken.publication)
        self._writer.answered(self._name, taken.position, accepted=accepted)

    def bury(self, taken: HandedEvent) -> int:
        share, publication = self._share, taken.publication
        assert share.dead_letter is not None and share.max_deliveries is not None
        attributes = dead_letter(publication.event(), share.name, share.max_deliveries)
        payload = typed_payload(publication.event().payload_item)
        sequence = self.client.application.publish(share.dead_letter, attributes, payload, self.now)
        source = source_text(self._name, self.client.session.incarnation)
        self._writer.published(
            f"{source}:{sequence}",
            source,
            sequence,
            share.dead_letter,
            attributes,
            len(payload.data),
            self.now,
        )
        self._tally.publish(share.dead_letter, attributes, self.now)
        return sequence

    def refused(self, reason: str) -> None:
        self.refusal = reason

    def accused(self, fact: Misbehaviour) -> None:
        if self._ordering is not None:
            self._ordering.complain(self._name, fact)


def _text_id(publication: Publication) -> str:
    source = source_text(publication.source, publication.incarnation)
    return f"{source}:{publication.sequence}"
