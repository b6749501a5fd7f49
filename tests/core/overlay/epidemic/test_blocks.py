"""Events in blocks: round trips, coding, bad input, damage, and the bounds on what is being put together."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from breadth import examples
from tidings.core.errors import AttributeValueError, WireError
from tidings.core.events.event import MAX_EVENT_BYTES, Publication, make_publication
from tidings.core.overlay.epidemic import blocks
from tidings.core.overlay.epidemic.assemblies import Assemblies
from tidings.core.overlay.epidemic.blocks import (
    ASSEMBLY_OVERHEAD_BYTES,
    BLOCK_OVERHEAD_BYTES,
    MAX_GENERATION_BLOCKS,
    MAX_INLINE_ATTRIBUTES_BYTES,
    Assembly,
    checksum,
    plan,
)
from tidings.core.overlay.epidemic.messages import Carried, Fragment, Lack
from tidings.core.wire.codec import decode, encode

NUMBERS = ((b"pattern1", 5, 17), (b"pattern2", 3, 2))
ROUTE = ("one", "two")
LARGEST_PAYLOAD = MAX_EVENT_BYTES - 100
unhurried = settings(max_examples=examples(60))
seeds = st.integers(0, 2**32)


def event(payload: bytes, sequence: int = 1, **attributes: Any) -> Carried:
    publication = make_publication("source", 2, sequence, "/a/b", attributes or {"x": 1}, payload, 123)
    return Carried("origin", NUMBERS, ROUTE, "", publication)


def cut(carried: Carried, block_bytes: int, redundancy: int = 0, seed: int = 0) -> list[Fragment]:
    whole = Assembly.of(carried, block_bytes)
    return whole.fragments(Random(seed), redundancy=redundancy, route=ROUTE, by="push")


def together(fragments: list[Fragment]) -> Assembly:
    assembly = Assembly.begin(fragments[0], 7)
    for fragment in fragments[1:]:
        assembly.add(fragment)
    return assembly


def on_the_wire(fragment: Fragment) -> Fragment:
    (message,) = decode(encode(fragment))
    assert isinstance(message, Fragment)
    return message


def same(found: Carried, carried: Carried) -> bool:
    ours, theirs = found.stretch, carried.stretch
    return (found.origin, found.numbers, bytes(ours.raw)) == (
        carried.origin,
        carried.numbers,
        bytes(theirs.raw),
    )


def signed(fragment: Fragment, **changes: Any) -> Fragment:
    """With these changes and the checksum that belongs to them, as a malicious broker would send it."""
    changed = replace(fragment, **changes)
    return replace(changed, checksum=checksum(changed))


# --- Cutting


@pytest.mark.parametrize(
    ("payload_bytes", "block_bytes", "sizes"),
    [
        (0, 1_472, (1,)),
        (1, 1_472, (1,)),
        (1_472, 1_472, (1,)),
        (1_473, 1_472, (2,)),
        (23_552, 1_472, (16,)),
        (23_553, 1_472, (9, 8)),
        (33 * 10, 10, (11, 11, 11)),
        (50 * 10, 10, (13, 13, 12, 12)),
    ],
)
def test_plan(payload_bytes: int, block_bytes: int, sizes: tuple[int, ...]) -> None:
    assert plan(payload_bytes, block_bytes) == sizes


@given(st.integers(0, 5_000), st.integers(1, 600))
@unhurried
def test_generations_are_small_equal_and_hold_everything(payload_bytes: int, block_bytes: int) -> None:
    sizes = plan(payload_bytes, block_bytes)
    assert max(sizes) <= MAX_GENERATION_BLOCKS and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == max(1, -(-payload_bytes // block_bytes))
    assert len(sizes) == -(-sum(sizes) // MAX_GENERATION_BLOCKS)


def test_the_largest_event_of_the_paper_has_sixteen_blocks() -> None:
    carried = event(Random(1).randbytes(23_552))
    whole = Assembly.of(carried, 1_472)
    fragments = whole.fragments(Random(1), route=(), by="")
    assert whole.blocks == whole.rank == len(fragments) == 16 and whole.complete and not whole.lacks()
    assert [len(fragment.data) for fragment in fragments] == [1_472] * 16
    assert whole.carried("pull") == Carried("origin", NUMBERS, ROUTE, "pull", carried.stretch)
    assert (whole.id, whole.origin, whole.numbers) == (carried.stretch.id, "origin", NUMBERS)


# --- Round trips


@given(st.binary(max_size=700), st.integers(1, 120), st.integers(0, 3), seeds)
@unhurried
def test_an_event_comes_back_from_its_blocks_in_any_order(
    payload: bytes, block_bytes: int, redundancy: int, seed: int
) -> None:
    random, carried = Random(seed), event(payload)
    fragments = cut(carried, block_bytes, redundancy, seed)
    sizes = plan(len(payload), block_bytes)
    assert len(fragments) == sum(sizes) + redundancy * sum(size > 1 for size in sizes)
    random.shuffle(fragments)
    assembly = Assembly.begin(fragments[0], 7)
    useful = 1 + sum(assembly.add(fragment) for fragment in fragments[1:] + fragments)
    assert useful == assembly.rank == assembly.blocks and assembly.complete and assembly.lacks() == ()
    assert same(assembly.carried("push"), carried)
    assert assembly.carried("push", ("x",)).route == ("x",)
    again = assembly.fragments(random, route=ROUTE, by="push")  # also those that were decoded
    assert again == cut(carried, block_bytes)


@pytest.mark.parametrize("block_bytes", [1_400, 65_000])
def test_the_largest_event_with_one_block_of_each_generation_lost(block_bytes: int) -> None:
    carried = event(Random(2).randbytes(LARGEST_PAYLOAD))
    fragments = [on_the_wire(fragment) for fragment in cut(carried, block_bytes, redundancy=2)]
    assembly = together([fragment for fragment in fragments if fragment.coefficients or fragment.index])
    assert same(assembly.carried(""), carried)


@settings(max_examples=examples(60))
@given(
    st.integers(0, 20_000),
    st.text(max_size=120),
    st.integers(0, 12),
    st.integers(0, 4),
    st.sampled_from(["s", "ß" * 40]),
)
def test_blocks_fit_into_a_packet(
    payload_bytes: int, text: str, patterns: int, redundancy: int, source: str
) -> None:
    publication = make_publication(
        source, 2**40, 2**40, "/a/topic", {"x": text.encode().hex()}, bytes(payload_bytes), 2**60
    )
    numbers = tuple((bytes([number]) * 8, 2**61, 2**31) for number in range(patterns))
    carried = Carried("origin", numbers, (), "subscriber-pull", publication)
    whole = blocks.in_blocks(carried, 1_472, 1_400)
    if whole is None:
        assert payload_bytes <= 1_472
        return
    for fragment in whole.fragments(Random(1), redundancy=redundancy, route=(), by="subscriber-pull"):
        assert len(encode(fragment)) <= 1_400
    again = blocks.in_blocks(Carried("origin", numbers, ("far", "away"), "", publication), 1_472, 1_400)
    assert again is not None and again.header == whole.header, "every broker cuts it in the same way"


def test_an_empty_payload_is_one_empty_block() -> None:
    carried = event(b"")
    (fragment,) = cut(carried, 1_400, redundancy=3)
    assert fragment.data == b"" and same(together([on_the_wire(fragment)]).carried(""), carried)


def test_attributes_travel_in_every_block() -> None:
    carried = event(bytes(500), text="y" * 20_000, raw=b"z")
    assert same(together(cut(carried, 100)).carried(""), carried)
    too_large = event(bytes(500), text="y" * MAX_INLINE_ATTRIBUTES_BYTES)
    with pytest.raises(AttributeValueError, match="bytes of attributes"):
        Assembly.of(too_large, 100)


# --- What another lacks


@given(st.integers(1, 900), st.integers(0, 2), seeds)
@unhurried
def test_one_answer_of_a_holder_completes_an_event(payload_bytes: int, redundancy: int, seed: int) -> None:
    """Whatever mixture of plain and coded blocks has come; with coding almost always, so a few are added."""
    random = Random(seed)
    carried = event(random.randbytes(payload_bytes))
    whole = Assembly.of(carried, 20)
    sent = whole.fragments(random, redundancy=random.randrange(3), route=(), by="")
    assembly = together(random.sample(sent, random.randrange(1, len(sent) + 1)))
    lacks = assembly.lacks()
    assert sum(needed for _, needed, _ in lacks) == assembly.blocks - assembly.rank
    answer = whole.fragments(random, redundancy=redundancy, lacks=lacks, route=(), by="pull")
    assert len(answer) == assembly.blocks - assembly.rank
    sizes = plan(payload_bytes, 20)
    assert all(
        bool(block.coefficients) == (redundancy > 0 and sizes[block.generation] > 1) for block in answer
    )
    useful = [assembly.add(block) for block in answer]
    if not redundancy:
        assert all(useful)
    while not assembly.complete:
        for block in whole.fragments(random, redundancy=1, lacks=assembly.lacks(), route=(), by=""):
            assembly.add(block)
    assert same(assembly.carried(""), carried)


def test_one_plain_answer_completes_what_began_with_a_combination_of_few_blocks() -> None:
    """As brokers make them that had few: the plain blocks in it must not all be sent, and the others must."""
    carried = event(Random(3).randbytes(160))
    few = together(cut(carried, 10)[:2]).recoded(0, Random(1), route=(), by="")
    assert few is not None
    assembly = Assembly.begin(few, 0)
    for block in Assembly.of(carried, 10).fragments(Random(2), lacks=assembly.lacks(), route=(), by=""):
        assert not block.coefficients and assembly.add(block)
    assert same(assembly.carried(""), carried)


def test_what_is_asked_for_is_served_once_and_nonsense_not_at_all() -> None:
    whole = Assembly.of(event(bytes(320)), 10)
    lacks: list[Lack] = [(0, 2, b"\x01")] * 50 + [(2, 1, b""), (10**9, 1, b""), (1, 10**15, b"\xff" * 32)]
    answer = whole.fragments(Random(0), lacks=lacks, route=(), by="")
    assert [(block.generation, block.index) for block in answer] == [(0, 1), (0, 2)]
    coded = whole.fragments(Random(0), redundancy=1, lacks=[*lacks, (1, 10**15, b"")], route=(), by="")
    assert [block.generation for block in coded] == [0] * 2 + [1] * 16


@given(seeds, st.integers(0, 2))
@unhurried
def test_an_incomplete_event_gives_what_it_has_and_no_more(seed: int, redundancy: int) -> None:
    random = Random(seed)
    carried = event(random.randbytes(12 * 16))
    sent = cut(carried, 12, redundancy=8, seed=seed)
    middle = together(random.sample(sent, random.randrange(1, 13)))
    plain = [block for block in middle.fragments(random, route=(), by="") if not block.coefficients]
    assert len(plain) <= middle.rank
    for lacks in (None, [(0, 16, b"")]):
        blocks = middle.fragments(random, redundancy=redundancy, lacks=lacks, route=(), by="")
        spare = redundancy if lacks is None and middle.rank > 1 else 0
        assert len(blocks) == middle.rank + spare
        end = together(blocks)
        assert end.rank <= middle.rank
        while not end.complete:
            end.add(sent[random.randrange(len(sent))])
        assert same(end.carried(""), carried)


def test_a_generation_is_recoded_from_what_is_here_of_it() -> None:
    random, carried = Random(5), event(Random(5).randbytes(40 * 10))
    sent = cut(carried, 10)
    middle = together([block for block in sent if block.generation == 1][:2])
    assert middle.recoded(0, random, route=(), by="") is None
    assert middle.recoded(99, random, route=(), by="") is None
    fresh = middle.recoded(1, random, route=("a",), by="push")
    assert fresh is not None and (fresh.route, fresh.by, fresh.generation) == (("a",), "push", 1)
    assert [i for i, constant in enumerate(fresh.coefficients) if constant] == [0, 1]
    assert fresh.checksum == checksum(fresh)
    end = together(sent[:-1])
    assert not end.add(fresh)
    with pytest.raises(ValueError, match="not complete"):
        end.carried("")


# --- Bad input

WHOLE = event(bytes(range(200)) + bytes(30))
SENT = cut(WHOLE, 10, redundancy=1)
PLAIN = SENT[0]
CODED = next(block for block in SENT if block.coefficients)
SIZE = len(CODED.coefficients)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "other", "numbers": ()},
        {"origin": "other"},
        {"numbers": ()},
        {"topic": "/a/c"},
        {"published_at": 1},
        {"attributes": b"\x80"},
        {"payload_bytes": 229},
        {"digest": bytes(8)},
        {"block_bytes": 11, "data": bytes(11)},
    ],
)
def test_blocks_of_another_event_are_refused(changes: dict[str, Any]) -> None:
    assembly = Assembly.begin(SENT[1], 0)
    with pytest.raises(WireError, match="another event"):
        assembly.add(signed(PLAIN, **changes))
    assert assembly.rank == 1


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        (PLAIN, {"generation": len(plan(230, 10))}),
        (PLAIN, {"generation": 2**62}),
        (PLAIN, {"index": SIZE}),
        (PLAIN, {"index": 254}),
        (PLAIN, {"data": bytes(9)}),
        (PLAIN, {"data": bytes(11)}),
        (PLAIN, {"data": b""}),
        (CODED, {"coefficients": bytes(SIZE)}),
        (CODED, {"coefficients": CODED.coefficients[1:]}),
        (CODED, {"coefficients": CODED.coefficients + b"\1"}),
        (CODED, {"coefficients": b"\1" * 255}),
        (CODED, {"generation": 1}),
        (CODED, {"index": 1}),
        (CODED, {"data": bytes(9)}),
        (CODED, {"data": bytes(11)}),
    ],
)
def test_blocks_that_cannot_be_are_refused(block: Fragment, changes: dict[str, Any]) -> None:
    assembly, wrong = Assembly.begin(SENT[1], 0), signed(block, **changes)
    with pytest.raises(WireError):
        assembly.add(wrong)
    with pytest.raises(WireError):
        Assembly.begin(wrong, 0)
    assert assembly.rank == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_bytes": MAX_EVENT_BYTES + 1},
        {"payload_bytes": 2**62},
        {"payload_bytes": MAX_EVENT_BYTES, "block_bytes": 1, "data": b"x"},
        {"payload_bytes": MAX_EVENT_BYTES, "block_bytes": 63, "data": bytes(63)},
        {"payload_bytes": 0},
        {"payload_bytes": 11, "generation": 1},
        {"block_bytes": 65_507},
        {"attributes": bytes(MAX_INLINE_ATTRIBUTES_BYTES + 1)},
    ],
)
def test_headers_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        Assembly.begin(signed(PLAIN, **changes), 0)


def test_the_last_block_has_exactly_what_is_left() -> None:
    last = cut(event(bytes(25)), 10)[-1]
    assert (last.index, len(last.data)) == (2, 5)
    for length in (0, 4, 6, 10):
        with pytest.raises(WireError, match="instead of 5"):
            Assembly.begin(signed(last, data=bytes(length)), 0)


@pytest.mark.parametrize(
    "attributes",
    [b"", b"\xc1", b"\x80\x80", b"\x81\xa1a", b"\x80\xc4\xff", b"\x93\1\2\3", b"\x81\xa5topic\1"],
)
def test_attributes_that_no_publisher_may_send_are_never_delivered(attributes: bytes) -> None:
    assembly = together([signed(block, attributes=attributes) for block in SENT])
    with pytest.raises(WireError):
        assembly.carried("")
    assert assembly.spoiled


def test_an_event_whose_payload_is_no_payload_is_not_cut() -> None:
    publication = WHOLE.stretch
    assert isinstance(publication, Publication)
    fields = [getattr(publication, name) for name in Publication.__struct_fields__[:6]]
    wrong = Publication(*fields, Raw(b"\x93\1\2\3"))
    with pytest.raises(WireError, match="payload"):
        Assembly.of(replace(WHOLE, stretch=wrong), 10)


# --- Damage


def delivered(fragments: list[Fragment]) -> list[Carried]:
    """What a receiver makes of them, whatever is wrong with some."""
    assemblies, found = Assemblies(10**6, 10**6, 10**9), []
    for fragment in fragments:
        try:
            assembly = assemblies.add("sender", fragment, 0)
            if assembly is not None and assembly.complete:
                found.append(assembly.carried(""))
        except WireError:
            continue
    return found


def flipped(fragment: Fragment, position: int, mask: int) -> Fragment | None:
    """What the receiver decodes after one byte was damaged on the way, if it decodes anything."""
    body = bytearray(encode(fragment))
    body[position] ^= mask
    try:
        (message,) = decode(body)
    except WireError:
        return None
    return message if isinstance(message, Fragment) else None


@pytest.mark.parametrize("redundancy", [0, 1])
def test_a_damaged_byte_is_never_delivered(redundancy: int) -> None:
    """Any byte of a block on the wire, be it the first or the last to come."""
    carried = event(b"the quick brown fox jumps", 9)
    sent = cut(carried, 10, redundancy)
    rest, damaged = sent[:-1], sent[-1]
    for position in range(len(encode(damaged))):
        for mask in (1, 0x80, 0xFF):
            wrong = flipped(damaged, position, mask)
            if wrong is None:
                continue
            harmless = replace(wrong, route=damaged.route, by=damaged.by) == damaged
            for order in ([wrong, *rest], [*rest, wrong]):
                found = delivered(order)
                assert all(same(one, carried) for one in found)
                assert len(found) == (1 if harmless or redundancy else 0)


@pytest.mark.parametrize("coded", [False, True])
def test_a_forged_block_spoils_the_event_and_the_next_attempt_succeeds(coded: bool) -> None:
    """Its checksum is right, as a malicious broker would make it: only the digest can tell."""
    carried = event(Random(8).randbytes(160))
    sent = cut(carried, 10, redundancy=16)
    chosen = sent[16:] if coded else sent[:16]
    forged = signed(chosen[3], data=bytes(10))
    order = [forged, *chosen[:3], *chosen[4:]]
    assembly = together(order)
    for _ in range(2):
        with pytest.raises(WireError, match="do not belong together"):
            assembly.carried("")
    found = delivered([*order, *chosen])
    assert len(found) == 1 and same(found[0], carried)


def test_a_forged_repetition_changes_nothing() -> None:
    carried = event(Random(9).randbytes(160))
    sent = cut(carried, 10)
    assembly = together(sent[:-1])
    assert not assembly.add(signed(sent[2], data=bytes(10)))
    assembly.add(sent[-1])
    assert not assembly.add(signed(sent[2], data=bytes(10)))
    assert same(assembly.carried(""), carried)
    assert assembly.fragments(Random(0), route=ROUTE, by="push") == sent


def test_without_the_digest_a_forged_block_would_be_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees what it should."""
    monkeypatch.setattr(blocks, "_digest", lambda payload: bytes(8))
    carried = event(bytes(40))
    sent = cut(carried, 10)
    (found,) = delivered([signed(sent[0], data=b"0123456789"), *sent[1:]])
    assert not same(found, carried)


# --- Bounds


def sized(sequence: int, count: int = 4, block_bytes: int = 1_000) -> list[Fragment]:
    return cut(event(bytes(count * block_bytes), sequence), block_bytes)


def charge(fragments: list[Fragment]) -> int:
    per_block = sum(len(block.data) + BLOCK_OVERHEAD_BYTES for block in fragments)
    return ASSEMBLY_OVERHEAD_BYTES + len(fragments[0].attributes) + per_block


HALF = charge(sized(1)[:2])


def test_blocks_find_each_other_and_only_useful_ones_are_answered() -> None:
    assemblies = Assemblies(10**6, 10**6, 100)
    first, second, third, fourth = sized(1)
    assembly = assemblies.add("a", first, 10)
    assert assembly is not None and assembly.heard_at == 10 and not assembly.complete
    assert assemblies.add("b", first, 11) is None and assembly.heard_at == 10
    assert assemblies.add("b", second, 12) is assembly and assembly.heard_at == 12
    assert assemblies.get("source", 2, 1) is assembly and assemblies.get("source", 2, 2) is None
    assert assemblies.add("c", fourth, 13) is assembly is assemblies.add("a", third, 14)
    assert assembly.complete and assemblies.charged_bytes == charge(sized(1))
    assemblies.forget("source", 2, 1)
    assemblies.forget("source", 2, 1)
    assert (len(assemblies), assemblies.charged_bytes, assemblies.dropped) == (0, 0, 0)
    assert assemblies.get("source", 2, 1) is None


def test_a_bad_first_block_begins_nothing() -> None:
    assemblies = Assemblies(10**6, 10**6, 100)
    with pytest.raises(WireError):
        assemblies.add("a", replace(PLAIN, checksum=PLAIN.checksum ^ 1), 0)
    assert (len(assemblies), assemblies.charged_bytes) == (0, 0)


def test_the_least_recently_fed_of_the_sender_goes_first() -> None:
    assemblies = Assemblies(10**6, 3 * HALF, 10**9)
    for sequence in (1, 2, 3):
        for block in sized(sequence)[:2]:
            assemblies.add("a", block, sequence)
    assemblies.add("b", sized(9)[0], 3)
    assert len(assemblies) == 4 and assemblies.dropped == 0
    assert assemblies.add("b", sized(1)[2], 4) is not None  # fed, and charged to "a": it is over its bound
    assert assemblies.dropped == 1
    assert [assemblies.get("source", 2, n) is not None for n in (1, 2, 3, 9)] == [True, False, True, True]


def test_a_flooding_sender_pushes_out_nothing_but_its_own() -> None:
    """Even where the bound of all is less than the bounds of each together."""
    assemblies = Assemblies(6 * HALF, 5 * HALF, 10**9)
    kept = [assemblies.add(f"quiet {n}", sized(n)[0], 0) for n in range(3)]
    for sequence in range(10, 200):
        for block in sized(sequence)[:3]:
            assemblies.add("flood", block, sequence)
            assert assemblies.charged_bytes <= 6 * HALF
    assert assemblies.dropped > 150
    for n, assembly in enumerate(kept):
        assert assembly is not None and assemblies.get("source", 2, n) is assembly
        for block in sized(n)[1:]:
            assert assemblies.add("somebody", block, 300) is assembly
        assert assembly.complete
        assemblies.forget(*assembly.id)


def test_an_event_beyond_the_bound_is_dropped_and_the_bound_holds() -> None:
    assemblies = Assemblies(10**6, HALF, 10**9)
    found = [assemblies.add("a", block, 0) for block in sized(1)[:3]]
    assert found[1] is not None and found[2] is None
    assert (len(assemblies), assemblies.dropped, assemblies.charged_bytes) == (0, 1, 0)


def test_the_quiet_and_the_old() -> None:
    assemblies = Assemblies(10**6, 10**6, 100)
    for sequence in (1, 2, 3):
        assemblies.add("a", sized(sequence)[0], 10 * sequence)
    for block in sized(4):
        assemblies.add("a", block, 35)
    assemblies.add("a", sized(1)[1], 40)
    assert [assembly.id.sequence for assembly in assemblies.incomplete(19)] == []
    assert [assembly.id.sequence for assembly in assemblies.incomplete(30)] == [2, 3]
    assert [assembly.id.sequence for assembly in assemblies.incomplete(10**9)] == [2, 3, 1]
    for assembly in assemblies.incomplete(20):
        assemblies.forget(*assembly.id)  # while it is listed
    assert assemblies.expire(129) == 0 and assemblies.expire(130) == 1
    assert assemblies.expire(1_000) == 2 and len(assemblies) == assemblies.charged_bytes == 0
    assert (assemblies.expired, assemblies.dropped) == (3, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from("abc")), max_size=80))
@unhurried
def test_what_is_charged_is_what_is_held(steps: list[tuple[int, int, str]]) -> None:
    assemblies = Assemblies(4 * HALF, 2 * HALF, 10**9)
    began: dict[int, str] = {}
    for now, (sequence, index, sender) in enumerate(steps):
        before = assemblies.get("source", 2, sequence) is not None
        assembly = assemblies.add(sender, sized(sequence)[index], now)
        if not before:
            began[sequence] = sender
        if assembly is not None and assembly.complete:
            assemblies.forget(*assembly.id)
        charged = dict.fromkeys("abc", 0)
        for number in range(6):
            held = assemblies.get("source", 2, number)
            if held is not None:
                charged[began[number]] += held.held_bytes
        assert sum(charged.values()) == assemblies.charged_bytes <= 4 * HALF
        assert max(charged.values()) <= 2 * HALF
