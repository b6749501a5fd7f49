"""One durable subscription or group at its home: who is attached to it, and who gets and is done with what.

A holder is a client of this broker, or of another one that speaks for it (`FarClient`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import json
from msgspec.structs import replace

from tidings.core.client.arrivals import Arrivals
from tidings.core.errors import StoreError, WireError
from tidings.core.events.event import INT_MAX
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import make_interest
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed import share_reading
from tidings.core.overlay.guaranteed.kept_share import KeptShare
from tidings.core.overlay.guaranteed.merged_sources import Done, MergedSources, SourceId
from tidings.core.overlay.guaranteed.messages import MAX_RANGES
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.share_messages import (
    MAX_ASIDE_SHOWN,
    ShareAccepted,
    ShareAside,
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareCalledBack,
    ShareForgotten,
    ShareGiven,
    ShareMessage,
    ShareReach,
    ShareRead,
    ShareRefused,
)
from tidings.core.structures.ranges import Ranges

SHARE_CLIENT = "share:"
"""The prefix of the names of shares among a broker's clients. No other client may have it."""
EVENTS = "events"
"""The subscription of a share."""
EVERYTHING: Ranges = ((0, INT_MAX),)
"""What somebody may keep who is attached, and has what we say: more ranges than a message can name."""


class FarClient(NamedTuple):
    """A client of another broker."""

    broker: str
    client: str

    def __str__(self) -> str:
        return f"{self.client} at broker {self.broker}"


HOLDERS_RETURN_NS = 10_000_000_000
"""After a restart or a move of the home its holders attach again: for at least this long, the share waits for them."""
Client = str | FarClient
Holder = tuple[Client, str]
"""A client and its subscription."""
Send = Callable[[Client, ShareMessage], None]


class HeldShare:
    """A share of this broker. `send` reaches clients of any broker."""

    def __init__(self, definition: ShareDefinition, kept: KeptShare, send: Send, now: int) -> None:
        self.definition = definition
        self.kept = kept
        self._send = send
        self.inbox: deque[Message] = deque()
        self.arrivals = Arrivals(lambda: None)
        self.holders: dict[str, Holder] = {}
        """Member of the queue -> who it is."""
        self._asks: dict[str, int] = {}
        """Member of the queue -> which question of its client made it one."""
        self.waiting: dict[str, tuple[Holder, ShareAttach]] = {}
        """Who waits until the share is open."""
        self.readers: set[str] = set()
        """The members that read by number (share_reading.py)."""
        self.uncovered: tuple[str, ...] = ()
        self._uncovered_for: dict[str, tuple[str, ...]] = {}
        """Subscription of the share -> brokers that do not know it."""
        self.away_since = self.attached_at = now
        self.awaits_return = True
        """Nobody has attached since the share came to life here."""
        self.missed = 0
        """Events that the network gave up."""
        self.trouble = ""
        """Why the disk took nothing, if nobody has been told yet."""
        self.frozen = False
        """It is on its way to another broker: nothing changes."""
        self.merged: MergedSources | None = None
        """With what its former home sends; None if there is none."""
        self.behind = ""
        """The former home, while it cannot be reached."""
        self.is_joined = False
        """The sequencers know it; of an ordered share."""
        self.covered_at: int | None = None
        """Since when the whole network knows what we want."""

    @property
    def client(self) -> str:
        """The share's name among the broker's clients."""
        return inside_client(self.definition)

    @property
    def unreached(self) -> tuple[str, ...]:
        """The brokers whose events do not reach the share now."""
        return (*self.uncovered, self.behind) if self.behind else self.uncovered

    @property
    def reads_history(self) -> bool:
        """True while it takes in what its broker's archive has (share_history.py)."""
        return self.definition.uses_archive and bool(self.kept.position)

    @property
    def is_free(self) -> bool:
        return not self.holders and not self.waiting

    def is_attended(self, now: int) -> bool:
        """Return True if somebody is attached or about to be: after a restart or a move, holders return."""
        returning = self.awaits_return and now - self.away_since < HOLDERS_RETURN_NS
        return returning or self.frozen or not self.is_free

    # --- Attaching and leaving

    def check(self, message: ShareAttach) -> None:
        """Raise ValueError unless whoever attaches wants what this share is."""
        definition, name = self.definition, self.definition.name
        if message.group != definition.group:
            raise ValueError(
                f"{name!r} is a {definition.kind_text}; attach to it as one, or use another name"
            )
        interest = make_interest(message.topics, message.filter)
        topics = tuple(topic.text for topic in interest.topics)
        who = (
            "all members of a group select the same"
            if definition.group
            else "cancel it to select something else"
        )
        if sorted(topics) != sorted(definition.topics):
            raise ValueError(f"{name!r} has topics {', '.join(definition.topics)}; {who}")
        if interest.sql != definition.filter:
            has = f"the filter {definition.filter}" if definition.filter else "no filter"
            raise ValueError(f"{name!r} has {has}; {who}")
        if message.group_by != definition.group_by:
            by = f"by {definition.group_by}" if definition.group_by else "by no attribute"
            raise ValueError(f"group {name!r} is grouped {by}; all members do the same")
        if message.order != definition.order:
            raise ValueError(f"{name!r} has order {definition.order}; cancel it to change that")
        if message.reading:
            share_reading.check(self.kept, message)

    def attach(self, client: Client, message: ShareAttach) -> list[Holder]:
        """Attach a client, at once or when the share is open; raise ValueError if it may not. Return from whom it took
        over."""
        self.check(message)
        holder = (client, message.subscription)
        member, others = _member(holder), self._others(holder, message)
        self._keep_for(message.keep_for_ns)
        for other in others:
            self.remove(other, 0)
            name = self.definition.name
            self._send(other[0], ShareRefused(other[1], f"client {client} took over {name!r}"))
        self.waiting.pop(member, None)
        self.waiting[member] = (holder, message)
        if message.reading:
            self.readers.add(member)
        else:
            self.readers.discard(member)
        return others

    def _keep_for(self, keep_for_ns: int) -> None:
        """Whoever attaches last says how long the share is kept, if it says so."""
        if keep_for_ns and keep_for_ns != self.definition.keep_for_ns:
            self.definition = replace(self.definition, keep_for_ns=keep_for_ns)
            self.kept.redefine(self.definition)

    def _others(self, holder: Holder, message: ShareAttach) -> list[Holder]:
        """A durable subscription has one holder; another one takes over or is refused. Return whom it takes from."""
        if self.definition.group:
            return []
        others = [other for other in self.present if other != holder]
        name = self.definition.name
        if others and message.reading and not all(_member(other) in self.readers for other in others):
            raise ValueError(f"{name!r} is held by client {others[0][0]}, which must leave first")
        if others and not message.takeover:
            raise ValueError(f"{name!r} is held by client {others[0][0]}; take it over, or use a group")
        return others

    def admit(self, now: int) -> None:
        """Attach whoever waits, if the share is open."""
        if not self.kept.is_open or self.frozen:
            return
        waiting, self.waiting = self.waiting, {}
        queue = self.kept.queue
        for member, (holder, message) in waiting.items():
            if member in self.holders:  # a new connection: what was under way on the old one may be lost
                queue.leave(member)
            self.holders[member] = holder
            self._asks[member] = message.ask
            if message.reading:
                share_reading.start(self.kept, member, message)
                self._accept(member, ())
                continue
            if self.kept.reading is not None:  # it can acknowledge what the reading would ask for again
                self.kept.set_reading(None)
            same = message.life == self.definition.life  # otherwise its numbers are those of another share
            claimed = queue.join(member, message.max_unacked, message.holding if same else ())
            if not self.definition.group:
                queue.hurry()  # only this client can have had them
            self._accept(member, claimed)
        if waiting:
            self.attached_at, self.awaits_return = now, False
            self.give(now)

    @property
    def present(self) -> list[Holder]:
        """Who is attached, or waits for that."""
        return [*self.holders.values(), *(holder for holder, _ in self.waiting.values())]

    def has(self, holder: Holder) -> bool:
        return _member(holder) in self.holders

    def remove(self, holder: Holder, now: int, unseen: Ranges = ()) -> bool:
        """Detach a holder. What it was not done with goes to another, or waits; what its application has not seen does
        not count as delivered. Return False if it was not attached."""
        member = _member(holder)
        self.waiting.pop(member, None)
        self.readers.discard(member)
        if self.holders.pop(member, None) is None:
            return False
        del self._asks[member]
        self.kept.leave(member, unseen)
        self.away_since = now
        return True

    def end(self, reason: str) -> list[Holder]:
        """Tell everybody who is attached that the share is over, and return them."""
        present = self.present
        for client, subscription in present:
            self._send(client, ShareRefused(subscription, reason))
        self.holders.clear()
        self._asks.clear()
        self.waiting.clear()
        self.readers.clear()
        return present

    def cover(self, subscription: str, uncovered: tuple[str, ...]) -> tuple[str, ...]:
        """Note which brokers do not know a subscription of the share. Return those that do not know one of them."""
        self._uncovered_for[subscription] = uncovered
        return tuple(dict.fromkeys(broker for each in self._uncovered_for.values() for broker in each))

    def tell_coverage(self) -> None:
        """Tell everybody who is attached which brokers' events do not reach the share now."""
        for member in self.holders:
            held = () if member in self.readers else self.kept.queue.held_by(member)
            self._accept(member, held if len(held) <= MAX_RANGES else EVERYTHING)

    def _accept(self, member: str, claimed: Ranges) -> None:
        client, subscription = self.holders[member]
        life, ask = self.definition.life, self._asks[member]
        self._send(client, ShareAccepted(subscription, claimed, self.unreached, life, ask))

    # --- Events

    def give(self, now: int) -> None:
        """Send what is due."""
        if self.frozen:
            return
        for handout, events, late, before in self.kept.due(now):
            client, subscription = self.holders[handout.member]
            self._send(client, ShareGiven(subscription, handout.first, handout.attempt, events, late, before))

    def finish(self, holder: Holder, numbers: Ranges, expired: Ranges = ()) -> None:
        """The holder is done with these, some of which had expired."""
        done, refused = self.kept.finish(_member(holder), numbers, expired)
        for start in range(0, max(len(done), len(refused), 1), MAX_RANGES):
            part = slice(start, start + MAX_RANGES)
            self._send(holder[0], ShareForgotten(holder[1], done[part], refused[part]))

    def take_back(self, holder: Holder, message: ShareBack, now: int) -> None:
        """The holder gives an event back."""
        due_at = None if message.aside else now + message.after_ns
        called_back = self.kept.queue.refuse(_member(holder), message.number, due_at)
        if message.aside:
            self.kept.set_aside(message.number)
        if called_back or (
            self.definition.order != "none" and not message.aside
        ):  # there it waits for the answer
            for start in range(0, max(len(called_back), 1), MAX_RANGES):
                part = called_back[start : start + MAX_RANGES]
                self._send(holder[0], ShareCalledBack(message.subscription, part))

    def reach(self, holder: Holder, message: ShareReach, now: int) -> None:
        """The holder reads by number, and goes on."""
        if _member(holder) in self.readers:
            self._send(holder[0], share_reading.reach(self.kept, _member(holder), message, now))

    def answer(self, client: Client, message: ShareAsideRequest | ShareRead, broker: str, now: int) -> None:
        """Answer a question that needs no holder."""
        if isinstance(message, ShareRead):
            self._send(client, share_reading.read(self.kept, message))
        elif message.release and self.kept.reading is not None:
            reason = f"{message.name!r} is read by number: drop the events, or attach to it first"
            self._send(client, ShareAside(message.name, reason=reason))
        else:
            self._answer_aside(client, message, broker, now)

    def _answer_aside(self, client: Client, message: ShareAsideRequest, broker: str, now: int) -> None:
        """Show how this share is and what was set aside, or release or drop that."""
        changed = self.kept.release(message.release) + self.kept.drop_aside(message.drop)
        events, more = self.kept.aside(message.after, MAX_ASIDE_SHOWN)
        status = json.encode(self.status(broker, now)).decode()
        attended = self.is_attended(now)
        self._send(client, ShareAside(message.name, tuple(events), changed, more, "", status, attended))

    # --- As a sink of merged sources

    def highest(self, source: SourceId) -> int:
        return self.kept.highest(source)

    def take(self, stretch: Stretch, done: Done) -> bool:
        if self.kept.is_full or self.frozen:
            return False
        try:
            self.kept.take(stretch)
        except StoreError as error:
            self.trouble = str(error)
            return False
        except WireError:
            self.missed += stretch.count
        done()
        return True

    # --- Status

    def status(self, broker: str, now: int) -> dict[str, object]:
        """Return what `tidings subscriptions` shows."""
        definition, queue = self.definition, self.kept.queue
        return {
            "name": definition.name,
            "kind": definition.kind,
            "topics": list(definition.topics),
            "filter": definition.filter,
            "order": definition.order,
            "broker": broker,
            "attached": sorted(str(client) for client, _ in self.holders.values()),
            "waiting": queue.count - queue.out_count,
            "unacknowledged": queue.out_count,
            "set_aside": len(queue.aside),
            "size_bytes": self.kept.size_bytes,
            "expired": self.kept.expired,
            "missed": self.missed,
            "lease_left_s": self.lease_left_s(now),
            "uncovered": list(self.unreached),
        }

    def lease_left_s(self, now: int) -> float:
        return round(self.lease_left_ns(now) / 1e9, 1)

    # --- The lease

    def lease_left_ns(self, now: int) -> int:
        """Return how long the share is kept without a holder, from now on."""
        keep_ns = self.definition.keep_for_ns
        if self.awaits_return:
            keep_ns = max(keep_ns, HOLDERS_RETURN_NS)
        away_ns = 0 if self.holders else now - self.away_since
        return max(keep_ns - away_ns, 0)

    def renew_lease(self, now: int) -> None:
        """Count the lease from now on: holders could not attach before."""
        self.away_since, self.awaits_return = now, True


def inside_client(definition: ShareDefinition) -> str:
    """Return the name of a share among its broker's clients: a new one after each move."""
    epoch = f"/{definition.epoch}" if definition.epoch else ""
    return SHARE_CLIENT + definition.name + epoch


def _member(holder: Holder) -> str:
    client, subscription = holder
    if isinstance(client, FarClient):
        return f"{client.broker}\0{client.client}\0{subscription}"
    return f"\0{client}\0{subscription}"
