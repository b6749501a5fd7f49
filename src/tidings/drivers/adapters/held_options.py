"""Which options of durable subscriptions and groups an existing broker has; the others are refused in one line."""

from __future__ import annotations

from typing import NamedTuple

from tidings.bus.durable_stream import MAX_UNACKED, Durability
from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.subscription import Order, Subscription
from tidings.core.overlay.guaranteed.share_messages import NEW_START

DEFAULT_HOLD_S = 10.0
MIN_HOLD_S = 0.1
RENEWALS = 3
"""How often a holder shows within `hold_s` that it is alive."""


class HeldSupport(NamedTuple):
    """What a broker has. Groups, each of them has."""

    keeps: bool
    """True: durable subscriptions and groups, whose events are kept until they are acknowledged. False: groups alone,
    whose events go to the members that are there, once."""
    expires: bool = False
    """True: it ends what nobody has been attached to for `keep_for`."""
    delays: bool = False
    """True: it waits before it delivers what was given back. Otherwise the holder keeps it that long."""
    instead: str = ""
    """What to use instead, if it keeps nothing."""


def check_held(server: str, support: HeldSupport, subscription: Subscription, durability: Durability) -> None:
    """Raise SubscriptionRefused for the first option that the broker does not have."""
    missing = _missing(support, subscription, durability)
    if missing:
        raise SubscriptionRefused(f"{missing} is not available at {server}" + _hint(support, missing))


def _missing(support: HeldSupport, subscription: Subscription, durability: Durability) -> str:
    unavailable = {
        "durable=": not support.keeps and not durability.group,
        "group_by=": bool(durability.group_by),
        "takeover=": durability.takeover,
        f'order="{subscription.order}" with durable=': subscription.order is not Order.NONE,
        "keep_for=": not support.expires and durability.keep_for_ns != 0,
        "start= with durable= or group=": durability.start != NEW_START,
        'ack="manual"': not support.keeps and durability.ack == "manual",
        "max_deliveries=": not support.keeps and durability.max_deliveries is not None,
        "max_unacked=": not support.keeps and durability.max_unacked != MAX_UNACKED,
        "max_deliveries= without dead_letter=": durability.max_deliveries is not None
        and durability.dead_letter is None,
    }
    return next((option for option, is_missing in unavailable.items() if is_missing), "")


def _hint(support: HeldSupport, missing: str) -> str:
    if missing in ("group_by=", "takeover=") or missing.startswith(("order=", "start=")):
        return "; a guaranteed network of tidings has it"
    if "without" in missing:
        return ": it cannot set events aside"
    if not support.keeps:
        return f": it keeps nothing until it is acknowledged; {support.instead}"
    return ""


def check_hold(hold_s: float) -> float:
    if not MIN_HOLD_S <= hold_s <= 3600:
        raise ConnectionFailed(f"hold_s must be from {MIN_HOLD_S} to 3600 seconds, not {hold_s}")
    return hold_s
