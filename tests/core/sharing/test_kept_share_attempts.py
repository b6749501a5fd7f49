"""Attempts on disk: what was never shown does not count, and what is given out after that does."""

from __future__ import annotations

from tidings.core.events.event import make_publication
from tidings.core.overlay.guaranteed.kept_share import RETURN_NS, KeptShare, stored_shares
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.store import MemoryStore

DEFINITION = ShareDefinition("jobs", ("/a",), None, True, "", "none", 1)


def test_a_first_attempt_after_one_that_did_not_count_survives_a_restart() -> None:
    store = MemoryStore({})
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(make_publication("p", 0, 1, "/a", {}, b"", 0))
    kept.queue.join("a", 1)
    assert [handout.attempt for handout, _, _ in kept.due(0)] == [1]
    kept.leave("a", ((1, 1),))  # its application has not seen it
    kept.queue.join("b", 1)
    assert [handout.attempt for handout, _, _ in kept.due(0)] == [1]
    (again,) = stored_shares(store, 0)
    again.queue.join("c", 1)
    assert [handout.attempt for handout, _, _ in again.due(RETURN_NS)] == [2]
