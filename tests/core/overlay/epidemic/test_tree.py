"""Events and blocks as they come by the tree and by gossip: what is let in, what is forwarded, what is never shown."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from epidemic_network import NS_PER_S, LoneBroker
from tidings.core.messages import Notify, PublishFailed
from tidings.core.overlay.epidemic import tree
from tidings.core.overlay.epidemic.blocks import Assembly, checksum
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.epidemic.settings import RecoverySettings

PAYLOAD = bytes(range(256)) * 10
NEIGHBOUR = "sent an event along the tree but is not a neighbour"


def lone(**changes: Any) -> LoneBroker:
    return LoneBroker(RecoverySettings(algorithm="publisher-pull", block_bytes=200, **changes))


def blocks(broker: LoneBroker, number: int = 1, *, redundancy: int = 0, by: str = "") -> list[Fragment]:
    whole = Assembly.of(broker.carried(number, payload=PAYLOAD), 200)
    return whole.fragments(Random(number), redundancy=redundancy, route=(), by=by)


def resealed(fragment: Fragment, **changes: Any) -> Fragment:
    """Another block, with the checksum that belongs to it: made by somebody who knows how."""
    changed = replace(fragment, **changes)
    return replace(changed, checksum=checksum(changed))


# --- Who may send


@pytest.mark.parametrize("sender", ["far", "stranger", "c"])
def test_only_a_neighbour_sends_by_the_tree(sender: str) -> None:
    broker = lone()
    broker.receive(sender, broker.carried(1))
    for fragment in blocks(broker, 2):
        broker.receive(sender, fragment)
    assert broker.port.sent == []
    assert set(broker.misbehaviours) == {(sender, NEIGHBOUR)}
    assert len(broker.broker.recovery_state.cache) == len(broker.broker.recovery_state.assemblies) == 0


@pytest.mark.parametrize("sender", ["stranger", "c", "me"])
def test_only_a_broker_of_the_directory_sends_by_gossip(sender: str) -> None:
    broker = lone()
    broker.receive(sender, broker.carried(1, by="push"))
    for fragment in blocks(broker, 2, by="push"):
        broker.receive(sender, fragment)
    assert broker.port.sent == []
    assert {peer for peer, _ in broker.misbehaviours} == {sender}


def test_a_known_broker_sends_by_gossip() -> None:
    broker = lone()
    broker.receive("far", broker.carried(1, by="push"))
    for fragment in blocks(broker, 2, by="push"):
        broker.receive("far", fragment)
    assert broker.notified == [1, 2]
    assert broker.misbehaviours == []


def test_a_client_publishes_as_itself_only() -> None:
    broker = lone()
    broker.receive("c", broker.publication(1, source="other"))
    broker.receive("n1", broker.publication(1, source="n1"))
    assert [type(message) for _, message in broker.port.sent] == [PublishFailed, PublishFailed]
    assert [peer for peer, _ in broker.misbehaviours] == ["c", "n1"]


# --- Repetitions


@pytest.mark.parametrize("by", ["", "push", "publisher-pull"])
def test_what_is_replayed_is_shown_and_forwarded_once(by: str) -> None:
    broker = lone()
    messages: list[Carried | Fragment] = [broker.carried(1, by=by), *blocks(broker, 2, by=by)]
    for _ in range(100):
        for message in messages:
            broker.receive("n1", message)
    assert broker.notified == [1, 2]
    forwarded = [to for to, message in broker.sent(Carried, Fragment)]
    assert forwarded == ([] if by else ["n2"] * len(messages))


def test_what_gossip_brought_first_still_goes_down_the_tree_once() -> None:
    broker = lone()
    broker.receive("far", broker.carried(1, by="push"))
    assert [to for to, _ in broker.sent(Carried)] == []
    for _ in range(3):
        broker.receive("n1", broker.carried(1))
    assert [to for to, _ in broker.sent(Carried)] == ["n2"]
    assert broker.notified == [1]


def test_an_event_in_blocks_that_came_whole_is_not_shown_again() -> None:
    broker = lone()
    broker.receive("far", broker.carried(1, by="push", payload=PAYLOAD))
    for fragment in blocks(broker):
        broker.receive("n1", fragment)
    assert broker.notified == [1]
    assert len(broker.broker.recovery_state.assemblies) == 0


def test_a_recovered_event_that_nobody_here_subscribes_to_is_dropped() -> None:
    broker = lone()
    broker.receive("far", broker.carried(1, by="push", topic="/elsewhere"))
    assert broker.port.sent == []
    assert broker.broker.tree.unwanted == 1
    assert len(broker.broker.recovery_state.cache) == 0


# --- Blocks that are wrong


def wrong_checksum(fragment: Fragment) -> Fragment:
    return replace(fragment, checksum=fragment.checksum ^ 1)


def damaged_data(fragment: Fragment) -> Fragment:
    return replace(fragment, data=b"\xff" * len(fragment.data))


WRONG: dict[str, Callable[[Fragment], Fragment]] = {
    "checksum": wrong_checksum,
    "data": damaged_data,
    "another generation": lambda fragment: resealed(fragment, generation=2**40),
    "an index beyond": lambda fragment: resealed(fragment, index=200),
    "short data": lambda fragment: resealed(fragment, data=fragment.data[:-1]),
    "long data": lambda fragment: resealed(fragment, data=fragment.data + b"\0"),
    "zero coefficients": lambda fragment: resealed(fragment, index=0, coefficients=bytes(13)),
    "too many coefficients": lambda fragment: resealed(fragment, index=0, coefficients=b"\1" * 255),
    "an index and coefficients": lambda fragment: resealed(fragment, index=1, coefficients=b"\1" * 13),
    "another payload size": lambda fragment: resealed(fragment, payload_bytes=2**50),
    "tiny blocks": lambda fragment: resealed(fragment, block_bytes=1, payload_bytes=2**20, data=b"x"),
    "another digest": lambda fragment: resealed(fragment, digest=b"12345678"),
    "other numbers": lambda fragment: resealed(fragment, numbers=((b"12345678", 1, 2**60),)),
    "another topic": lambda fragment: resealed(fragment, topic="/elsewhere"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("redundancy", [0, 2])
def test_a_wrong_block_among_the_right_ones_harms_nobody(what: str, redundancy: int) -> None:
    broker = lone(redundancy=redundancy)
    first, *others = blocks(broker, redundancy=redundancy)
    broker.receive("n1", first)
    broker.receive("far", WRONG[what](replace(others[0], by="push")))
    for fragment in others:
        broker.receive("n1", fragment)
    for fragment in blocks(broker, 2, redundancy=redundancy):
        broker.receive("n1", fragment)
    assert broker.notified == [1, 2]
    shown = [message.stretch.event().payload for _, message in broker.sent(Notify)]
    assert shown == [PAYLOAD, PAYLOAD]
    assert all(peer == "far" for peer, _ in broker.misbehaviours)


def shown_after_a_wrong_block(wrong: Callable[[Fragment], Fragment]) -> list[int]:
    """It comes before all others. They come, again when what it began has expired, and again."""
    broker = lone(max_age_ns=5 * NS_PER_S)
    right = blocks(broker)
    broker.receive("far", wrong(replace(right[1], by="push")))
    for _ in range(3):
        for fragment in right:
            broker.receive("n2", replace(fragment, by="publisher-pull"))
        broker.advance(8 * NS_PER_S)
    return broker.notified


@pytest.mark.parametrize("what", [what for what in WRONG if what != "another topic"])
def test_a_wrong_block_before_the_right_ones_does_no_lasting_harm(what: str) -> None:
    assert shown_after_a_wrong_block(WRONG[what]) == [1]


@pytest.mark.parametrize(
    "wrong", [WRONG["another topic"], lambda fragment: replace(fragment, topic="/elsewhere")]
)
def test_a_block_with_another_topic_does_not_lead_the_others_astray(
    wrong: Callable[[Fragment], Fragment],
) -> None:
    assert shown_after_a_wrong_block(wrong) == [1]


@pytest.mark.parametrize("redundancy", [0, 2])
def test_blocks_that_do_not_belong_together_are_never_shown(redundancy: int) -> None:
    broker = lone(redundancy=redundancy)
    right = blocks(broker, redundancy=redundancy)
    plain = [fragment for fragment in right if not fragment.coefficients]
    forged = resealed(plain[3], data=b"forged".ljust(len(plain[3].data)))
    for fragment in (forged, *plain):
        broker.receive("n1", fragment)
    assert broker.notified == []
    assert any("belong together" in what for _, what in broker.misbehaviours)
    for fragment in plain:
        broker.receive("far", replace(fragment, by="push"))
    assert broker.notified == [1], "it is put together anew"


def test_a_damaged_block_is_not_forwarded_in_the_place_of_the_right_one() -> None:
    broker = lone()
    broker.unsubscribe()
    right = blocks(broker)
    broker.receive("n1", damaged_data(right[0]))
    for fragment in right:
        broker.receive("n1", fragment)
    assert [message.data for _, message in broker.sent(Fragment)] == [each.data for each in right]


def test_what_is_remembered_of_passing_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_PASSING", 10)
    broker = lone()
    for number in range(1, 100):
        broker.receive("n1", blocks(broker, number)[0])
    assert len(broker.broker.tree._passing) == 10


def test_generations_that_no_event_has_are_not_remembered() -> None:
    broker = lone()
    broker.unsubscribe()
    fragment = blocks(broker)[0]
    for generation in range(1_000, 2_000):
        broker.receive("n1", resealed(fragment, generation=generation))
    assert not broker.broker.tree._passing


def test_assemblies_stay_within_their_bytes() -> None:
    broker = lone(assembly_bytes=40_000, assembly_bytes_per_sender=20_000)
    for number in range(1, 200):
        broker.receive("n1", blocks(broker, number)[0])
        broker.receive("far", replace(blocks(broker, number + 1_000)[0], by="push"))
        assert broker.broker.recovery_state.assemblies.charged_bytes <= 40_000
    for fragment in blocks(broker, 5_000):
        broker.receive("n2", fragment)
    assert broker.notified == [5_000]
