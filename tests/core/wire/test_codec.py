"""Every message survives the wire, and no bytes whatever do more than raise WireError."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core import messages
from tidings.core.errors import WireError
from tidings.core.events.event import MAX_EVENT_BYTES, Publication, make_publication
from tidings.core.messages import Hello, Message, Notify, StatusRequest, Subscribe, WireMessage
from tidings.core.ordering import messages as ordering_messages
from tidings.core.overlay import messages as forwarding
from tidings.core.overlay.epidemic import messages as recovery_messages
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.guaranteed import messages as guaranteed
from tidings.core.overlay.guaranteed import share_messages
from tidings.core.overlay.messages import Changes
from tidings.core.overlay.peers import messages as peer_messages
from tidings.core.wire import archive_messages
from tidings.core.wire.codec import (
    CARRIERS,
    MAX_EVENTS_PER_FRAME,
    decode,
    encode,
    encode_notifications,
    encode_publications,
    encoded_size,
    message_classes,
)
from tidings.core.wire.frames import MAX_FRAME_BYTES

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
SCALARS |= st.binary(max_size=20)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for a field of a message, its limits respected."""
    least, most = 0, 5
    if get_origin(hint) is Annotated:
        meta = next(item for item in get_args(hint) if isinstance(item, msgspec.Meta))
        least, most = meta.min_length or 0, min(meta.max_length or 5, 40)
        if meta.ge is not None:
            return st.integers(meta.ge, 2**63 - 1 if meta.le is None else meta.le)
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple and get_args(hint)[-1] is not Ellipsis:
        return st.tuples(*map(values_of, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), min_size=least, max_size=5).map(tuple)
    if get_origin(hint) in (UnionType, Union):
        return st.one_of([values_of(arm) for arm in get_args(hint)])
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, SCALARS, max_size=5)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, WireMessage):
        return messages_of(hint)
    by_type: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 2**63 - 1),
        bool: st.booleans(),
        bytes: st.binary(min_size=least, max_size=max(least, most)),
        str: st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=most),
        type(None): st.none(),
    }
    return by_type[hint]


NAMES = {
    name: value
    for module in (
        messages,
        forwarding,
        guaranteed,
        share_messages,
        recovery_messages,
        peer_messages,
        ordering_messages,
        archive_messages,
    )
    for name, value in vars(module).items()
}
"""Of the modules that have messages."""


def messages_of(cls: type[WireMessage]) -> st.SearchStrategy[WireMessage]:
    hints = get_type_hints(cls, NAMES, include_extras=True)
    return st.builds(cls, **{name: values_of(hints[name]) for name in cls.__struct_fields__})


@st.composite
def publications(draw: st.DrawFn) -> Publication:
    names = TEXT.filter(lambda name: name not in ("", "topic") and not name.startswith("~"))
    return make_publication(
        source=draw(TEXT.filter(bool)),
        incarnation=draw(st.integers(0, 2**63 - 1)),
        sequence=draw(st.integers(0, 2**63 - 1)),
        topic=draw(st.sampled_from(["/a", "/news/bbc", "/x/y/z"])),
        attributes=draw(st.dictionaries(names, SCALARS, max_size=5)),
        payload=draw(st.binary(max_size=50)),
        published_at=draw(st.integers(0, 2**63 - 1)),
    )


def same_publication(left: Publication, right: Publication) -> bool:
    return bytes(left.raw) == bytes(right.raw) and left.id == right.id and left.event() == right.event()


def one_of_each() -> list[Message]:
    publication = make_publication("p", 0, 1, "/a", {"x": 1, "y": "two"}, b"payload", 5)
    return [
        Hello(1, "b1", "broker", "best-effort", "secret"),
        Changes(1, 2, 3, (forwarding.AddInterest(b"k" * 16, ("/a",), "x > 1"), forwarding.TableSent())),
        Subscribe("s", ("/a/**",), None, "none"),
        publication,
        Notify(("s", "t"), publication),
    ]


def test_every_message_class_travels_as_itself() -> None:
    named = {value for value in NAMES.values() if isinstance(value, type)}
    expected = {cls for cls in named if issubclass(cls, WireMessage)} - {WireMessage, *CARRIERS}
    assert set(message_classes()) == expected
    tags = [cls.__struct_config__.tag for cls in message_classes()]
    assert len(set(tags)) == len(tags)
    assert not {64, 65, 66, 67, 68, 69, 201, 206} & set(tags)


@pytest.mark.parametrize("cls", message_classes(), ids=lambda cls: cls.__name__)
def test_round_trip(cls: type[WireMessage]) -> None:
    @settings(max_examples=examples(30))
    @given(messages_of(cls))
    def check(message: WireMessage) -> None:
        body = encode(message)
        assert list(decode(body)) == [message]
        if cls is Fragment:  # asked for so often that it is estimated
            assert abs(encoded_size(message) - len(body)) <= 64 + 40 * len(message.route + message.numbers)
        else:
            assert encoded_size(message) == len(body)

    check()


@settings(max_examples=examples(60))
@given(publications(), st.lists(TEXT.filter(bool), max_size=3).map(tuple), st.integers(0, 2**63 - 1))
def test_messages_with_an_event_inside_carry_it_unchanged(
    publication: Publication, excluded: tuple[str, ...], stamp: int
) -> None:
    forward = guaranteed.Forward("b1", (0, 1), 7, stamp, excluded, publication)
    (back,) = decode(encode(forward))
    assert isinstance(back, guaranteed.Forward)
    assert same_publication(back.stretch, publication)
    assert (back.origin, back.label, back.generation) == ("b1", (0, 1), 7)
    assert (back.stamp, back.excluded) == (stamp, excluded)
    carried = Carried("b1", ((b"p" * 8, 3, stamp),), excluded, "push", publication)
    (carried_back,) = decode(encode(carried))
    assert isinstance(carried_back, Carried)
    assert bytes(carried_back.stretch.raw) == bytes(publication.raw)
    assert (carried_back.origin, carried_back.numbers, carried_back.route, carried_back.by) == (
        "b1",
        ((b"p" * 8, 3, stamp),),
        excluded,
        "push",
    )
    stamped = guaranteed.Stamped(7, stamp, publication)
    (given_back,) = decode(encode(stamped))
    assert isinstance(given_back, guaranteed.Stamped)
    assert same_publication(given_back.stretch, publication)
    assert (given_back.generation, given_back.stamp) == (7, stamp)


def test_messages_are_relayed_whole_and_not_twice() -> None:
    for message in one_of_each():
        (back,) = decode(encode(guaranteed.Relayed("b3", 4, message)))
        assert isinstance(back, guaranteed.Relayed)
        assert (back.peer, back.serial) == ("b3", 4)
        assert encode(back.message) == encode(message)
    twice = guaranteed.Relayed("b3", 4, guaranteed.Relayed("b2", 1, Hello(1, "b1", "broker")))
    with pytest.raises(WireError, match="a relayed message or a datagram inside a message"):
        decode(encode(twice))


@pytest.mark.parametrize("around", [guaranteed.Relayed, peer_messages.Packet])
def test_messages_inside_each_other_are_rejected_however_many(around: type) -> None:
    body = encode(Hello(1, "b1", "broker"))
    for _ in range(3_000):
        body = (
            msgspec.msgpack.encode((68, "b", 1, body))
            if around is guaranteed.Relayed
            else msgspec.msgpack.encode((201, 1, 1, 1, (), 1, 1, (body,)))
        )
    with pytest.raises(WireError, match="inside a message"):
        decode(body)


@settings(max_examples=examples(60))
@given(st.lists(publications(), min_size=1, max_size=5))
def test_publications_are_forwarded_unchanged(batch: list[Publication]) -> None:
    body = encode_publications([publication.raw for publication in batch])
    back: Sequence[Any] = decode(memoryview(body))
    assert len(back) == len(batch)
    assert all(map(same_publication, batch, back))
    assert encode_publications([publication.raw for publication in back]) == body


@settings(max_examples=examples(60))
@given(st.lists(publications(), min_size=1, max_size=5), st.lists(TEXT.filter(bool), min_size=1, max_size=3))
def test_notifications_of_the_same_subscriptions_travel_together(
    batch: list[Publication], names: list[str]
) -> None:
    subscriptions = tuple(names)
    back = decode(encode_notifications(subscriptions, [publication.raw for publication in batch]))
    assert len(back) == len(batch)
    for sent, got in zip(batch, back, strict=True):
        assert isinstance(got, Notify)
        assert got.subscriptions == subscriptions
        assert same_publication(sent, got.stretch)


@settings(max_examples=examples(60))
@given(publications(), st.lists(TEXT.filter(bool), min_size=1, max_size=3))
def test_encoded_size_of_events_is_close(publication: Publication, names: list[str]) -> None:
    """Close to what it adds to a batch: the names of the subscriptions are there once for all."""
    names_bytes = sum(len(name.encode()) + 2 for name in names)
    assert abs(encoded_size(publication) - len(encode(publication))) <= 8
    exact = len(encode(Notify(tuple(names), publication)))
    assert exact - names_bytes - 8 <= encoded_size(Notify(tuple(names), publication)) <= exact + 8


def test_a_longer_message_of_a_later_version_is_understood() -> None:
    later = msgspec.msgpack.encode([1, 9, "b7", "broker", "best-effort", "", "new field", {"and": ["more"]}])
    assert list(decode(later)) == [Hello(9, "b7", "broker", "best-effort")]


def test_bytes_after_the_message_are_an_error() -> None:
    with pytest.raises(WireError):
        decode(encode(StatusRequest()) + b"\x00")


def test_a_notify_travels_only_as_a_batch() -> None:
    publication = make_publication("p", 0, 1, "/a", {}, b"", 0)
    with pytest.raises(WireError):
        decode(msgspec.msgpack.encode(Notify(("s",), publication)))


def test_batches_have_limits() -> None:
    raw = make_publication("p", 0, 1, "/a", {}, b"", 0).raw
    assert len(decode(encode_publications([raw] * MAX_EVENTS_PER_FRAME))) == MAX_EVENTS_PER_FRAME
    for body in (
        encode_publications([raw] * (MAX_EVENTS_PER_FRAME + 1)),
        encode_publications([]),
        encode_notifications((), [raw]),
        encode_notifications(("",), [raw]),
        b"",
    ):
        with pytest.raises(WireError):
            decode(body)


def test_an_event_above_the_limit_is_refused_by_name() -> None:
    big = msgspec.msgpack.encode(["p", 0, 7, "/a", 0, {}, b"x" * MAX_EVENT_BYTES])
    with pytest.raises(WireError, match=r"p:7 has .* the limit is 1048576"):
        decode(encode_publications([msgspec.Raw(big)]))
    with pytest.raises(WireError, match=str(MAX_FRAME_BYTES)):
        decode(bytes(MAX_FRAME_BYTES + 1))


# --- Anything at all may come


def survives(body: bytes) -> None:
    try:
        found = decode(body)
    except WireError:
        return
    for message in found:
        publication = message.stretch if isinstance(message, Notify) else message
        if isinstance(publication, Publication):
            for look in (publication.attributes, publication.event):
                with suppress(WireError):
                    look()


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    survives(body)


@settings(max_examples=examples(300))
@given(st.integers(1, 70), st.binary(max_size=60))
def test_random_fields_behind_a_tag(tag: int, rest: bytes) -> None:
    for count in range(2, 6):
        survives(bytes((0x90 + count, tag)) + rest)


@settings(max_examples=examples(400))
@given(
    st.sampled_from([encode(message) for message in one_of_each()]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_messages(body: bytes, changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(body)
    for position, value in changes:
        mutated[position % len(mutated)] = value
    survives(bytes(mutated))


def test_every_prefix_is_refused() -> None:
    for message in one_of_each():
        body = encode(message)
        for length in range(len(body)):
            with pytest.raises(WireError):
                decode(body[:length])


def nasty_bodies() -> dict[str, bytes]:
    huge_array, huge_map = b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"
    huge_text, huge_bytes = b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"
    return {
        "array of messages": huge_array,
        "array behind a tag": b"\x92\x40" + huge_array,
        "publications": b"\xdd\xff\xff\xff\xff\x40" + b"\x91\xc0",
        "subscriptions": b"\x93\x41" + huge_array,
        "topics": b"\x95\x14\xa1a" + huge_array,
        "changes": b"\x95\x0f\x01\x01\x01" + huge_array,
        "one event": b"\x92\x40\x91" + huge_array,
        "attributes": b"\x92\x40\x91\x97\xa1p\x00\x01\xa2/a\x00" + huge_map,
        "text": b"\x92\x03" + huge_text,
        "key": b"\x92\x0c" + huge_bytes,
        "extension": b"\x92\x03\xc9\xff\xff\xff\xff\x01",
        "deep arrays in an event": b"\x92\x40\x91" + b"\x91" * 1_000_000,
        "deep maps in an event": b"\x92\x40\x91" + b"\x81\x01" * 1_000_000,
        "deep field that is skipped": b"\x93\x0e\xc0" + b"\x91" * 1_000_000,
        "deep attributes": b"\x92\x40\x91\x97\xa1p\x00\x01\xa2/a\x00\x81\xa1x"
        + b"\x91" * 500_000
        + b"\xc4\x00",
        "bad text": b"\x92\x03\xa2\xff\xfe",
        "never used": b"\xc1" * 50,
        "number above 64 bits": b"\x92\x04\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    }


@pytest.mark.parametrize("name", nasty_bodies())
@pytest.mark.timeout(60)  # a guard against blow-up, far above what it takes
def test_absurd_claims_cost_nothing(name: str) -> None:
    body = nasty_bodies()[name]
    survives(body)  # what is allocated once, at the first use, is not counted
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000
