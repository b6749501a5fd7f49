"""Rounds of gossip against bad peers: forged, absurd and repeated digests are refused, and cost what is bounded."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from breadth import examples
from epidemic_network import NS_PER_MS, NS_PER_S, TOPIC, EpidemicNetwork, LoneBroker
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import make_interest
from tidings.core.messages import Message, Notify
from tidings.core.overlay.epidemic.blocks import Assembly, checksum
from tidings.core.overlay.epidemic.messages import (
    Announce,
    Ask,
    BrokerEntry,
    Carried,
    DirectoryDigest,
    DirectoryVersions,
    Fragment,
    HighWater,
    HighWaterTaken,
    LabelAsk,
    LabelGiven,
    LinkCount,
    Offer,
    Solicit,
)
from tidings.core.overlay.epidemic.pulls import DIGEST_BYTES
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.wire.codec import decode, encode

EVERYTHING = (0, 2**62)
INTERVAL_NS = 200 * NS_PER_MS
ALGORITHMS: tuple[Algorithm, ...] = (
    "none",
    "push",
    "subscriber-pull",
    "publisher-pull",
    "combined",
    "push+pull",
    "auto",
)


def recovery(algorithm: Algorithm = "subscriber-pull", **changes: Any) -> RecoverySettings:
    return RecoverySettings(algorithm=algorithm, **{"interval_ns": INTERVAL_NS, **changes})


def offer(*events: tuple[str, int, tuple[tuple[int, int], ...]], **changes: Any) -> Offer:
    return Offer(**{"initiator": "far", "pattern": b"", "events": events, "by": "push", **changes})


def solicit(broker: LoneBroker, *ranges: tuple[int, int], **changes: Any) -> Solicit:
    lost = (("far", broker.pattern, broker.ORIGIN_EPOCH, ranges),)
    fields = {"initiator": "far", "pattern": b"", "route": (), "lost": lost, "partial": (), "by": "x"}
    return Solicit(**{**fields, **changes})


def asked_sequences(broker: LoneBroker) -> list[int]:
    """What it asked for, of any source."""
    return [
        sequence
        for _, message in broker.sent(Ask)
        for _, _, ranges in message.events
        for first, last in ranges
        for sequence in range(first, last + 1)
    ]


# --- Strangers


def test_gossip_of_strangers_is_refused() -> None:
    broker = LoneBroker(recovery())
    broker.fill(5)
    broker.receive("stranger", offer(("q", 0, ((1, 5),)), initiator="stranger"))
    broker.receive("stranger", Ask((("p", 0, ((1, 5),)),), (), "push"))
    broker.receive("stranger", solicit(broker, (1, 5), initiator="stranger"))
    assert broker.port.sent == []
    assert [peer for peer, _ in broker.misbehaviours] == ["stranger"] * 3


@pytest.mark.parametrize("initiator", ["stranger", "me"])
def test_a_neighbour_does_not_speak_for_strangers_or_for_us(initiator: str) -> None:
    broker = LoneBroker(recovery())
    broker.fill(5)
    broker.receive("n1", offer(("q", 0, ((1, 5),)), initiator=initiator))
    broker.receive("n1", solicit(broker, (1, 9), initiator=initiator, route=("n2",)))
    assert broker.port.sent == []
    assert [peer for peer, _ in broker.misbehaviours] == ["n1", "n1"]


# --- Offers


def test_an_offer_of_everything_is_looked_at_in_part() -> None:
    broker = LoneBroker(recovery())
    broker.fill(5)
    broker.receive("far", offer(("p", 0, (EVERYTHING,)), ("nobody", 2**62, (EVERYTHING, EVERYTHING))))
    asked = asked_sequences(broker)
    assert len(asked) <= 4_096
    assert not set(asked) & {1, 2, 3, 4, 5}


@pytest.mark.parametrize("first_last", [(9, 3), (2**62, 0)])
def test_an_offer_of_nothing_is_not_asked_for(first_last: tuple[int, int]) -> None:
    broker = LoneBroker(recovery())
    broker.receive("far", offer(("p", 0, (first_last,))))
    assert broker.sent(Ask) == []


def test_the_same_offer_is_asked_for_once_while_the_answer_may_come() -> None:
    broker = LoneBroker(recovery())
    for sender in ("far", "n1", "n2") * 100:
        broker.receive(sender, offer(("p", 0, ((1, 3),)), initiator=sender))
    assert asked_sequences(broker) == [1, 2, 3]
    broker.advance(NS_PER_S)
    broker.receive("n1", offer(("p", 0, ((1, 3),)), initiator="n1"))
    assert asked_sequences(broker) == [1, 2, 3] * 2


def test_offered_events_that_we_do_not_subscribe_to_are_not_shown() -> None:
    broker = LoneBroker(recovery())
    broker.receive("far", offer(("q", 0, ((1, 1),))))
    broker.receive("far", broker.carried(1, by="push", source="q", topic="/elsewhere"))
    assert broker.notified == []
    assert len(broker.broker.recovery_state.cache) == 0


def test_an_offer_for_a_pattern_that_we_do_not_subscribe_to_is_not_asked_for() -> None:
    broker = LoneBroker(recovery(routing="tree"))
    broker.unsubscribe()
    broker.port.sent.clear()
    broker.receive("n1", offer(("p", 0, ((1, 3),)), pattern=broker.pattern))
    broker.receive("n1", offer(("p", 0, ((1, 3),)), pattern=b"no such!"))
    assert broker.sent(Ask) == []
    assert [to for to, _ in broker.sent(Offer)] == ["n2"], "it goes on to those who do"


def test_an_offer_along_the_tree_goes_on_for_neighbours_only() -> None:
    broker = LoneBroker(recovery(routing="tree", forward_probability=1.0))
    broker.receive("far", offer(("p", 0, ((1, 1),)), pattern=broker.pattern))
    assert broker.sent(Offer) == []
    broker.receive("n1", offer(("p", 0, ((2, 2),)), pattern=broker.pattern))
    assert [to for to, _ in broker.sent(Offer)] == ["n2"]


def test_what_is_remembered_of_offers_is_bounded() -> None:
    broker = LoneBroker(recovery())
    for number in range(30):
        broker.receive("far", offer((f"q{number}", 0, (EVERYTHING,))))
    assert len(broker.broker.gossip._asked) <= 65_536


def test_what_is_asked_for_can_be_read() -> None:
    broker = LoneBroker(recovery(buffer_events=4_000))
    for number in range(0, 4_000, 2):
        broker.receive("n1", broker.carried(number))
    broker.port.sent.clear()
    broker.receive("far", offer(("p", 0, ((0, 4_000),))))
    ((_, ask),) = broker.sent(Ask)
    decode(encode(ask))


# --- Routes


def hops_of(route: tuple[str, ...], sender: str = "n1") -> list[tuple[str, tuple[str, ...]]]:
    """Where a request with that route goes, and with which route."""
    broker = LoneBroker(recovery("publisher-pull"))
    broker.receive(sender, solicit(broker, (1, 9), route=route))
    return [(to, message.route) for to, message in broker.sent(Solicit)]


def test_a_request_walks_along_its_route() -> None:
    assert hops_of(("n2", "far")) == [("n2", ("far",))]
    assert hops_of(("n2",)) == [("n2", ())]
    assert hops_of(()) == []


@pytest.mark.parametrize("route", [("stranger", "n2"), ("me", "n2"), ("me",) * 64, ("n1", "n2"), ("c",)])
def test_a_forged_route_leads_nowhere(route: tuple[str, ...]) -> None:
    assert hops_of(route) == []


def test_a_route_that_goes_around_ends() -> None:
    """Sixty-three entries that lead through three brokers: as many steps, and nothing else happens."""
    network = EpidemicNetwork("b0-b1-b2-b3", recovery("publisher-pull"))
    network.subscribe("b3")
    network.publish("b0", 1)
    lost = (("b0", network.broker("b3").patterns.local_ids()[0], 2**50, ((1, 9),)),)
    forged = Solicit("b3", b"", ("b1", "b2", "b0") * 21, lost, (), "publisher-pull")
    network.broker("b0").receive("b3", forged)
    network.run(10)
    assert len(network.sent(Solicit)) == 1 + 63
    assert network.answers("b3") == []


def test_what_was_served_does_not_walk_on() -> None:
    broker = LoneBroker(recovery("publisher-pull"))
    broker.fill(5)
    broker.receive("n1", solicit(broker, (2, 3), route=("n2",)))
    assert broker.sent(Solicit) == []
    broker.receive("n1", solicit(broker, (4, 7), route=("n2",)))
    ((_, onward),) = broker.sent(Solicit)
    assert [ranges for _, _, _, ranges in onward.lost] == [((6, 7),)]


def test_replayed_requests_do_not_multiply_beyond_the_budget() -> None:
    broker = LoneBroker(recovery("publisher-pull", gossip_bytes_per_s=12 * DIGEST_BYTES))
    for _ in range(1_000):
        broker.receive("n1", solicit(broker, (1, 9), route=("n2", "far")))
        broker.receive("n1", offer(("p", 0, ((1, 9),))))
    assert len(broker.sent(Solicit, Ask, Offer)) <= 12


# --- Rounds


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_said_where_nothing_happens(algorithm: Algorithm) -> None:
    broker = LoneBroker(recovery(algorithm))
    broker.advance(20 * NS_PER_S)
    assert broker.sent(Offer, Ask, Solicit, Carried, Fragment, HighWater) == []


def test_an_adaptive_interval_shrinks_while_something_is_recovered_and_grows_back() -> None:
    broker = LoneBroker(recovery("push", adaptive=True, push="digest"))
    for number in range(1, 6):
        broker.receive("far", broker.carried(number, by="push"))
        broker.round()
    assert broker.broker.gossip._interval_ns == INTERVAL_NS // 8
    for _ in range(10):
        broker.round()
    assert broker.broker.gossip._interval_ns == INTERVAL_NS


def test_a_fixed_interval_stays() -> None:
    broker = LoneBroker(recovery("push", push="digest"))
    broker.receive("far", broker.carried(1, by="push"))
    broker.round()
    assert broker.broker.gossip._interval_ns == INTERVAL_NS


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_pushes_and_digests_keep_the_byte_budget(algorithm: Algorithm) -> None:
    broker = LoneBroker(recovery(algorithm, gossip_bytes_per_s=5_000, fanout=3))
    for number in range(1, 2_000, 2):
        broker.receive("n1", broker.carried(number, payload=bytes(500)))
    broker.advance(NS_PER_S)
    gossip = [message for message in broker.events_sent if message.by]
    assert 500 * len(gossip) + DIGEST_BYTES * len(broker.sent(Offer, Ask, Solicit)) <= 2 * 5_000


def test_digests_fit_into_a_datagram() -> None:
    broker = LoneBroker(recovery())
    for number in range(1, 3_000, 2):
        broker.receive("n1", broker.carried(number))
    broker.advance(5 * NS_PER_S)
    digests = [message for _, message in broker.sent(Solicit)]
    assert digests
    assert max(len(encode(digest)) for digest in digests) <= DIGEST_BYTES + 100


# --- Anything at all

NAMES = st.sampled_from(["far", "n1", "n2", "me", "c", "stranger", "p", "q"])
PEERS = st.sampled_from(["n1", "n1", "n2", "far", "far", "me", "c", "stranger"])
ORIGINS = st.one_of(st.just("far"), NAMES, st.integers(0, 20).map("o{}".format))
COUNTERS = st.one_of(st.integers(0, 12), st.integers(0, 2**63 - 1))
OURS = make_interest((TOPIC,), None).key[:8]
PATTERNS = st.sampled_from([OURS, OURS, OURS, b"12345678", b"1234567890abcdef"])
EPOCHS = st.one_of(st.just(LoneBroker.ORIGIN_EPOCH), st.just(LoneBroker.ORIGIN_EPOCH), COUNTERS)
NUMBERS = st.lists(st.tuples(PATTERNS, EPOCHS, COUNTERS), max_size=2).map(tuple)
ROUTES = st.one_of(st.lists(NAMES, max_size=2).map(tuple), st.just(("n1", "n2", "far", "me") * 16))
WAYS = st.sampled_from(["", "push", "subscriber-pull", "publisher-pull", "nonsense"])
RANGES = st.lists(st.tuples(COUNTERS, COUNTERS), max_size=2).map(tuple)
ID_RANGES = st.lists(st.tuples(NAMES, COUNTERS, RANGES), max_size=2).map(tuple)
LOST = st.lists(st.tuples(NAMES, PATTERNS, EPOCHS, RANGES), max_size=2).map(tuple)
LACKS = st.lists(st.tuples(COUNTERS, COUNTERS, st.binary(max_size=32)), max_size=2).map(tuple)
WANTS = st.lists(st.tuples(NAMES, COUNTERS, COUNTERS, LACKS), max_size=2).map(tuple)
TOWARDS = st.one_of(st.just(b""), PATTERNS)
TOPICS = st.sampled_from([TOPIC, TOPIC, TOPIC, "/elsewhere"])
LABELS = st.lists(st.integers(0, 3), max_size=4).map(tuple)
PUBLICATIONS = st.builds(
    lambda source, incarnation, sequence, topic, size: make_publication(
        source, incarnation, sequence, topic, {}, bytes(size), 0
    ),
    st.sampled_from(["p", "q"]),
    st.one_of(st.just(0), COUNTERS),
    st.integers(1, 30),
    TOPICS,
    st.integers(0, 300),
)
RAW_FRAGMENTS = st.builds(
    Fragment,
    origin=NAMES,
    numbers=NUMBERS,
    route=ROUTES,
    by=WAYS,
    source=st.sampled_from(["p", "q"]),
    incarnation=st.just(0),
    sequence=st.integers(1, 12),
    topic=TOPICS,
    published_at=COUNTERS,
    attributes=st.sampled_from([b"\x80", b"", b"\xc1", b"\x81\xa1x\x01"]),
    payload_bytes=st.one_of(st.sampled_from([25, 30]), COUNTERS),
    digest=st.sampled_from([b"12345678", b"abcdefgh"]),
    block_bytes=st.sampled_from([10, 10, 10, 1, 60_000]),
    generation=st.one_of(st.just(0), COUNTERS),
    coefficients=st.one_of(st.just(b""), st.binary(min_size=3, max_size=3), st.binary(max_size=20)),
    index=st.integers(0, 3),
    data=st.one_of(st.binary(min_size=10, max_size=10), st.binary(max_size=12)),
    checksum=st.integers(0, 2**32 - 1),
)


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    """With the checksum that it should have, more often than not."""
    fragment = draw(RAW_FRAGMENTS)
    if draw(st.integers(0, 3)) == 0:
        return fragment
    fields = {name: getattr(fragment, name) for name in fragment.__struct_fields__}
    return Fragment(**{**fields, "checksum": checksum(fragment)})


def genuine_fragments() -> list[Fragment]:
    """All blocks of some events, by the tree and by gossip."""
    lone = LoneBroker(recovery())
    wholes = [Assembly.of(lone.carried(number, payload=bytes(range(35))), 10) for number in range(1, 7)]
    return [
        fragment
        for whole in wholes
        for by in ("", "push")
        for fragment in whole.fragments(Random(0), redundancy=1, route=(), by=by)
    ]


ENTRIES = st.builds(
    BrokerEntry,
    broker=NAMES,
    incarnation=COUNTERS,
    version=COUNTERS,
    label=LABELS,
    address=st.just(""),
    loss_ppm=st.integers(0, 1_000_000),
    patterns=st.lists(PATTERNS, max_size=3).map(tuple),
    everything=st.booleans(),
)
COUNTS = st.builds(
    lambda origin, numbers: tuple((pattern, origin, epoch, number) for pattern, epoch, number in numbers),
    ORIGINS,
    NUMBERS,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Carried, ORIGINS, NUMBERS, ROUTES, WAYS, PUBLICATIONS),
    fragments(),
    st.builds(Offer, NAMES, TOWARDS, ID_RANGES, WAYS),
    st.builds(Ask, ID_RANGES, WANTS, WAYS),
    st.builds(Solicit, NAMES, TOWARDS, ROUTES, LOST, WANTS, WAYS),
    st.builds(HighWater, COUNTS),
    st.builds(HighWaterTaken, COUNTS),
    st.builds(LinkCount, COUNTERS, COUNTERS),
    st.builds(Announce, st.lists(ENTRIES, max_size=3).map(tuple)),
    st.builds(DirectoryDigest, st.binary(min_size=8, max_size=8)),
    st.builds(
        DirectoryVersions,
        st.lists(st.tuples(NAMES, COUNTERS, COUNTERS), max_size=3).map(tuple),
        st.booleans(),
        st.sampled_from(["", "far"]),
        st.sampled_from(["", "n1"]),
    ),
    st.just(LabelAsk()),
    st.builds(LabelGiven, st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)),
)
DELAYS_MS = st.sampled_from([0, 0, 0, 1, 60, 5_000])
ANYTHING = st.tuples(PEERS, MESSAGES, DELAYS_MS)
BLOCKS = st.tuples(st.sampled_from(["n1", "n2", "far"]), st.sampled_from(genuine_fragments()), DELAYS_MS)
ORIGINAL = st.sampled_from(["far", "o1", "o2", "o3"])
COUNTED = st.tuples(st.tuples(st.just(OURS), st.just(LoneBroker.ORIGIN_EPOCH), COUNTERS))
TREE = st.tuples(
    st.sampled_from(["n1", "n2"]),
    st.builds(Carried, ORIGINAL, COUNTED, st.just(()), st.just(""), PUBLICATIONS),
    DELAYS_MS,
)
STEPS = st.lists(st.one_of(ANYTHING, BLOCKS, TREE), min_size=8, max_size=30)

TIGHT: dict[str, Any] = {
    "buffer_events": 2,
    "buffer_bytes": 500,
    "assembly_bytes": 5_000,
    "assembly_bytes_per_sender": 4_000,
    "max_lost": 20,
    "max_streams": 2,
    "answers_per_round": 8,
    "gossip_bytes_per_s": 100_000,
}


def check_bounds(broker: LoneBroker) -> None:
    recovery_state = broker.broker.recovery_state
    assert len(recovery_state.cache) <= 2
    assert recovery_state.cache.size_bytes <= 500
    assert recovery_state.assemblies.charged_bytes <= 5_000
    assert recovery_state.losses.lost <= 20
    assert len(recovery_state.losses._recent) <= 2


def check_steps(steps: list[tuple[str, Message, int]], configured: RecoverySettings) -> None:
    """Nothing is raised, bounds hold, nothing is shown twice, and whatever is sent can be read."""
    broker = LoneBroker(configured)
    for sender, message, delay_ms in steps:
        broker.receive(sender, message)
        broker.advance(delay_ms * NS_PER_MS)
        check_bounds(broker)
    broker.advance(NS_PER_S)
    check_bounds(broker)
    shown = [message.stretch.id for _, message in broker.sent(Notify)]
    assert len(shown) == len(set(shown))
    for _, message in broker.port.sent:
        decode(encode(message))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(steps=STEPS, routing=st.sampled_from(["direct", "tree"]), redundancy=st.integers(0, 2))
def test_no_sequence_of_messages_breaks_a_broker(
    algorithm: Algorithm, steps: list[tuple[str, Message, int]], routing: Any, redundancy: int
) -> None:
    changes = {"routing": routing, "redundancy": redundancy, "push": "digest", "block_bytes": 10}
    check_steps(steps, recovery(algorithm, **changes, **TIGHT))


@pytest.mark.parametrize(
    "loosened",
    [
        {"buffer_events": 100, "buffer_bytes": 100_000},
        {"buffer_bytes": 100_000},
        {"assembly_bytes": 10**6, "assembly_bytes_per_sender": 10**6},
        {"max_lost": 100},
        {"max_streams": 100},
    ],
    ids=lambda loosened: next(iter(loosened)),
)
def test_the_sequences_reach_every_bound(loosened: dict[str, int]) -> None:
    """A broker that lets more in is found out."""

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=STEPS)
    def check(steps: list[tuple[str, Message, int]]) -> None:
        check_steps(steps, recovery("subscriber-pull", block_bytes=10, **{**TIGHT, **loosened}))

    with pytest.raises(AssertionError):
        check()
