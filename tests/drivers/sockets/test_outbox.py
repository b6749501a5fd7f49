"""What goes into an outbox comes out in order, batched and bounded, and nothing is left out silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.event import Publication, make_publication
from tidings.core.messages import Confirm, Dropped, Message, Notify, Ping, Subscribed
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.guaranteed.messages import Forward, Passed, Relayed, Stamped
from tidings.core.wire.codec import MAX_EVENTS_PER_FRAME, decode, encode
from tidings.core.wire.frames import FrameReader
from tidings.drivers.sockets.outbox import (
    BATCH_BYTES,
    DATAGRAM_EVENT_BYTES,
    DATAGRAM_MAX_BYTES,
    MAX_UNHURRIED,
    SHARED_BYTES,
    DatagramOutbox,
    Outbox,
    Policy,
    StreamOutbox,
)

SUBSCRIPTIONS = (("s",), ("s", "t"))
ANSWERS = (Confirm, Passed)
"""What may move behind events."""


def publication(sequence: int, size_bytes: int = 10) -> Publication:
    return make_publication("p", 0, sequence, "/a", {}, bytes(size_bytes), 0)


def bodies_of(outbox: Outbox) -> list[bytes]:
    outbox.finish_turn()
    reader = FrameReader()
    found: list[bytes] = []
    while chunks := outbox.take():
        if isinstance(outbox, DatagramOutbox):
            found += map(bytes, chunks)
        else:
            found += [bytes(body) for body in reader.feed(b"".join(chunks))]
    reader.eof()
    assert outbox.size_bytes == 0
    return found


def messages_of(outbox: Outbox) -> list[Message]:
    return [message for body in bodies_of(outbox) for message in decode(body)]


def plain(message: Message) -> Any:
    """Something that compares by value."""
    if isinstance(message, Publication):
        return ("publication", message.sequence)
    if isinstance(message, Notify):
        return (
            "notify",
            message.subscriptions,
            message.stretch.sequence,
            *([message.by] if message.by else []),
        )
    if isinstance(message, Carried):
        return ("carried", message.origin, message.numbers, message.by, message.stretch.first)
    if isinstance(message, Forward):
        shared = (message.origin, message.label, message.generation, message.stamp, message.excluded)
        return ("forward", *shared, message.stretch.first)
    if isinstance(message, Stamped):
        return ("stamped", message.generation, message.stamp, message.stretch.first)
    if isinstance(message, Relayed):
        return ("relayed", message.peer, message.serial, plain(message.message))
    return message


def carried(number: int, by: str = "", size_bytes: int = 10) -> Carried:
    return Carried("b0", ((b"8 bytes.", 3, number),), (), by, publication(number, size_bytes))


def fragment(number: int, attributes: bytes = b"\x80") -> Fragment:
    header = ("p", 0, number, "/a", 0, attributes, 2_000, b"8 bytes.", 1_000)
    return Fragment("b0", (), (), "", *header, 0, b"", 1, bytes(1_000), 0)


def forward(number: int, stamp: int = 1, excluded: tuple[str, ...] = ()) -> Forward:
    return Forward("b0", (0, 1), 5, stamp, excluded, publication(number))


@st.composite
def sequences(draw: st.DrawFn) -> list[Message]:
    kinds = draw(st.lists(st.sampled_from("pntbkcgsfxzyar"), max_size=60))
    made: list[Message] = []
    for number, kind in enumerate(kinds, start=1):
        by_kind = {
            "p": lambda n: publication(n, draw(st.sampled_from((1, 500, 20_000)))),
            "n": lambda n: Notify(SUBSCRIPTIONS[0], publication(n)),
            "t": lambda n: Notify(SUBSCRIPTIONS[1], publication(n)),
            "b": lambda n: Notify(
                SUBSCRIPTIONS[0], publication(n), draw(st.sampled_from(("push", "combined")))
            ),
            "k": lambda n: carried(n, draw(st.sampled_from(("", "push")))),
            "c": lambda n: Confirm(draw(st.sampled_from((7, 8))), n, n, draw(st.booleans())),
            "f": lambda n: forward(n, draw(st.integers(1, 2))),
            "x": lambda n: forward(n, 1, draw(st.sampled_from((("r",), ("r", "q"))))),
            "z": lambda n: Stamped(5, draw(st.integers(1, 2)), publication(n)),
            "y": lambda n: Relayed("b9", 3, draw(st.sampled_from((Ping(n), forward(n))))),
            "a": lambda n: Passed(((n, n),)),
            "r": lambda n: Passed(((n, n), (n + 100, n + 102))),
            "g": Ping,
            "s": lambda n: Subscribed(f"s{n}"),
        }
        made.append(by_kind[kind](number))
    return made


@pytest.mark.parametrize("kind", [StreamOutbox, DatagramOutbox])
def test_order_is_kept(kind: type[Outbox]) -> None:
    @settings(max_examples=examples(100))
    @given(sequences(), st.sets(st.integers(0, 60)))
    def check(sent: list[Message], turns: set[int]) -> None:
        outbox = kind()
        for number, message in enumerate(sent):
            outbox.add(message)
            if number in turns:
                outbox.finish_turn()
        got = messages_of(outbox)
        assert [plain(message) for message in got if not isinstance(message, ANSWERS)] == [
            plain(message) for message in sent if not isinstance(message, ANSWERS)
        ]
        check_confirms(sent, got)
        assert counts_of(got) == counts_of(sent)
        for index, message in enumerate(got):
            if isinstance(message, Ping | Subscribed):  # what was passed before it was said before it
                assert counts_of(got[:index]) == counts_of(sent[: sent.index(message)])

    check()


def counts_of(messages: list[Message]) -> list[int]:
    return [
        number
        for message in messages
        if isinstance(message, Passed)
        for first, last in message.ranges
        for number in range(first, last + 1)
    ]


def check_confirms(sent: list[Message], got: list[Message]) -> None:
    """The same numbers in the same order; none overtakes a message that is not an event, none comes early."""

    def numbers(messages: list[Message]) -> list[tuple[int, bool, int]]:
        ranges = [message for message in messages if isinstance(message, Confirm)]
        return [(c.incarnation, c.kept, number) for c in ranges for number in range(c.first, c.last + 1)]

    assert numbers(got) == numbers(sent)
    for index, message in enumerate(got):
        if isinstance(message, Ping | Subscribed):
            at = sent.index(message)
            assert numbers(got[:index]) == numbers(sent[:at])
        elif isinstance(message, Confirm):
            ahead = {plain(m) for m in got[:index]}
            last = next(i for i, m in enumerate(sent) if isinstance(m, Confirm) and m.last == message.last)
            assert all(plain(m) in ahead for m in sent[:last] if not isinstance(m, ANSWERS))


def test_a_turn_of_publications_is_one_body() -> None:
    outbox = StreamOutbox()
    for number in range(100):
        outbox.add(publication(number))
    assert len(bodies_of(outbox)) == 1


def test_confirmations_pass_notifications_and_become_one_range() -> None:
    outbox = StreamOutbox()
    for number in range(1, 51):
        outbox.add(Confirm(3, number, number))
        outbox.add(Notify(SUBSCRIPTIONS[0], publication(number)))
    bodies = bodies_of(outbox)
    assert len(bodies) == 2
    assert list(decode(bodies[1])) == [Confirm(3, 1, 50)]


@pytest.mark.parametrize(
    ("first", "second"),
    [((3, 1, False), (3, 3, False)), ((3, 1, False), (4, 2, False)), ((3, 1, True), (3, 2, False))],
)
def test_confirmations_that_do_not_meet_stay_apart(
    first: tuple[int, int, bool], second: tuple[int, int, bool]
) -> None:
    outbox = StreamOutbox()
    sent = [Confirm(incarnation, number, number, kept) for incarnation, number, kept in (first, second)]
    for confirm in sent:
        outbox.add(confirm)
    assert messages_of(outbox) == sent


def test_what_a_broker_forwards_is_one_body_with_what_it_has_passed() -> None:
    outbox = StreamOutbox()
    for number in range(1, 51):
        outbox.add(Passed(((number, number),)))
        outbox.add(forward(number))
    bodies = bodies_of(outbox)
    assert len(bodies) == 2
    assert list(decode(bodies[1])) == [Passed(((1, 50),))]
    for number in range(1, 51):
        outbox.add(Stamped(5, 1 + number // 30, publication(number)))
    assert len(bodies_of(outbox)) == 2


def test_a_lossless_outbox_leaves_nothing_out() -> None:
    outbox = StreamOutbox(Policy(1_000, drops_publications=False, drops_notifications=False))
    for number in range(1, 301):
        outbox.add(Notify(SUBSCRIPTIONS[0], publication(number, 5_000)))
        outbox.add(forward(number))
    assert outbox.overfull
    assert len(messages_of(outbox)) == 600
    assert outbox.dropped == 0


def test_batches_stay_within_what_a_reader_takes() -> None:
    outbox = StreamOutbox()
    for number in range(20_000):
        outbox.add(publication(number % 100, 0))
    bodies = bodies_of(outbox)
    assert max(len(decode(body)) for body in bodies) <= MAX_EVENTS_PER_FRAME
    assert max(map(len, bodies)) <= BATCH_BYTES + 16
    assert len(bodies) < 20


@pytest.mark.parametrize("kind", [StreamOutbox, DatagramOutbox])
def test_a_full_buffer_drops_events_and_says_how_many(kind: type[Outbox]) -> None:
    outbox = kind(Policy(limit_bytes=200_000))
    for number in range(3_000):
        outbox.add(Notify(SUBSCRIPTIONS[0], publication(number, 1000)))
    assert outbox.size_bytes <= 200_000 + 2 * BATCH_BYTES
    got = messages_of(outbox)
    assert got[-1] == Dropped(3_000 - (len(got) - 1))
    assert outbox.dropped == 3_000 - (len(got) - 1) > 0
    assert [plain(message) for message in got[:-1]] == [
        ("notify", SUBSCRIPTIONS[0], number) for number in range(len(got) - 1)
    ]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3)), max_size=20))
def test_drops_are_reported_in_their_place(steps: list[tuple[int, int]]) -> None:
    """Whatever is sent and taken in between: every number arrives or is within the next `Dropped`."""
    outbox = StreamOutbox(Policy(limit_bytes=100_000))
    reader = FrameReader()
    got: list[Message] = []
    number = 0
    for count, chunks in steps:
        for _ in range(count):
            number += 1
            outbox.add(Notify(SUBSCRIPTIONS[0], publication(number, 2000)))
        outbox.finish_turn()
        for _ in range(chunks):
            for body in reader.feed(b"".join(outbox.take())):
                got += decode(body)
    got += messages_of(outbox)
    expected = 1
    for message in got:
        if isinstance(message, Dropped):
            expected += message.count
        else:
            assert isinstance(message, Notify)
            assert message.stretch.sequence == expected
            expected += 1
    assert expected == number + 1


def test_control_is_never_dropped_but_makes_the_outbox_overfull() -> None:
    outbox = StreamOutbox(Policy(limit_bytes=1_000))
    for number in range(1, 1_000):
        outbox.add(Ping(number))
    assert outbox.overfull
    assert len(messages_of(outbox)) == 999


def test_publications_that_must_not_be_dropped_are_not() -> None:
    outbox = StreamOutbox(Policy(limit_bytes=1_000, drops_publications=False))
    for number in range(100):
        outbox.add(publication(number, 1000))
    outbox.finish_turn()
    assert outbox.overfull
    assert outbox.dropped == 0
    assert len(messages_of(outbox)) == 100


def test_what_is_not_sent_is_told() -> None:
    told: list[tuple[int, str]] = []
    policy = Policy(100, reports_drops=False, on_unsent=lambda p, reason: told.append((p.sequence, reason)))
    outbox = StreamOutbox(policy)
    for number in range(3):
        outbox.add(publication(number, 60_000))
    assert [sequence for sequence, _ in told] == [1, 2]
    assert [plain(message) for message in messages_of(outbox)] == [("publication", 0)]


def test_datagrams_carry_the_largest_event_and_name_the_limit_for_a_larger_one() -> None:
    told: list[str] = []
    outbox = DatagramOutbox(Policy(on_unsent=lambda p, reason: told.append(reason), reports_drops=False))
    overhead = publication(1, 60_000).size_bytes - 60_000
    outbox.add(publication(1, DATAGRAM_EVENT_BYTES - overhead))
    outbox.add(publication(2, DATAGRAM_EVENT_BYTES - overhead + 1))
    assert [plain(message) for message in messages_of(outbox)] == [("publication", 1)]
    assert told == ["the event has 60001 bytes; UDP carries at most 60000"]


def test_the_owner_is_woken_once_a_turn_also_if_all_was_left_out() -> None:
    outbox = DatagramOutbox()
    woken: list[str] = []
    outbox.on_waiting = lambda: woken.append("up")
    for number in range(3):
        outbox.add(Notify(SUBSCRIPTIONS[0], publication(number, 70_000)))
    assert woken == ["up"]
    assert messages_of(outbox) == [Dropped(3)]
    for message in (Ping(1), Confirm(0, 1, 1), publication(4)):
        outbox.add(message)
        assert messages_of(outbox) != []
    assert woken == ["up"] * 4


def test_a_notification_of_many_subscriptions_fits_into_datagrams() -> None:
    names = tuple(f"{number:0250d}" for number in range(300))
    outbox = DatagramOutbox()
    for number in range(3):
        outbox.add(Notify(names, publication(number, 50_000)))
    bodies = bodies_of(outbox)
    assert max(map(len, bodies)) <= DATAGRAM_MAX_BYTES
    assert outbox.oversize == 0
    told: dict[int, list[str]] = {}
    for body in bodies:
        for message in decode(body):
            assert isinstance(message, Notify)
            told.setdefault(message.stretch.sequence, []).extend(message.subscriptions)
    assert told == {0: list(names), 1: list(names), 2: list(names)}


def test_events_do_not_pin_the_buffer_they_were_read_from() -> None:
    """Encoded by the end of the turn: what waits for a slow peer holds its own bytes only."""
    raws = StreamOutbox()
    for number in range(200):
        raws.add(publication(number))
    outbox = StreamOutbox()
    for event in messages_of(raws):
        outbox.add(event)
        outbox.finish_turn()
    assert outbox._raws == []
    assert sum(map(len, outbox.chunks)) == outbox.size_bytes


LOSSLESS = Policy(drops_publications=False, drops_notifications=False)


def test_a_large_encoding_is_shared_by_all_sessions_that_it_goes_to() -> None:
    event = publication(1, 40_000)
    outboxes = [StreamOutbox(LOSSLESS) for _ in range(3)]
    for number, outbox in enumerate(outboxes):
        outbox.add(Notify((f"s{number}",), event))
        outbox.finish_turn()
        (view,) = [chunk for chunk in outbox.chunks if isinstance(chunk, memoryview)]
        assert view == memoryview(event.raw)
        assert sum(len(chunk) for chunk in outbox.chunks) - len(view) < 100
    for number, outbox in enumerate(outboxes):
        (got,) = messages_of(outbox)
        assert isinstance(got, Notify)
        assert (got.subscriptions, got.stretch.raw) == ((f"s{number}",), event.raw)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.sampled_from((0, 10, SHARED_BYTES - 1, SHARED_BYTES, 60_000)), st.booleans()
        ),
        max_size=30,
    )
)
def test_shared_encodings_and_small_messages_keep_their_order(steps: list[tuple[int, int, bool]]) -> None:
    """As if all were copied: a lossless outbox writes the very bytes that another writes."""
    shared, copied = StreamOutbox(LOSSLESS), StreamOutbox(Policy(limit_bytes=2**40))
    for number, (kind, size_bytes, ends_turn) in enumerate(steps):
        event = publication(number, size_bytes)
        by = "\u00c0 push" if number % 2 else ""
        message = (
            event,
            Notify(SUBSCRIPTIONS[0], event, by),
            Forward("b0", (0,), 0xC0C0, 0xC0, ("b1",), event),
            Stamped(0xC0, 0xC0C0, event),
            Ping(0xC0),
        )[kind]
        for outbox in (shared, copied):
            outbox.add(message)
            if ends_turn:
                outbox.finish_turn()
    assert bodies_of(shared) == bodies_of(copied)


# --- What was recovered, and what recovery carries


@pytest.mark.parametrize("kind", [StreamOutbox, DatagramOutbox])
def test_notifications_share_a_batch_if_they_came_the_same_way(kind: type[Outbox]) -> None:
    outbox = kind()
    for number, by in enumerate(("", "", "push", "push", "push", "combined", "", "")):
        outbox.add(Notify(("s", "t"), publication(number), by))
    bodies = bodies_of(outbox)
    batches = [[plain(message)[2:] for message in decode(body)] for body in bodies]
    assert batches == [
        [(0,), (1,)],
        [(2, "push"), (3, "push"), (4, "push")],
        [(5, "combined")],
        [(6,), (7,)],
    ]
    assert bodies[1] != bodies[0]


def test_many_recovered_subscriptions_leave_room_for_the_event_in_a_datagram() -> None:
    outbox = DatagramOutbox()
    names = tuple(f"subscription {number} {'x' * 200}" for number in range(100))
    outbox.add(Notify(names, publication(1, DATAGRAM_EVENT_BYTES - 100), "push"))
    got = messages_of(outbox)
    assert len(got) > 1
    assert all(isinstance(message, Notify) and message.by == "push" for message in got)
    assert tuple(name for message in got for name in message.subscriptions) == names  # type: ignore[union-attr]


@pytest.mark.parametrize("message", [carried(1), carried(2, "push", 3_000), fragment(3)])
def test_what_recovery_carries_is_encoded_as_the_codec_does(message: Message) -> None:
    outbox = DatagramOutbox()
    outbox.add(message)
    assert bodies_of(outbox) == [encode(message)]


def test_what_fits_into_no_datagram_is_counted_and_stops_nothing() -> None:
    outbox = DatagramOutbox()
    outbox.add(fragment(1, bytes(DATAGRAM_MAX_BYTES)))
    outbox.add(carried(2, "", DATAGRAM_MAX_BYTES))
    outbox.add(carried(3))
    assert [plain(message)[-1] for message in messages_of(outbox)] == [3]
    assert outbox.oversize == 2


def test_events_and_blocks_are_left_out_where_too_much_waits_and_words_are_not() -> None:
    outbox = DatagramOutbox(Policy(limit_bytes=5_000))
    for number in range(20):
        outbox.add(carried(number, "", 1_000) if number % 2 else fragment(number))
    outbox.add(Ping(1))
    assert outbox.size_bytes < 7_000
    assert outbox.dropped > 10
    got = messages_of(outbox)
    assert len(got) + outbox.dropped == 21
    assert got[-1] == Ping(1)


# --- Confirmations that nobody waits for


class Turns:
    """An outbox that counts how often it asks to be flushed, at the end of the turn or some time."""

    def __init__(self) -> None:
        self.outbox = StreamOutbox()
        self.soon = self.late = 0
        self.outbox.on_waiting = self._soon
        self.outbox.on_late = self._late

    def _soon(self) -> None:
        self.soon += 1

    def _late(self) -> None:
        self.late += 1

    def confirm(self, sequence: int, *, late: bool) -> None:
        if late:
            self.outbox.confirm_late(sequence)
        self.outbox.add(Confirm(3, sequence, sequence))


def test_a_late_confirmation_waits_for_others() -> None:
    turns = Turns()
    turns.confirm(1, late=True)
    turns.outbox.add(Notify(SUBSCRIPTIONS[0], publication(7)))
    assert [type(message) for message in messages_of(turns.outbox)] == [Notify]
    turns.confirm(2, late=True)
    assert (turns.soon, turns.late) == (1, 2)
    assert turns.outbox.release()
    assert not turns.outbox.release()
    turns.outbox.add(Notify(SUBSCRIPTIONS[0], publication(8)))
    assert turns.soon == 2
    assert [type(message) for message in messages_of(turns.outbox)] == [Notify, Confirm]


def test_a_late_confirmation_leaves_before_what_is_no_event() -> None:
    turns = Turns()
    turns.confirm(1, late=True)
    turns.confirm(2, late=True)
    turns.outbox.add(Ping(1))
    assert turns.soon == 1
    assert messages_of(turns.outbox) == [Confirm(3, 1, 2), Ping(1)]


def test_one_that_is_confirmed_late_is_confirmed_at_once_the_second_time() -> None:
    turns = Turns()
    turns.outbox.confirm_late(1)
    turns.outbox.add(Confirm(3, 1, 1, kept=True))
    turns.outbox.add(Confirm(3, 1, 1))
    assert (turns.soon, turns.late) == (1, 1)
    assert messages_of(turns.outbox) == [Confirm(3, 1, 1, kept=True), Confirm(3, 1, 1)]


def test_only_so_many_are_confirmed_late() -> None:
    turns = Turns()
    for sequence in range(1, MAX_UNHURRIED + 2):
        turns.outbox.confirm_late(sequence)
    for sequence in range(1, MAX_UNHURRIED + 1):
        turns.outbox.add(Confirm(3, sequence, sequence))
    assert turns.soon == 0
    turns.outbox.add(Confirm(3, MAX_UNHURRIED + 1, MAX_UNHURRIED + 1))
    assert turns.soon == 1
    assert messages_of(turns.outbox) == [Confirm(3, 1, MAX_UNHURRIED + 1)]


@pytest.mark.parametrize("second", [2, 9])
def test_a_confirmation_that_is_waited_for_takes_a_late_one_along(second: int) -> None:
    turns = Turns()
    turns.confirm(1, late=True)
    turns.confirm(second, late=False)
    assert turns.soon == 1
    ranges = [Confirm(3, 1, 2)] if second == 2 else [Confirm(3, 1, 1), Confirm(3, 9, 9)]
    assert messages_of(turns.outbox) == ranges


def test_a_late_confirmation_is_not_hurried_by_the_turn() -> None:
    turns = Turns()
    turns.outbox.add(Ping(1))
    turns.confirm(1, late=True)
    assert (turns.soon, turns.late) == (1, 1)
    assert messages_of(turns.outbox) == [Ping(1)]
    turns.outbox.release()
    assert messages_of(turns.outbox) == [Confirm(3, 1, 1)]
