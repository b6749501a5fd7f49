"""A broker's clients and their subscriptions, from request to acceptance to cancellation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidings.core.errors import FilterError, TopicError
from tidings.core.events.subscription import MAX_INTEREST_BYTES, Interest, Order, make_interest
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port
from tidings.core.messages import (
    JoinGroup,
    Status,
    StatusRequest,
    Subscribe,
    Subscribed,
    SubscribeFailed,
    Unsubscribe,
    Unsubscribed,
)
from tidings.core.overlay.forwarding import Forwarding, ForwardingListener
from tidings.core.overlay.groups import Groups
from tidings.core.overlay.members import MEMBER_TOPIC, is_member
from tidings.core.overlay.routing import LocalMembership, RoutingTable

MAX_SUBSCRIPTIONS_PER_CLIENT = 100_000
LONG_FILTER = 2_000
"""A canonical form longer than this may exceed the limits of a filter, and is checked."""
AVAILABLE_ORDERS = (Order.NONE, Order.FIFO)
_ANNOUNCED = "~"
"""Before the name of a member's subscription: names the one that announces it, of which its client never hears."""


class Edge(Part, ForwardingListener):
    name = "edge"
    handles = {
        Subscribe: "on_subscribe",
        JoinGroup: "on_subscribe",
        Unsubscribe: "on_unsubscribe",
        StatusRequest: "on_status_request",
    }

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        table: RoutingTable,
        forwarding: Forwarding,
        groups: Groups,
        describe: Callable[[], dict[str, object]],
    ) -> None:
        """`describe` returns the broker's status."""
        super().__init__(port)
        self.clients: dict[str, dict[str, Interest]] = {}
        self._neighbours = frozenset(neighbours)
        self._table = table
        self._forwarding = forwarding
        forwarding.listeners.append(self)
        self._groups = groups
        groups.refuse = self.refuse
        self._describe = describe
        self._unaccepted: dict[tuple[str, str], None] = {}

    @property
    def unaccepted(self) -> int:
        return len(self._unaccepted)

    def on_subscribe(self, sender: str, message: Subscribe) -> None:
        if sender in self._neighbours:
            self.port.emit(Misbehaviour(sender, "is a neighbouring broker, but subscribed like a client"))
            return
        subscriptions = self.clients.setdefault(sender, {})
        try:
            interest = self._check(sender, subscriptions, message)
            joined = self._membership(sender, interest, message)
        except (FilterError, TopicError, ValueError) as error:
            self.port.send(sender, SubscribeFailed(message.subscription, str(error)))
            return
        if message.subscription not in subscriptions:
            subscriptions[message.subscription] = interest
            self._unaccepted[sender, message.subscription] = None
            self._table.add_subscription(
                interest, sender, message.subscription, headers=message.headers, joined=joined
            )
            self._forwarding.interest_gained(interest)
        elif (sender, message.subscription) not in self._unaccepted:
            self.port.send(sender, Subscribed(message.subscription))

    def on_unsubscribe(self, sender: str, message: Unsubscribe) -> None:
        interest = self.clients.get(sender, {}).pop(message.subscription, None)
        if interest is not None:
            self._drop(sender, message.subscription, interest)
        self.port.send(sender, Unsubscribed(message.subscription))

    def on_status_request(self, sender: str, message: StatusRequest) -> None:
        self.port.send(sender, Status(msgspec.json.encode(self._describe()).decode()))

    def on_link_down(self, peer: str) -> None:
        """Forget a client that disconnects; it subscribes again when it returns."""
        for subscription, interest in self.clients.pop(peer, {}).items():
            self._drop(peer, subscription, interest)

    def _check(self, sender: str, subscriptions: dict[str, Interest], message: Subscribe) -> Interest:
        held = subscriptions.get(message.subscription)
        headers = self._table.has_headers(sender, message.subscription)
        interest = check_subscription(message, held, headers=headers)
        if held is None and len(subscriptions) >= MAX_SUBSCRIPTIONS_PER_CLIENT:
            raise ValueError(f"a client may have at most {MAX_SUBSCRIPTIONS_PER_CLIENT} subscriptions")
        if is_member(interest):
            raise ValueError(f"topics below {MEMBER_TOPIC[:-1]} are reserved")
        return interest

    def _membership(self, client: str, interest: Interest, message: Subscribe) -> LocalMembership | None:
        """Return what makes it a member of a group, if it is one; raise ValueError if it may not join."""
        if not isinstance(message, JoinGroup):
            return None
        known = self._table.joined(client, message.subscription)
        return self._groups.admit(client, interest, message) if known is None else known

    def refuse(self, client: str, subscription: str, reason: str) -> None:
        """End a subscription that cannot stay."""
        interest = self.clients.get(client, {}).pop(subscription, None)
        if interest is not None:
            self._drop(client, subscription, interest)
            self.port.send(client, SubscribeFailed(subscription, reason))

    def _drop(self, client: str, subscription: str, interest: Interest) -> None:
        joined = self._table.joined(client, subscription)
        if joined is not None:
            self._withdraw(client, subscription, joined)
        self._unaccepted.pop((client, subscription), None)
        self._table.remove_subscription(interest, client, subscription)
        self._forwarding.interest_lost(interest)

    def settled(self, interest: Interest) -> None:
        announced = is_member(interest)
        for client, name in self._table.subscriptions(interest):
            subscription = name[len(_ANNOUNCED) :] if announced else name
            if (client, subscription) not in self._unaccepted:
                continue
            joined = None if announced else self._table.joined(client, subscription)
            if joined is not None:  # from now on it gets what the others leave to it
                self._announce(client, subscription, joined)
            else:
                del self._unaccepted[client, subscription]
                self.port.send(client, Subscribed(subscription))

    # --- Members of groups: known to all brokers once their subscriptions are

    def _announce(self, client: str, subscription: str, joined: LocalMembership) -> None:
        interest = joined.membership.interest
        if not self._table.subscriptions(interest):
            self._table.add_subscription(interest, client, _ANNOUNCED + subscription)
            self._forwarding.interest_gained(interest)

    def _withdraw(self, client: str, subscription: str, joined: LocalMembership) -> None:
        interest = joined.membership.interest
        if self._table.subscriptions(interest):
            self._table.remove_subscription(interest, client, _ANNOUNCED + subscription)
            self._forwarding.interest_lost(interest)


def _check_readable(canonical: str) -> None:
    """Raise ValueError if other brokers, or this one after a restart, could not read the filter in this form."""
    try:
        make_interest((), canonical)
    except FilterError as error:
        raise ValueError(f"in its canonical form {error}") from None


def check_subscription(message: Subscribe, held: Interest | None, *, headers: bool = False) -> Interest:
    """Return the requested interest. Raise FilterError, TopicError or ValueError if it is invalid or not as `held`."""
    interest = make_interest(message.topics, message.filter)
    if message.order not in AVAILABLE_ORDERS:
        raise ValueError(
            f"order {message.order!r} is not available here; available: {', '.join(AVAILABLE_ORDERS)}"
        )
    if len(interest.text.encode("utf-8", "surrogatepass")) > MAX_INTEREST_BYTES:
        raise ValueError(f"the subscription is longer than {MAX_INTEREST_BYTES} bytes")
    if interest.sql is not None and len(interest.sql) > LONG_FILTER:
        _check_readable(interest.sql)
    if held is not None and held != interest:
        raise ValueError(
            f"subscription {message.subscription!r} already exists with a different filter or topics"
        )
    if held is not None and headers != message.headers:
        raise ValueError(f"subscription {message.subscription!r} already exists with headers={headers}")
    return interest
