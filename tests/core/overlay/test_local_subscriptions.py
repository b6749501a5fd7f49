"""Who gets a publication: what is remembered of that holds only until a subscription or a record comes or goes."""

from __future__ import annotations

from tidings.core.events.event import make_publication
from tidings.core.events.subscription import make_interest
from tidings.core.overlay.guaranteed.local_subscriptions import ClientSubscription, LocalSubscriptions
from tidings.core.overlay.guaranteed.messages import Record
from tidings.core.overlay.guaranteed.subscription_log import LogEntry

INTEREST = make_interest(("/t",), None)
ENTRIES = tuple(
    LogEntry(Record(name, "b", (), ("/t",), None), INTEREST, place) for place, name in enumerate("xy", 1)
)


def targets(local: LocalSubscriptions, x: int) -> dict[str, tuple[str, ...]]:
    event = make_publication("p", 0, 1, "/t", {"x": x}, b"", 0)
    ((stretch, found),) = local.targets(event, ENTRIES)
    assert stretch is event
    return dict(found)


def test_what_is_remembered_follows_subscriptions_and_records() -> None:
    local = LocalSubscriptions()
    assert targets(local, 1) == {}
    first, second = (
        ClientSubscription(INTEREST, "x", headers=False),
        ClientSubscription(INTEREST, "y", headers=False),
    )
    local.add("s", "1", first)
    assert targets(local, 1) == {"s": ("1",)}
    local.add("s", "2", second)
    local.add("r", "1", first)
    assert targets(local, 1) == {"r": ("1",), "s": ("1", "2")}
    assert not local.remove("s", "1", first)
    assert targets(local, 1) == {"r": ("1",), "s": ("2",)}
    local.set_orphans(["y"])
    assert targets(local, 1) == {"?y": ("",), "r": ("1",), "s": ("2",)}
    local.set_orphans([])
    assert targets(local, 1) == {"r": ("1",), "s": ("2",)}


def test_a_subscription_that_selects_less_than_its_record_is_asked_each_time() -> None:
    local = LocalSubscriptions()
    local.add("s", "1", ClientSubscription(INTEREST, "x", headers=False))
    local.add("r", "1", ClientSubscription(make_interest(("/t",), "x > 1"), "x", headers=False))
    assert targets(local, 1) == {"s": ("1",)}
    assert targets(local, 2) == {"r": ("1",), "s": ("1",)}
    assert targets(local, 1) == {"s": ("1",)}
