"""An ordered subscriber whose topics change, between its event service and its ordering module.

For each entry of the layout that it wants it has subscriptions in the service: one for all numbers, and with a filter
one more for what is wanted as a whole. The module is asked to join an entry once the service has accepted these, and
to leave it at once. When the module has joined all that is wanted, the change is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from tidings.model.event import ORDER_ATTRIBUTE, Publication, is_hidden
from tidings.model.subscription import Subscription
from tidings.model.topics import TopicPattern
from tidings.protocol.facts import Delivered
from tidings.protocol.sequencing.client import OrderingModule
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.stamps import decode_stamp
from tidings.protocol.sequencing.subscriber import Patience


class Notified(Struct, frozen=True, gc=False):
    """What the service notified of; `by` says which gossip recovered it."""

    publication: Publication
    by: str


class _Entry:
    __slots__ = ("name", "since", "subscriptions", "unaccepted")

    def __init__(self, name: str, subscriptions: tuple[Subscription, ...], since: int) -> None:
        self.name = name
        self.subscriptions = subscriptions
        self.since = since
        self.unaccepted = {subscription.id for subscription in subscriptions}


class TopicChanges:
    """`module` gives the one of this life of the client; `on_complete` may be told more than once."""

    def __init__(
        self,
        layout: Layout,
        condition: str | None,
        patience: Patience | None,
        *,
        module: Callable[[], OrderingModule],
        subscribe: Callable[[Subscription], object],
        unsubscribe: Callable[[str], object],
        on_complete: Callable[[], None],
    ) -> None:
        self.key: int | None = None
        """Of the module's subscriber, while there is one."""
        self._layout = layout
        self._condition = condition
        self._patience = patience
        self._module = module
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._on_complete = on_complete
        self._wanted: frozenset[int] = frozenset()
        self._asked: frozenset[int] = frozenset()
        """What the module was asked for."""
        self._joining = 0
        """Changes that the module has not completed."""
        self._entries: dict[int, _Entry] = {}
        self._rank_of: dict[str, int] = {}

    # --- What is wanted

    def follow(
        self,
        topics: tuple[str, ...],
        since: int,
        name_of: Callable[[int], str],
        before: Callable[[tuple[str, ...]], None] = lambda names: None,
    ) -> None:
        """These topics from now on. `name_of` makes names for subscriptions that were never used before; `before` is
        told those of all entries before the service is asked for a new one."""
        self._wanted = frozenset(self._layout.ranks_for(tuple(TopicPattern(topic) for topic in topics)))
        left = self._asked - self._wanted
        if left and self.key is not None:
            self._asked -= left
            self._module().change(self.key, (), left)
        made = {
            rank: self._make_entry(rank, name_of(rank), since)
            for rank in sorted(self._wanted - self._entries.keys())
        }
        if made:
            before(tuple(entry.name for entry in (*self._entries.values(), *made.values())))
        for rank in sorted(self._entries.keys() - self._wanted):
            self._leave_entry(rank)
        for rank, entry in made.items():
            self._entries[rank] = entry
            for subscription in entry.subscriptions:
                self._rank_of[subscription.id] = rank
                self._subscribe(subscription)
        self._maybe_join()

    def _make_entry(self, rank: int, name: str, since: int) -> _Entry:
        return _Entry(name, tuple(self.subscriptions(rank, name)), since)

    def subscriptions(self, rank: int, name: str) -> Iterator[Subscription]:
        """Those of that name to an entry of the layout."""
        topics = (self._layout.entry(rank),)
        yield Subscription(name, topics, headers=self._condition is not None)
        if self._condition is not None:
            yield Subscription(f"{name}?", topics, self._condition)

    def _leave_entry(self, rank: int) -> None:
        for subscription in self._entries.pop(rank).subscriptions:
            del self._rank_of[subscription.id]
            self._unsubscribe(subscription.id)

    # --- How far the change is

    def _maybe_join(self) -> None:
        missing = self._wanted - self._asked
        if any(self._entries[rank].unaccepted for rank in missing):
            return
        if missing:
            if self.key is None:
                self.key = self._module().add_subscriber(self._patience)
            self._asked |= missing
            self._joining += 1
            self._module().change(self.key, missing)
        self._maybe_complete()

    def _maybe_complete(self) -> None:
        if self._asked == self._wanted and not self._joining:
            self._on_complete()

    def on_accepted(self, subscription_id: str) -> None:
        """By the service."""
        rank = self._rank_of.get(subscription_id)
        if rank is not None:
            self._entries[rank].unaccepted.discard(subscription_id)
            self._maybe_join()

    def on_joined(self) -> None:
        """By the module."""
        self._joining -= 1
        self._maybe_complete()

    # --- Events

    def on_notified(self, fact: Delivered) -> None:
        """The service notifies; OrderError if the event's stamp is none."""
        if self.key is None or fact.subscription not in self._rank_of:
            return
        publication = fact.publication
        carried = publication.attributes().get(ORDER_ATTRIBUTE)
        if carried is None:
            return  # it has no order
        stamp = decode_stamp(carried, self._layout.fingerprint, self._layout.chain)
        if publication.hidden is not False and is_hidden(publication) and not stamp.count:
            self._module().receive_header(self.key, stamp)
        else:
            self._module().receive(self.key, stamp, Notified(publication, fact.recovered_by))

    def shows(self, rank: int, published_at: int) -> bool:
        """What was published before the application asked for it is not shown, whenever it got its number."""
        entry = self._entries.get(rank)
        return entry is not None and published_at >= entry.since

    # --- When it cannot go on

    def forget(self) -> None:
        """The module's subscriber is no more: what was on its way for it is lost."""
        self.key = None
        self._asked = frozenset()
        self._joining = 0

    def leave_all(self) -> None:
        """Nothing is wanted any more, and the service hears of it."""
        self._wanted = frozenset()
        for rank in sorted(self._entries):
            self._leave_entry(rank)

    def lose_all(self) -> list[Subscription]:
        """The client starts anew: the subscriptions that its service may still know."""
        lost = [subscription for entry in self._entries.values() for subscription in entry.subscriptions]
        self._entries.clear()
        self._rank_of.clear()
        return lost
