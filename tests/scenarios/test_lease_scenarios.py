"""Durable subscriptions and groups whose leases run out, in simulated scenarios: what the trace says, and from when a
lease counts."""

from __future__ import annotations

import pytest

from share_runs import WORK, Run, fault, subscriber

KEPT = "durable = 'audit'\nkeep_for_s = 1.0\n"
MEMBER = "group = 'workers'\nkeep_for_s = 1.0\n" + WORK
S = 1_000_000_000


def lives(run: Run) -> list[str]:
    """Return the lives that the attachments had, in order."""
    return [row["life"] for row in run.subscribed]


def test_who_comes_after_the_lease_begins_anew() -> None:
    late = subscriber("d1", KEPT + "subscribe_at_s = 6.0\n")
    run = Run(subscriber("d0", KEPT + "unsubscribe_at_s = 3.0\n") + late)
    first, second = run.subscribed
    assert first["life"] != second["life"] and first["keep_for_ns"] == S
    assert (first["detached_ns"], first["cancelled_ns"]) == (3 * S, 4 * S)
    assert second["cancelled_ns"] is None
    assert run.done(["d1"]) == run.jobs(second["accepted_ns"])
    after = run.jobs(4 * S) - run.jobs(second["accepted_ns"])
    assert run.summary.expected == (run.jobs() - after).total(), "until the lease was over, and from then on"
    lost = run.jobs(3 * S) - run.jobs(4 * S)
    assert run.summary.delivery_ratio == pytest.approx(1 - lost.total() / run.summary.expected)


def test_who_comes_in_time_goes_on() -> None:
    text = subscriber("d0", KEPT + "unsubscribe_at_s = 3.0\n")
    run = Run(text + subscriber("d1", KEPT + "subscribe_at_s = 3.9\n"))
    assert len({*lives(run)}) == 1
    assert run.done(["d0", "d1"]) == run.jobs() and run.summary.delivery_ratio == 1.0


def test_a_crash_longer_than_the_lease() -> None:
    run = Run(subscriber("d0", KEPT) + fault("crash", "d0", 3.0, 7.0))
    assert len({*lives(run)}) == 2
    assert run.subscribed[0]["cancelled_ns"] == 4 * S


def test_a_paused_subscriber_keeps_its_connection() -> None:
    """Its broker cannot know that nobody works."""
    run = Run(subscriber("d0", KEPT) + fault("pause", "d0", 1.0, 9.5))
    assert len(run.subscribed) == 1
    assert run.done(["d0"]) == run.jobs()


def test_the_lease_of_a_group_counts_from_its_last_member() -> None:
    text = subscriber("w0", MEMBER) + subscriber("w1", MEMBER, at="b0")
    run = Run(text + fault("crash", "w0", 3.0, 7.0) + fault("crash", "w1", 3.5, 8.0))
    assert len({*lives(run)}) == 2
    assert [row["cancelled_ns"] for row in run.subscribed[:2]] == [4_500_000_000] * 2
    one = Run(text + fault("crash", "w0", 3.0, 7.0))
    assert len({*lives(one)}) == 1 and one.done(["w0", "w1"]) == one.jobs()


def test_a_restart_of_the_home_gives_holders_time_to_return() -> None:
    run = Run(subscriber("d0", KEPT) + fault("crash", "b2", 3.0, 7.0))
    assert len({*lives(run)}) == 1
    assert run.done(["d0"]) == run.jobs()
    left = subscriber("d0", KEPT + "unsubscribe_at_s = 2.5\n") + fault("crash", "b2", 3.0, 7.0)
    assert len({*lives(Run(left + subscriber("d1", KEPT + "subscribe_at_s = 16.0\n")))}) == 1, "9 s later"
    assert len({*lives(Run(left + subscriber("d1", KEPT + "subscribe_at_s = 19.0\n")))}) == 2, "12 s later"


def test_the_lease_may_end_while_a_subscriber_cannot_be_reached() -> None:
    """It never left, and is told that another share has begun: that is another row."""
    near = subscriber("w0", MEMBER + "unsubscribe_at_s = 1.0\n")
    far = subscriber("w1", MEMBER + "subscribe_at_s = 0.8\n", at="b0")
    cut = "[[fault]]\nkind = 'partition'\ngroups = [['b0', 'b1'], ['b2']]\nat_s = 1.5\nuntil_s = 10.0\n"
    run = Run(near + far + cut)
    rows = [row for row in run.subscribed if row["subscriber"] == "w1"]
    assert [row["subscription"] for row in rows] == ["w1#0", "w1#1"]
    assert rows[0]["life"] != rows[1]["life"]
    assert rows[0]["cancelled_ns"] is not None and rows[1]["accepted_ns"] >= rows[0]["detached_ns"]
    assert rows[1]["requested_ns"] < rows[0]["detached_ns"], "since when it asked"


def test_a_default_lease_does_not_end() -> None:
    text = subscriber("d0", "durable = 'audit'\nunsubscribe_at_s = 3.0\n")
    run = Run(text + subscriber("d1", "durable = 'audit'\nsubscribe_at_s = 25.0\n"))
    assert len({*lives(run)}) == 1 and run.subscribed[0]["keep_for_ns"] is None
    assert run.done(["d0", "d1"]) == run.jobs()
