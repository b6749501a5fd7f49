"""The summary numbers of a small trace, worked out by hand."""

import msgspec
import pytest

from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow


def test_numbers_worked_out_by_hand() -> None:
    published = [PublishedRow(f"p:{n}", "p", n, "/t", [], 1, n * 10_000_000) for n in range(4)]
    subscribed = [
        SubscribedRow("s", "a", ["/t"], None, "none", 0, 0),
        SubscribedRow("r", "a", ["/t"], None, "none", 0),
    ]
    delivered = [
        DeliveredRow("s", "a", 0, "p:0", 1_000_000),
        DeliveredRow("s", "a", 1, "p:2", 23_000_000),
        DeliveredRow("s", "a", 2, "p:1", 25_000_000, True, "push"),
        DeliveredRow("s", "a", 3, "p:2", 21_000_000),
    ]
    trace = Trace.from_rows(published=published, subscribed=subscribed, delivered=delivered)
    numbers = msgspec.to_builtins(metrics(trace))
    latency = numbers.pop("latency_ms")
    assert numbers == {
        "published": 4,
        "delivered": 4,
        "expected": 4,
        "delivery_ratio": 0.75,
        "duplicates": 1,
        "out_of_order": 1,
        "expired": 0,
    }
    # 1, 3, 15 and 1 ms
    assert latency == {
        "mean": pytest.approx(5.0),
        "std": pytest.approx(34**0.5),
        "p50": pytest.approx(1.0),
        "p99": pytest.approx(15.0),
        "max": pytest.approx(15.0),
    }


def test_a_run_in_which_nothing_happened() -> None:
    numbers = metrics(Trace.from_rows())
    assert (numbers.expected, numbers.delivery_ratio, numbers.latency_ms) == (0, 1.0, None)
