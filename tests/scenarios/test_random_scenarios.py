"""Small random scenarios: what the run counts is what the trace says, and what the trace says holds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import run_scenario
from tidings.scenarios.trace.checkers import exactly_once, gap_free
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace

BROKERS = 5
DURATION_S = 6

broker_names = st.integers(0, BROKERS - 1).map(lambda number: f"b{number}")
# Whole tenths, so that things often happen in one instant.
times_s = st.integers(0, 10 * DURATION_S - 10).map(lambda tenths: tenths / 10)


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(toml(item) for item in value) + "]"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _:
            return repr(value)


def table(header: str, values: dict[str, Any]) -> str:
    return header + "\n" + "".join(f"{key} = {toml(value)}\n" for key, value in values.items())


publishers = st.fixed_dictionaries(
    {
        "at": broker_names,
        "topics": st.sampled_from([["/a"], ["/b"], ["/a", "/b"]]),
        "rate_hz": st.sampled_from([2.0, 10.0, 40.0]),
        "arrival": st.sampled_from(["poisson", "periodic"]),
        "start_s": times_s,
        "attributes": st.just({"x": {"kind": "int", "low": 0, "high": 3}}),
    },
    optional={"count": st.integers(0, 20)},
)
subscribers = st.fixed_dictionaries(
    {"at": broker_names, "subscribe_at_s": times_s},
    optional={
        "topics": st.sampled_from([["/a"], ["/b"], ["/*"], ["/c", "/a"]]),
        "filter": st.sampled_from(["x > 1", "x = 2 OR topic = '/b'"]),
        "order": st.sampled_from(["none", "fifo"]),
        "lasts_s": st.integers(1, 30).map(lambda tenths: tenths / 10),
        "adds_after_s": st.integers(0, 20).map(lambda tenths: tenths / 10),
    },
)
networks = st.fixed_dictionaries(
    {
        "delay_ms": st.sampled_from(
            [
                {"kind": "constant", "value": 10},
                {"kind": "constant", "value": 0},
                {"kind": "uniform", "low": 1, "high": 100},
            ]
        )
    },
    optional={
        "loss": st.sampled_from(
            [{"kind": "bernoulli", "rate": 0.1}, {"kind": "gilbert", "rate": 0.1, "burst": 3}]
        ),
        "duplicate": st.just(0.2),
        "reorder": st.just(0.2),
        "bandwidth_mbps": st.just(1),
    },
)
faults = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["crash", "pause", "slow"]),
            "nodes": st.lists(
                st.sampled_from(["b0", "b1", "b2", "p0", "s0"]), min_size=1, max_size=2, unique=True
            ),
            "at_s": times_s,
            "lasts_s": st.integers(1, 20).map(lambda tenths: tenths / 10),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("link"),
            "between": st.sampled_from([["b0", "b1"], ["b1", "b2"], ["b0", "p0"], ["b0", "s0"]]),
            "direction": st.sampled_from(["both", "forward"]),
            "at_s": times_s,
        }
    ),
    st.fixed_dictionaries({"kind": st.just("loss"), "rate": st.just(0.3), "at_s": times_s}),
    st.fixed_dictionaries(
        {
            "kind": st.just("partition"),
            "groups": st.sampled_from([[["b0"], ["b1", "b2"]], [["b0", "p0"], ["b1", "s0"]]]),
            "at_s": times_s,
        }
    ),
)


@st.composite
def scenarios(draw: st.DrawFn, *, calm: bool) -> str:
    head = {"seed": draw(st.integers(0, 99)), "duration_s": DURATION_S, "settle_s": 10}
    shape = {"kind": draw(st.sampled_from(["chain", "star", "random"])), "brokers": BROKERS}
    network = draw(networks)
    if calm:
        network.pop("loss", None)
    parts = [
        table("", head),
        table("[network]", network),
        table("[overlay]", {"mode": "best-effort", "shape": shape}),
    ]
    for number, publisher in enumerate(draw(st.lists(publishers, min_size=1, max_size=3))):
        parts.append(table("[[publisher]]", {"name": f"p{number}", **publisher}))
    for number, subscriber in enumerate(draw(st.lists(subscribers, min_size=1, max_size=4))):
        parts.append(table("[[subscriber]]", {"name": f"s{number}", **subscriber_table(subscriber)}))
    for fault in [] if calm else draw(st.lists(faults, max_size=4)):
        if "lasts_s" in fault:
            fault["until_s"] = fault["at_s"] + fault.pop("lasts_s")
        parts.append(table("[[fault]]", fault))
    return "\n".join(parts)


def subscriber_table(drawn: dict[str, Any]) -> dict[str, Any]:
    values = dict(drawn)
    begins_s = values["subscribe_at_s"]
    lasts_s, adds_after_s = values.pop("lasts_s", None), values.pop("adds_after_s", None)
    if lasts_s is not None:
        values["unsubscribe_at_s"] = begins_s + lasts_s
    if adds_after_s is not None and (lasts_s is None or adds_after_s < lasts_s):
        values["changes"] = [{"at_s": begins_s + adds_after_s, "add": ["/d"]}]
    return values


def run(text: str) -> tuple[dict[str, Any], Trace]:
    with TemporaryDirectory() as out:
        return run_scenario(parse_scenario(text), Path(out)), Trace.read(out)


def check_counts(summary: dict[str, Any], trace: Trace) -> None:
    counted = metrics(trace)
    assert (summary["published"], summary["delivered"]) == (counted.published, counted.delivered)
    assert (summary["duplicates"], summary["out_of_order"]) == (counted.duplicates, counted.out_of_order)
    owed = gap_free(trace, strict_end=True).counts
    assert summary["expected"] == owed["expected"]
    assert summary["delivery_ratio"] == (owed["delivered"] / owed["expected"] if owed["expected"] else 1.0)
    if counted.latency_ms is not None:
        assert summary["latency_ms"]["mean"] == pytest.approx(counted.latency_ms.mean, rel=1e-6, abs=1e-6)


@given(scenarios(calm=False))
@settings(max_examples=examples(60))
def test_whatever_fails_nothing_comes_twice_and_the_counts_agree(text: str) -> None:
    summary, trace = run(text)
    assert exactly_once(trace).holds, exactly_once(trace)
    check_counts(summary, trace)


@given(scenarios(calm=True))
@settings(max_examples=examples(60))
def test_where_nothing_fails_everything_that_is_owed_comes(text: str) -> None:
    summary, trace = run(text)
    assert exactly_once(trace).holds, exactly_once(trace)
    assert gap_free(trace, strict_end=True).holds, gap_free(trace, strict_end=True)
    assert summary["delivery_ratio"] == 1.0
    check_counts(summary, trace)
