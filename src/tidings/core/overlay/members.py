"""How brokers of networks without a guarantee announce members of groups: each as an interest in a topic of its own.

Nobody publishes on these topics. Such an interest travels like any other, so every broker learns of every member, and
when it goes. No other interest covers it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from tidings.core.events.subscription import Interest, make_interest

MEMBER_TOPIC = "/~group/"


class GroupMembership(NamedTuple):
    """A member of a group. Members of one group must have the same terms."""

    group: str
    terms: str
    """A digest of what the member asks for: topics, filter and group_by."""
    member: str
    """Unique in the network."""

    @property
    def interest(self) -> Interest:
        return make_interest((MEMBER_TOPIC + "/".join(self),), None)


def is_member(interest: Interest) -> bool:
    """Return True if the interest announces a member of a group."""
    return interest.topics[0].text.startswith(MEMBER_TOPIC)


def membership_of(interest: Interest) -> GroupMembership | None:
    """Return the member that the interest announces, if it announces one."""
    if not is_member(interest):
        return None
    levels = interest.topics[0].levels
    exact = len(interest.topics) == 1 and interest.topics[0].exact and interest.pattern is None
    return GroupMembership(*levels[1:]) if exact and len(levels) == 4 else None


def make_membership(
    group: str, interest: Interest, group_by: str, broker: str, client: str, subscription: str
) -> GroupMembership:
    return GroupMembership(group, _digest(interest.text, group_by), _digest(broker, client, subscription))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).hexdigest()
