"""Attempts on disk: what was never shown does not count, and what is given out after that does; what was set aside
and released counts on, and tells since when."""

from __future__ import annotations

from epidemic_network import run_of
from tidings.core.events.event import make_publication
from tidings.core.overlay.guaranteed.kept_share import RETURN_NS, KeptShare, stored_shares
from tidings.core.overlay.guaranteed.share_definition import TABLE, ShareDefinition
from tidings.core.store import MemoryStore

DEFINITION = ShareDefinition("jobs", ("/a",), None, True, "", "none", 1)


def test_a_first_attempt_after_one_that_did_not_count_survives_a_restart() -> None:
    store = MemoryStore({})
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(make_publication("p", 0, 1, "/a", {}, b"", 0))
    kept.queue.join("a", 1)
    assert [handout.attempt for handout, *_ in kept.due(0)] == [1]
    kept.leave("a", ((1, 1),))  # its application has not seen it
    kept.queue.join("b", 1)
    assert [handout.attempt for handout, *_ in kept.due(0)] == [1]
    (again,) = stored_shares(store, 0)
    again.queue.join("c", 1)
    assert [handout.attempt for handout, *_ in again.due(RETURN_NS)] == [2]


def test_what_was_released_goes_out_apart_from_what_was_delivered_as_often() -> None:
    store = MemoryStore({})
    kept = KeptShare(DEFINITION, store)
    kept.create()
    for sequence in range(1, 6):
        kept.take(make_publication("p", 0, sequence, "/a", {}, b"", 0))
    kept.take(run_of(range(6, 11)))
    kept.queue.join("a", 10)
    kept.due(0)
    for number in (2, 7, 8):
        kept.queue.refuse("a", number, None)
        kept.set_aside(number)
    assert kept.release(((2, 2), (7, 8))) == 3
    kept.leave("a")
    (again,) = stored_shares(store, 0)
    for share in (kept, again):
        share.queue.join("b", 10)
        given = share.due(RETURN_NS)
        assert {each.handout.attempt for each in given} == {2}
        parts = {(each.handout.first, each.handout.last): each.before for each in given}
        assert [number for (first, last) in parts for number in range(first, last + 1)] == list(range(1, 11))
        before = {number: parts[first, last] for (first, last) in parts for number in range(first, last + 1)}
        assert {number for number, times in before.items() if times} == {2, 7, 8}
        share.leave("b")
    again.queue.join("c", 10)
    again.due(RETURN_NS)
    again.finish("c", ((1, 10),))
    again.erase()
    assert store.read(TABLE) == []
