"""What a recorder takes: runs as they came, cut where a batch ends, every event counted once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

import tidings
from archive_events import as_batch, facts
from recording_network import guaranteed_broker, numbers, play, recording, running
from tidings.core.errors import WireError
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival, Run, RunMaker, decode_stretch
from tidings.core.events.subscription import Subscription
from tidings.recording.intake import Intake
from tidings.recording.marks import Marks
from tidings.recording.recorder import Recorder
from tidings.storage.archive import Archive, ArchiveReader, events_of

BAD_EVENTS: list[Any] = [
    7,
    ("s", 0, 2),
    ("", 0, 2, "/a", 1, {}, b""),
    ("s", -1, 2, "/a", 1, {}, b""),
    ("s", 0, 2, None, 1, {}, b""),
    ("s", 0, 2, "/a", 1, {"a": [1]}, b""),
    ("s", 0, 2, "/a", 1, {"topic": "x"}, b""),
    ("s", 0, 2, "/a", 1, {"a": 2**64 - 1}, b""),
    ("s", 0, 2, "/a", 1, {"": 1}, b""),
    ("s", 0, 2, "/a", 1, {}, "text"),
]


def no_complaint(error: WireError) -> None:
    raise AssertionError(error)


def events_in(came: list[Event | Arrival]) -> list[Event]:
    return [
        event for one in came for event in ([one] if isinstance(one, Event) else one.events(no_complaint))
    ]


@given(
    st.lists(st.integers(1, 9), max_size=8),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.booleans(),
)
def test_an_intake_gives_every_event_once_in_batches_of_any_size(
    sizes: list[int], limits: list[int], late: bool
) -> None:
    async def main() -> None:
        bus = tidings.embedded(brokers=1)
        intake = Intake(bus, Subscription("s", ("/t",)), 1_000)
        maker, published = RunMaker("p", 0), sum(sizes)
        sequence = 0
        for size in sizes:
            for _ in range(size):
                sequence += 1
                maker.add(sequence, "/t", {"n": sequence}, b"", 0)
            for stretch in maker.take_all():
                if isinstance(stretch, Run):
                    intake.push_run(stretch, late=late)
                else:
                    intake.push(stretch.event())
        shown: list[int] = []
        marks = Marks()
        while len(intake):
            limit = limits[len(shown) % len(limits)]
            came = intake.take(limit)
            events = events_in(came)
            assert len(events) == sum(one.count for one in came) == min(limit, published - len(shown))
            shown += [event.sequence for event in events]
            marks.advance(came)
            assert len(intake) == published - len(shown)
            assert marks == {"0:p": shown[-1]}
        assert shown == list(range(1, published + 1))
        assert intake.take(5) == []

    asyncio.run(main())


def run_of(*events: Any) -> Run:
    """As it comes from the wire, whatever is in it."""
    body = msgspec.msgpack.encode(events)
    run = decode_stretch(Raw(msgspec.msgpack.encode(("s", 0, 1, len(events), "", body))))
    assert isinstance(run, Run)
    return run


@given(st.lists(st.integers(-3, len(BAD_EVENTS) - 1), min_size=2, max_size=6))
def test_what_cannot_be_read_back_is_left_out_of_a_run_and_told(picks: list[int]) -> None:
    good = [("s", 0, number, "/a", 1, {"n": number, "b": b"x"}, b"y") for number in range(1, 7)]
    run = run_of(*[good[place] if pick < 0 else BAD_EVENTS[pick] for place, pick in enumerate(picks)])
    told: list[WireError] = []
    batch = as_batch(0, [Arrival(run)], 1, told.append)
    expected = [Event(*good[place]) for place, pick in enumerate(picks) if pick < 0]
    assert [facts(event) for event in events_of(batch)] == [facts(event) for event in expected]
    assert len(told) == len(picks) - len(expected)
    assert all("cannot be archived" in str(error) and "\n" not in str(error) for error in told)


def test_a_run_that_is_not_what_it_says_is_left_out_as_a_whole(tmp_path: Path) -> None:
    event = ("s", 0, 1, "/a", 1, {}, b"")
    told: list[WireError] = []
    lie = decode_stretch(
        Raw(msgspec.msgpack.encode(("s", 0, 1, 3, "", msgspec.msgpack.encode([event, event]))))
    )
    with Archive.open(tmp_path) as archive, ArchiveReader(tmp_path) as reader:
        archive.append([Arrival(lie), Arrival(run_of(event, event))], 1, leave_out=told.append)
        assert reader.bounds() == (0, 2)
        assert reader.verify() == []
    assert ["has 2 events, not 3" in str(error) for error in told] == [True]


def test_a_recorder_notes_what_it_could_not_read_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [("s", 0, number, "/a", 1, {"number": number}, b"") for number in range(1, 4)]

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            recorded = asyncio.Event()
            recorder = Recorder(url, tmp_path / "archive", "/a", on_recorded=recorded.set)
            async with recording(recorder):
                assert recorder._intake is not None
                recorder._intake.push_run(run_of(events[0], BAD_EVENTS[5], events[2]))
                await recorded.wait()

    play(main)
    assert numbers(tmp_path / "archive") == [1, 3]
    with ArchiveReader(tmp_path / "archive") as reader:
        ((offset, reason, missing),) = [(gap.offset, gap.reason, gap.missing) for gap in reader.gaps()]
    assert (offset, missing) == (2, 1) and "cannot be archived" in reason
    assert "cannot be archived" in caplog.text
