"""The books of a live run: how much each subscriber is owed so far, and how much of it has come."""

from __future__ import annotations

from pathlib import Path

from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.trace.checkers import group
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

SCENARIO = """
[overlay]
shape = { kind = "chain", brokers = 2 }
[[publisher]]
name = "p"
at = "b0"
topics = ["/a", "/b"]
[[subscriber]]
name = "all"
at = "b1"
[[subscriber]]
name = "large"
at = "b1"
topics = ["/a"]
filter = "size > 10"
"""


def published(ledger: RunLedger, sequence: int, topic: str, size: int, at_ns: int) -> None:
    ledger.take(words.PublishedReport("p", sequence, topic, {"size": size}, 0, at_ns))


def delivered(ledger: RunLedger, subscriber: str, sequence: int) -> None:
    ledger.take(words.DeliveredReport(subscriber, "s", "p", sequence, 100 + sequence, 200, False))


def test_owed_is_what_was_published_for_a_subscription_since_it_was_accepted(tmp_path: Path) -> None:
    plan = expand(parse_scenario(SCENARIO, name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        assert ledger.progress() == {"all": (0, 0), "large": (0, 0)}
        for name, topics in (("all", ("/**",)), ("large", ("/a",))):
            ledger.take(words.Requested(name, "s", topics, 1))
        assert ledger.under_way
        ledger.take(words.Accepted("all", "s", 100))
        published(ledger, 1, "/a", 50, 99)  # before
        published(ledger, 2, "/a", 50, 102)
        assert ledger.progress() == {"all": (1, 0), "large": (0, 0)}
        ledger.take(words.Accepted("large", "s", 103))  # counted again from the first event on
        published(ledger, 3, "/a", 50, 103)
        published(ledger, 4, "/a", 5, 104)
        assert ledger.progress() == {"all": (3, 0), "large": (1, 0)}
        published(ledger, 5, "/b", 50, 105)  # only what is new is matched
        assert ledger.progress() == {"all": (4, 0), "large": (1, 0)}
        assert ledger.published == 5
        ledger.take(words.Confirmed("p", 1, 5, 106))
        for sequence in (2, 3, 4, 5, 5):  # one comes again, and counts once
            delivered(ledger, "all", sequence)
        assert ledger.progress() == {"all": (4, 4), "large": (1, 0)}
        assert ledger.under_way
        delivered(ledger, "large", 3)
        assert not ledger.under_way


def test_nobody_waits_for_what_expired(tmp_path: Path) -> None:
    plan = expand(parse_scenario(SCENARIO, name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        ledger.take(words.Requested("all", "s", ("/**",), 1))
        ledger.take(words.Accepted("all", "s", 2))
        for sequence in (1, 2):
            ledger.take(words.PublishedReport("p", sequence, "/a", {"size": 1}, 0, 100 + sequence, 150))
        ledger.take(words.Confirmed("p", 1, 2, 106))
        delivered(ledger, "all", 1)
        assert ledger.under_way
        for _ in range(2):
            ledger.take(words.ExpiredReport("all", "s", "p", 2, 102))
        assert not ledger.under_way
        assert ledger.progress()["all"] == (2, 2)
    trace = Trace.read(tmp_path)
    assert trace.published["expires_ns"].to_pylist() == [150, 150]
    assert len(trace.delivered) == 1


WORKERS = """
[[publisher]]
name = "p"
at = "b0"
[[subscriber]]
name = "w0"
at = "b1"
topics = ["/a"]
group = "workers"
[[subscriber]]
name = "w1"
at = "b1"
topics = ["/a"]
group = "workers"
"""


def test_a_group_is_owed_an_event_once_until_somebody_is_done(tmp_path: Path) -> None:
    plan = expand(parse_scenario(WORKERS, name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        for name in ("w0", "w1"):
            ledger.take(words.Requested(name, f"{name}#0", ("/a",), 1))
            ledger.take(words.StepTaken(name))
            ledger.take(words.Accepted(name, f"{name}#0", 10))
        assert not ledger.under_way
        published(ledger, 1, "/a", 0, 20)
        published(ledger, 2, "/b", 0, 20)
        published(ledger, 3, "/a", 0, 9)  # before they were attached
        ledger.take(words.Confirmed("p", 1, 3, 21))
        assert ledger.under_way
        ledger.take(words.HandedReport("w0", "w0#0", "p", 1, 30, 1))
        ledger.take(words.AcknowledgedReport("w0", 0, 31))
        assert not ledger.under_way
        ledger.crashed("w0", 32)  # nobody knows whether it was heard
        ledger.take(words.HandedReport("w1", "w1#0", "p", 1, 40, 2))
        assert ledger.under_way
        ledger.take(words.AcknowledgedReport("w1", 0, 41))
        ledger.take(words.AnsweredReport("w1", 0, True))
        assert not ledger.under_way
        work = ledger.work("w0", keep_resume_points=True)
        assert (work.made, work.position, work.topics, work.done) == (1, 1, ("/a",), 1)
        assert work.share == plan.subscribers[0].share
    trace = Trace.read(tmp_path)
    assert [row["detached_ns"] for row in trace.subscribed.to_pylist()] == [32, None]
    done = {(row["subscriber"], row["attempt"]): row["done_ns"] for row in trace.delivered.to_pylist()}
    assert done == {("w0", 1): None, ("w1", 2): 41}


def test_what_somebody_else_was_done_with_is_not_done_by_a_crash(tmp_path: Path) -> None:
    """A worker that was paused shows an old event, acknowledges it, and dies before the refusal arrives."""
    plan = expand(parse_scenario(WORKERS, name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        for name in ("w0", "w1"):
            ledger.take(words.Requested(name, f"{name}#0", ("/a",), 1))
            ledger.take(words.Accepted(name, f"{name}#0", 10))
        published(ledger, 1, "/a", 0, 20)
        ledger.take(words.HandedReport("w1", "w1#0", "p", 1, 40, 2))
        ledger.take(words.AcknowledgedReport("w1", 0, 41))
        ledger.take(words.AnsweredReport("w1", 0, True))
        ledger.take(words.HandedReport("w0", "w0#0", "p", 1, 50, 1))
        ledger.take(words.AcknowledgedReport("w0", 0, 51))
        ledger.crashed("w0", 52)
    rows = Trace.read(tmp_path).delivered.to_pylist()
    assert {row["subscriber"]: row["done_ns"] for row in rows} == {"w1": 41, "w0": None}


def test_what_waited_for_a_share_that_ended_is_owed_to_nobody(tmp_path: Path) -> None:
    """w0 dies with an event in its hands; w1 comes after the lease, and begins anew."""
    plan = expand(parse_scenario(WORKERS.replace('"workers"', '"workers"\nkeep_for_s = 1e-7'), name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        ledger.take(words.Requested("w0", "w0#0", ("/a",), 1))
        ledger.take(words.JoinedReport("w0", "w0#0", "b1:1:1"))
        ledger.take(words.Accepted("w0", "w0#0", 10))
        published(ledger, 1, "/a", 0, 20)
        ledger.take(words.HandedReport("w0", "w0#0", "p", 1, 30, 1))
        ledger.crashed("w0", 40)
        published(ledger, 2, "/a", 0, 300)
        ledger.take(words.Confirmed("p", 1, 2, 301))
        ledger.take(words.Requested("w1", "w1#0", ("/a",), 400))
        ledger.take(words.JoinedReport("w1", "w1#0", "b1:1:2"))
        ledger.take(words.Accepted("w1", "w1#0", 410))
        assert not ledger.under_way
        published(ledger, 3, "/a", 0, 420)
        ledger.take(words.Confirmed("p", 3, 3, 421))
        assert ledger.under_way
        ledger.take(words.HandedReport("w1", "w1#0", "p", 3, 430, 1))
        ledger.take(words.AcknowledgedReport("w1", 0, 431))
        assert not ledger.under_way
    trace = Trace.read(tmp_path)
    assert [
        (row["cancelled_ns"], row["keep_for_ns"], row["life"]) for row in trace.subscribed.to_pylist()
    ] == [
        (140, 100, "b1:1:1"),
        (None, 100, "b1:1:2"),
    ]
    assert group(trace).holds and group(trace).counts == {"expected": 1, "done": 1, "repeated": 0}


def test_nobody_waits_for_what_a_group_was_given_too_late(tmp_path: Path) -> None:
    plan = expand(parse_scenario(WORKERS, name="test"))
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers, keeps=True)
        ledger.take(words.Requested("w0", "w0#0", ("/a",), 1))
        ledger.take(words.Accepted("w0", "w0#0", 10))
        ledger.take(words.PublishedReport("p", 1, "/a", {}, 0, 20, 25))
        ledger.take(words.Confirmed("p", 1, 1, 21))
        assert ledger.under_way
        ledger.take(words.ExpiredReport("w0", "w0#0", "p", 1, 20))
        assert not ledger.under_way
        ledger.take(words.Requested("w1", "w1#0", ("/a",), 30))
        ledger.take(words.Accepted("w1", "w1#0", 31))
        assert not ledger.under_way
