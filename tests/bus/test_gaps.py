"""Gaps as users see them: in a stream, in a stream without async, and as lines of `tidings sub`."""

from __future__ import annotations

import json

import pytest

import tidings
from tidings import sync
from tidings.bus.gaps import GIVEN_UP, EventsMissed, Gap, gap_of
from tidings.cli.sub import print_gap

MISSED = EventsMissed("p", 3, 7, 9)


def test_a_gap_says_in_one_line_what_is_missing_and_why() -> None:
    assert gap_of(MISSED, GIVEN_UP, 5) == Gap(GIVEN_UP, 5, 3, (MISSED,))
    assert gap_of(MISSED, GIVEN_UP, 5).text == (
        "missed 3 events: the network could not keep them (events 7 to 9 of p)"
    )
    assert Gap("why", 5, 2).text == "missed 2 events: why"
    assert Gap("why", 5, 2, (MISSED,) * 4).text.endswith(", 7 to 9 of p, ...)")


def test_sub_prints_a_line_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    gap = gap_of(MISSED, GIVEN_UP, 5)
    print_gap(gap, as_json=False)
    assert capsys.readouterr() == ("", f"tidings: {gap.text}\n")
    print_gap(gap, as_json=True)
    out, line = capsys.readouterr()
    missed = {"source": "p", "incarnation": 3, "first": 7, "last": 9}
    assert not out
    assert json.loads(line) == {"event": "gap", "reason": GIVEN_UP, "at": 5, "count": 3, "missed": [missed]}


def test_a_stream_without_async_has_its_gaps() -> None:
    with sync.embedded(brokers=1, mode="guaranteed") as bus, bus.subscribe("/a") as stream:
        assert (stream.gaps, stream.missed) == ([], 0)
        gap = gap_of(MISSED, GIVEN_UP, 5)
        stream._stream.miss(gap)
        assert (stream.gaps, stream.missed) == ([gap], 3)
        assert tidings.Gap is Gap
