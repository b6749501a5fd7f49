"""Tells when a broker's archive has everything that a subscription does not get live.

A subscription that uses the record of the archive (core/overlay/guaranteed/attachments.py) gets everything that this
broker takes for that record after it was made; the archive's recorder gets the same, and all that was taken before.
The recorder acknowledges what is on disk. So the archive is complete for the subscription once the recorder has
acknowledged all that was taken before the *fence*, any moment after the subscription was made. What the archive has up
to then, followed by what comes live and is not among it, has neither a gap nor a repetition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.core.errors import SubscriptionRefused
from tidings.core.events.subscription import Interest
from tidings.core.overlay.guaranteed.queued import LocalClient

if TYPE_CHECKING:
    from tidings.core.overlay.guaranteed.attachments import Attachments
    from tidings.core.overlay.guaranteed.delivery import Delivery
    from tidings.core.overlay.guaranteed.local_subscriptions import ClientSubscription


NEEDS_ARCHIVE = (
    "start={} needs the archive of a guaranteed broker: tidings broker --mode guaranteed --archive DIR, "
    "or embedded(mode='guaranteed', archive=True)"
)


class ArchiveFence:
    """`raise_for` returns a fence, and `is_passed` whether the archive has everything before it."""

    def __init__(self, broker: str, attachments: Attachments, delivery: Delivery) -> None:
        self._broker = broker
        self._attachments = attachments
        self._delivery = delivery

    def raise_for(self, client: str, subscription: str) -> int:
        """Return a fence for the client's subscription.

        Raises:
            SubscriptionRefused: The archive does not have what the subscription selects.
        """
        recorded = self._recorded
        attachment = self._attachments.clients.get(client)
        held = None if attachment is None else attachment.subscriptions.get(subscription)
        if attachment is None or held is None or not attachment.attached:
            raise SubscriptionRefused(f"{client} has no subscription {subscription} at {self._broker}")
        self.check(held.interest)
        if held.record != recorded.record:
            raise SubscriptionRefused(
                f"subscription {subscription} is older than the archive: subscribe again"
            )
        return self._delivery.last_serial

    @property
    def _recorded(self) -> ClientSubscription:
        recorded = self._attachments.archive_subscription
        if recorded is None:
            raise SubscriptionRefused(f"{self._broker} is not recording its archive at the moment")
        return recorded

    def check(self, interest: Interest) -> None:
        """Raise SubscriptionRefused unless the archive has all that the interest selects."""
        recorded = self._recorded.interest
        if not recorded.covers(interest):
            raise SubscriptionRefused(
                f"the archive of {self._broker} has only {described(recorded)}: subscribe to no more"
            )

    def is_passed(self, fence: int) -> bool:
        archive = self._attachments.archive
        assert archive is not None
        recorder = LocalClient(archive[0])
        if recorder not in self._delivery.hops.outgoing:
            return False  # what it has not acknowledged is sent to it when it returns
        oldest = self._delivery.hops.oldest(recorder)
        return oldest is None or oldest > fence


def described(interest: Interest) -> str:
    """Return what an archive has, for an error."""
    topics = ", ".join(topic.text for topic in interest.topics)
    return topics if interest.sql is None else f"{topics} where {interest.sql}"
