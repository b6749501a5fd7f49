"""The books of a live run: how much each subscriber is owed so far, and how much of it has come."""

from __future__ import annotations

from pathlib import Path

from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.ledger import RunLedger
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
