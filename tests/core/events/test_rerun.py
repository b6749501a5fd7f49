"""Runs made again of decoded events have the same events, in the same order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.event import Event, give_payload
from tidings.core.events.payload import TypedPayload
from tidings.core.events.rerun import runs_of
from tidings.core.events.run import singles

ids = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 9))


@given(
    st.lists(st.tuples(ids, st.sampled_from(("/t", "/u")), st.binary(max_size=3), st.booleans()), max_size=12)
)
@settings(max_examples=examples(200))
def test_the_same_events(drawn: list[tuple[tuple[str, int, int], str, bytes, bool]]) -> None:
    events = []
    for number, ((source, incarnation, sequence), topic, payload, typed) in enumerate(drawn):
        event = Event(source, incarnation, sequence, topic, number, {"n": number, "x": "\ufeff"}, payload)
        if typed:
            give_payload(event, TypedPayload(payload, "text/plain", 10**18, "/r", "q"))
        events.append(event)
    runs = runs_of(events)
    again = [publication.event() for run in runs for publication in singles(run)]
    assert again == events
    assert [each.payload_item for each in again] == [each.payload_item for each in events]
    for run in runs:
        assert run.count == run.last - run.first + 1


def test_large_events_and_long_runs() -> None:
    events = [Event("a", 0, n, "/t", n, {}, bytes(1_000 if n % 100 else 60_000)) for n in range(1, 500)]
    again = [publication.event() for run in runs_of(events) for publication in singles(run)]
    assert again == events
    assert runs_of([]) == []
