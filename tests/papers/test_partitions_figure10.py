"""Figure 10 of the partitions paper, small: what brokers deliver while many others are down, and in the end.

The measurement is that of `tidings reproduce`, of which `benchmarks/overlay.py` makes a table. What is delivered
during the failures is compared with the graph: pairs with more than delta failed brokers in a row on their path are
cut off, and nobody else should be.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tidings.core.overlay.guaranteed import sessions
from tidings.scenarios.trace.reader import Trace
from tidings.studies.partitions import runs as overlay_runs

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
overlay, overlay_cost = import_module("overlay"), import_module("overlay_cost")

SEED = 27
"""Four brokers in a row fail, so that even with delta 3 somebody is cut off."""
MARGIN_PERCENT = 1.0
"""A path that breaks or heals in the last moment."""


@pytest.mark.parametrize("delta", [2, 3])
def test_figure_10_everything_within_reach_is_delivered_during_the_failures(delta: int) -> None:
    point = overlay.figure_10_point(60, 3, delta, seed=SEED)
    assert point.failed == 10
    assert point.pairs > 500
    assert 90.0 < point.bound < 100.0
    assert point.bound - MARGIN_PERCENT <= point.delivered <= point.bound
    assert point.certified == 100.0
    assert point.guarantees_hold


def test_without_bypassing_most_is_cut_off_and_still_comes_in_the_end() -> None:
    """The same failures with delta 0: the measurement sees the difference that delta makes."""
    point = overlay.figure_10_point(60, 3, 0, seed=SEED)
    assert point.delivered <= point.bound < 60.0
    assert point.certified == 100.0
    assert point.guarantees_hold


def test_failures_that_nobody_notices_are_seen_by_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "UNREACHABLE_NS", 10**15)
    point = overlay.figure_10_point(60, 3, 2, seed=SEED)
    assert point.delivered < point.bound - MARGIN_PERCENT


def small_trace(delivered_s: dict[str, float]) -> Trace:
    """b1, b2 and b3 in a row below b0; b2 is down from 10 s to 20 s; p at b0 publishes at 12 s and at 17 s."""

    def ns(seconds: float) -> int:
        return round(seconds * 1e9)

    labels = ["0", "0.0", "0.0.0", "0.0.0.0"]
    brokers = [
        (f"b{depth}", "broker", f"b{depth - 1}" if depth else None, text, None)
        for depth, text in enumerate(labels)
    ]
    subscribers = [(f"s{depth}", "subscriber", f"b{depth}", None, None) for depth in (1, 2, 3)]
    return Trace.from_rows(
        nodes=[*brokers, ("p", "publisher", "b0", None, None), *subscribers],
        published=[
            (f"p:{sequence}", "p", sequence, "/a", [], 1, ns(at_s), None)
            for sequence, at_s in ((1, 9.0), (2, 12.0), (3, 17.0))
        ],
        subscribed=[(name, "s", ["/a"], None, "none", 0, 1, None) for name, *_ in subscribers],
        delivered=[(name, "s", 0, "p:2", ns(at_s), False, None) for name, at_s in delivered_s.items()],
        faults=[("crash", "b2", ns(10.0), ns(20.0))],
    )


def test_the_pairs_are_those_of_live_brokers_and_of_events_with_time_left() -> None:
    trace = small_trace({"s1": 12.1, "s2": 12.1, "s3": 20.1})
    pairs = list(overlay_runs.pairs_during_failures(trace))
    assert [(pair.event, pair.subscriber) for pair in pairs] == [("p:2", "s1"), ("p:2", "s3")]
    assert overlay_runs.delivered_during_failures(trace) == [True, False], (
        "at 20.1 s nothing was down any more"
    )
    assert overlay_runs.delivered_during_failures(small_trace({"s3": 19.9})) == [False, True]
    assert overlay_runs.connected_during_failures(trace, 0) == [True, False]
    assert overlay_runs.connected_during_failures(trace, 1) == [True, True]


def test_the_least_number_of_messages_counts_every_link_once() -> None:
    assert overlay_cost.least_messages(small_trace({"s1": 12.1, "s3": 12.2})) == 3
    assert overlay_cost.least_messages(small_trace({"s1": 12.1})) == 1
