"""Groups in a network without a guarantee: each event goes to one member, chosen alike by all brokers.

Every broker knows all members (core/overlay/members.py). A broker that notifies its clients chooses, for each event and
group, among all of them by the event's id or by the value of an attribute (core/sharing/choice.py). It notifies the
member if it is its own, and leaves the event to another broker if not. Nothing is acknowledged and nothing comes again.

A client becomes a member once the network routes its events here, so a member that joins makes no other one miss
anything. While the news of a change travels, brokers may disagree: an event may go to two members, or to none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from tidings.core.errors import WireError
from tidings.core.events.run import Stretch, cut, look
from tidings.core.events.subscription import Interest
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import JoinGroup, Notify
from tidings.core.overlay.members import make_membership, membership_of
from tidings.core.overlay.routing import (
    LocalGroup,
    LocalMember,
    LocalMembership,
    Route,
    RoutingListener,
    RoutingTable,
)
from tidings.core.sharing.choice import SHARE_NAME, event_key, rendezvous, value_key

MAX_STATUS_GROUPS = 100
"""How many groups a broker's status lists, the first by name."""
Refuse = Callable[[str, str, str], None]
"""Takes a client, its subscription and the reason."""
Winners = tuple[LocalMember, ...]
"""The members of this broker that get an event: of each group one, or none."""


class Groups(Part, RoutingListener):
    """Knows the members of all groups, and notifies the clients of this broker."""

    name = "groups"

    def __init__(self, port: Port, table: RoutingTable) -> None:
        super().__init__(port)
        self.refuse: Refuse = lambda client, subscription, reason: None
        self._table = table
        table.listeners.append(self)
        self._members: dict[str, dict[str, dict[str, None]]] = {}
        """Group -> terms -> members."""

    # --- Who the members are

    def admit(self, client: str, interest: Interest, message: JoinGroup) -> LocalMembership:
        """Return the membership of a client that wants to join; raise ValueError if it may not."""
        if re.fullmatch(SHARE_NAME, message.group) is None:
            raise ValueError(f"{message.group!r} is not a name of a group")
        membership = make_membership(
            message.group, interest, message.group_by, self.port.node, client, message.subscription
        )
        if any(terms != membership.terms for terms in self._members.get(message.group, {})):
            raise ValueError(_differs(message.group))
        return LocalMembership(membership, message.group_by)

    def held_here(self, interest: Interest, held: bool) -> None:
        membership = membership_of(interest)
        if membership is None:
            return
        group, terms, member = membership
        if held:
            by_terms = self._members.setdefault(group, {})
            by_terms.setdefault(terms, {})[member] = None
            if len(by_terms) > 1:
                self.port.set_timer((self.name, "differ", group), self.port.now)
        else:
            by_terms = self._members[group]
            del by_terms[terms][member]
            if not by_terms[terms]:
                del by_terms[terms]
            if not by_terms:
                del self._members[group]

    def on_timer(self, name: TimerName) -> None:
        """Members of one group have different terms, because they joined at once or the network was split: those with
        the first terms stay."""
        group = str(name[2])
        stays = min(self._members.get(group, ()), default="")
        for client, subscription, joined in self._table.joined_to(group):
            if joined.membership.terms != stays:
                self.refuse(client, subscription, _differs(group))

    def status(self) -> list[dict[str, object]]:
        """Return the groups that this broker knows, with how many members they have, in all and here."""
        return [
            {
                "name": group,
                "members": sum(map(len, by_terms.values())),
                "members_here": len(self._table.joined_to(group)),
            }
            for group, by_terms in sorted(self._members.items())
        ]

    # --- Events

    def notify(self, route: Route, stretch: Stretch, by: str = "") -> None:
        """Notify the clients of this broker of events of one selection."""
        for send, subscriptions in route.notices:
            send(Notify(subscriptions, stretch, by))
        if route.shared is None:
            return
        for part, winners in self._cut(route.shared.groups, stretch):
            chosen: dict[str, list[str]] = {}
            for client, subscription in winners:
                chosen.setdefault(client, []).append(subscription)
            for client, plain in route.shared.clients.items():
                names = tuple(sorted((*plain, *chosen.get(client, ()))))
                if names:
                    self._table.notifier(client, names)(Notify(names, part, by))

    def _cut(self, groups: tuple[LocalGroup, ...], stretch: Stretch) -> Iterator[tuple[Stretch, Winners]]:
        """Cut the stretch where the choice changes. It depends on the event alone, since brokers get runs in different
        cuts."""
        try:
            chosen = groupby(enumerate(self._choices(groups, stretch), stretch.first), lambda item: item[1])
            for winners, items in chosen:
                sequences = [sequence for sequence, _ in items]
                yield cut(stretch, sequences[0], sequences[-1]), winners
        except WireError as error:
            self.port.emit(Misbehaviour(stretch.source, str(error)))

    def _choices(self, groups: tuple[LocalGroup, ...], stretch: Stretch) -> Iterator[Winners]:
        source, incarnation = stretch.source, stretch.incarnation
        contents = look(stretch) if any(group.group_by for group in groups) else ()
        for place, sequence in enumerate(range(stretch.first, stretch.last + 1)):
            winners = []
            for group in groups:
                if group.group_by:
                    key = value_key(contents[place].attributes, group.group_by)
                else:
                    key = event_key(source, incarnation, sequence)
                members = self._members.get(group.name, {}).get(group.terms, ())
                winner = group.members.get(rendezvous(members, key) or "")
                if winner is not None:
                    winners.append(winner)
            yield tuple(winners)


def _differs(group: str) -> str:
    return (
        f"group {group!r} has members with other topics, another filter or another group_by; "
        "all members of a group must ask for the same"
    )
