"""The log of subscriptions, and what of it a broker finds again on its disk."""

from __future__ import annotations

from tidings.core.overlay.guaranteed.messages import Record
from tidings.core.overlay.guaranteed.subscription_log import SubscriptionLog
from tidings.core.overlay.matching import Matcher
from tidings.core.store import MemoryStore


def record(number: int, *, dead: bool = False) -> Record:
    return Record(f"b1/0/{number}", "b1", (0, 1), () if dead else (f"/{number}",), None, dead)


def test_a_position_that_publishers_may_stamp_with_is_never_given_again() -> None:
    """Though its record, the newest, was collected before the broker restarted: else what they publish is refused."""
    store = MemoryStore()
    log = SubscriptionLog((0,), store, Matcher())
    log.take([record(1), record(2)])
    log.take([record(2, dead=True)])
    assert log.collect(["b1/0/2"]) == ["b1/0/2"]
    assert log.position == 2
    again = SubscriptionLog((0,), store, Matcher())
    assert again.position == 2
    [entry] = again.take([record(3)])
    assert entry.position == 3
    again.take([record(1, dead=True)])
    again.collect(["b1/0/1"])
    last = SubscriptionLog((0,), store, Matcher())
    assert last.position == 3
    assert last.is_collected("b1/0/1") and last.is_collected("b1/0/2") and not last.is_collected("b1/0/3")
