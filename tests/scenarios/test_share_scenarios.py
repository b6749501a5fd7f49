"""Durable subscribers and groups in simulated scenarios: who gets what, who is done with what, and what comes again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from command import tidings
from share_runs import HEAD, WORK, Run, fault, subscriber
from tidings.scenarios.trace.checkers import durable
from tidings.scenarios.trace.reader import Trace


def test_a_group_is_done_with_each_event_once() -> None:
    run = Run(subscriber("w0", "group = 'workers'\n" + WORK) + subscriber("w1", "group = 'workers'\n" + WORK))
    assert run.done(["w0", "w1"]) == run.jobs()
    assert run.rows("w0") and run.rows("w1")
    assert {row["share_of"] for row in run.subscribed} == {"workers"}
    assert {row["durable"] for row in run.subscribed} == {None}
    assert run.summary.expected == run.summary.delivered == len(run.jobs())
    assert run.summary.delivery_ratio == 1.0 and run.summary.duplicates == 0
    assert not run.waiting


def test_each_event_takes_its_work() -> None:
    run = Run(subscriber("w0", "group = 'workers'\nwork_ms = { kind = 'constant', value = 30 }"))
    rows = run.rows("w0")
    assert [row["done_ns"] - row["at_ns"] for row in rows] == [30_000_000] * len(rows)
    assert all(row["at_ns"] >= before["done_ns"] for before, row in pairwise(rows))
    assert [row["position"] for row in rows] == list(range(len(rows)))


def test_what_a_crashed_member_held_comes_to_another_marked() -> None:
    work = "group = 'workers'\nwork_ms = { kind = 'constant', value = 80 }"
    text = subscriber("w0", work) + subscriber("w1", work) + fault("crash", "w0", 3.1, 5.0)
    run = Run(text)
    in_hand = [row for row in run.rows("w0") if row["done_ns"] is None]
    assert len(in_hand) == 1  # what it worked on; it had seen nothing else
    event_id = in_hand[0]["event_id"]
    again = [row for row in run.delivered if row["event_id"] == event_id and row["done_ns"] is not None]
    assert [row["attempt"] for row in again] == [2] and again[0]["at_ns"] > 3_100_000_000
    assert run.done(["w0", "w1"]) == run.jobs()
    rows = [row for row in run.subscribed if row["subscriber"] == "w0"]
    assert [row["detached_ns"] for row in rows] == [3_100_000_000, None]
    assert rows[1]["requested_ns"] == 5_000_000_000 and rows[1]["accepted_ns"] is not None


def test_a_durable_subscriber_misses_nothing_while_it_is_down() -> None:
    run = Run(subscriber("d0", "durable = 'audit'\n") + fault("crash", "d0", 3.0, 7.0))
    assert run.done(["d0"]) == run.jobs()
    assert all(not 3_000_000_000 < row["at_ns"] < 7_000_000_000 for row in run.rows("d0"))
    assert {row["durable"] for row in run.subscribed} == {"audit"}


def test_unsubscribing_detaches_and_a_later_subscriber_goes_on() -> None:
    text = subscriber("d0", "durable = 'audit'\nunsubscribe_at_s = 3.0\n")
    run = Run(text + subscriber("d1", "durable = 'audit'\nsubscribe_at_s = 6.0\n"))
    assert run.done(["d0", "d1"]) == run.jobs()
    assert run.done(["d0"]).keys().isdisjoint(run.done(["d1"]))
    first, second = run.subscribed
    assert (first["cancelled_ns"], first["detached_ns"]) == (None, 3_000_000_000)
    assert second["detached_ns"] is None
    assert run.summary.expected == len(run.jobs())


def test_what_it_works_on_when_it_leaves_is_not_done() -> None:
    work = "durable = 'audit'\nwork_ms = { kind = 'constant', value = 70 }\n"
    text = subscriber("d0", work + "unsubscribe_at_s = 3.0\n")
    run = Run(text + subscriber("d1", work + "subscribe_at_s = 3.0\n"))
    last = run.rows("d0")[-1]
    assert last["done_ns"] is None
    assert run.rows("d1")[0]["event_id"] == last["event_id"] and run.rows("d1")[0]["attempt"] == 2


def test_a_paused_member_handles_nothing_and_goes_on() -> None:
    work = "group = 'workers'\n" + WORK
    run = Run(subscriber("w0", work) + subscriber("w1", work) + fault("pause", "w0", 3.0, 6.0))
    times = [row["at_ns"] for row in run.rows("w0")]
    assert not [at for at in times if 3_000_000_000 < at < 6_000_000_000]
    assert [at for at in times if at >= 6_000_000_000]
    assert run.done(["w0", "w1"]) == run.jobs()
    assert len(run.subscribed) == 2


def test_a_crash_of_the_broker_loses_nothing() -> None:
    work = "group = 'workers'\n" + WORK
    run = Run(subscriber("w0", work) + subscriber("w1", work) + fault("crash", "b2", 3.0, 6.0))
    done = run.done(["w0", "w1"])
    assert done.keys() == run.jobs().keys() and {*done.values()} == {1}
    assert len(run.subscribed) == 2  # the same attachments


def test_equal_values_stay_in_order() -> None:
    keys = "group = 'workers'\ngroup_by = 'x'\n" + WORK
    run = Run("".join(subscriber(f"w{number}", keys) for number in range(3)))
    value_of = {row["event_id"]: dict(row["attributes"])["x"] for row in run.published}
    members: dict[str, set[str]] = {}
    for row in run.delivered:
        members.setdefault(value_of[row["event_id"]], set()).add(row["subscriber"])
    assert {len(found) for found in members.values()} == {1}
    assert {row["group_by"] for row in run.subscribed} == {"x"}
    assert run.done(["w0", "w1", "w2"]) == run.jobs()


def test_an_event_that_is_delivered_too_often_becomes_a_dead_letter() -> None:
    keys = "durable = 'audit'\nwork_ms = { kind = 'constant', value = 900 }\nmax_deliveries = 2\nmax_unacked = 1\n"
    text = subscriber("d0", keys + "dead_letter = '/dead'\n")
    text += "[[subscriber]]\nname = 'graves'\nat = 'b1'\ntopics = ['/dead']\n"
    text += "".join(fault("crash", "d0", at_s, at_s + 0.1) for at_s in (1.0, 1.6, 2.2))
    run = Run(text)
    dead = [row for row in run.published if row["topic"] == "/dead"]
    assert len(dead) == 1 and dead[0]["confirmed_ns"] is not None
    attributes = dict(dead[0]["attributes"])
    event_id = run.rows("d0")[0]["event_id"]
    of_event = [row for row in run.rows("d0") if row["event_id"] == event_id]
    assert [row["attempt"] for row in of_event] == [1, 2, 3]
    assert [row["done_ns"] is not None for row in of_event] == [False, False, True]
    assert "audit" in attributes["dead_subscription"] and event_id in attributes["dead_event"]
    assert [row["event_id"] for row in run.rows("graves")] == [dead[0]["event_id"]]


def test_at_most_max_unacked_are_out() -> None:
    slow = "group = 'workers'\nmax_unacked = 1\nwork_ms = { kind = 'constant', value = 5000 }"
    quick = "group = 'workers'\n"
    run = Run(subscriber("w0", slow) + subscriber("w1", quick))
    assert len(run.rows("w0")) <= 6
    done = run.done(["w0", "w1"])
    assert done.keys() == run.jobs().keys() and {*done.values()} == {1}


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_client_that_publishes_can_be_a_worker(ack: str) -> None:
    text = "[[publisher]]\nname = 'both'\nat = 'b2'\ntopics = ['/other']\n"
    run = Run(text + subscriber("both", f"group = 'workers'\nack = '{ack}'\n"))
    assert run.done(["both"]) == run.jobs()
    assert [row for row in run.published if row["source"] == "both" and row["confirmed_ns"] is not None]


@pytest.mark.parametrize("order", ["total", "causal"])
def test_durable_subscribers_share_one_order_with_everybody(order: str) -> None:
    """Their broker crashes, and so does a holder, with three publishers at work."""
    more = "".join(
        f"[[publisher]]\nname = 'p{n}'\nat = 'b{n}'\ntopics = ['/jobs']\nrate_hz = 20.0\n" for n in (1, 2)
    )
    wanted = f"order = '{order}'\n"
    run = Run(
        more
        + subscriber("plain", wanted, at="b0")
        + subscriber("first", wanted + "durable = 'a'\nunsubscribe_at_s = 4.0")
        + subscriber("second", wanted + "durable = 'a'\nsubscribe_at_s = 6.0", at="b1")
        + subscriber("other", wanted + "durable = 'b'\nwork_ms = { kind = 'constant', value = 12 }")
        + fault("crash", "b2", 2.0, 3.0)
        + fault("crash", "other", 5.0, 5.5)
        + fault("crash", "b0", 7.0, 8.0),
        ordered=order,
    )
    assert not run.waiting
    assert {row["order"] for row in run.subscribed} == {order}
    assert run.done(["first", "second"]) == run.jobs() == run.done(["other"])
    first = [row["event_id"] for row in (*run.rows("first"), *run.rows("second")) if row["attempt"] == 1]
    assert first == [row["event_id"] for row in run.rows("plain")]
    assert any(row["attempt"] > 1 for row in run.rows("other"))


def test_what_is_lost_with_a_broker_s_disk_is_not_judged_and_the_rest_is(tmp_path: Path) -> None:
    lost = "[[fault]]\nkind = 'crash'\nnodes = ['b2']\nat_s = 4.0\nuntil_s = 4.5\nstate = 'lost'\n"
    text = subscriber("d0", "durable = 'audit'\n") + subscriber("d1", "durable = 'books'\n", at="b1")
    (tmp_path / "lost.toml").write_text(HEAD + text + lost)
    done = tidings("sim", tmp_path / "lost.toml", "--out", tmp_path / "out", "--check", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(not judged: d0, whose broker loses its disk)" in done.stdout
    assert "durable: holds" in done.stdout, "d1 is judged"
    whole = Trace.read(tmp_path / "out")
    assert not durable(whole).holds and durable(whole.without({"d0"})).holds
