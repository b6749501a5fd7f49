"""Bounds and bad input of the guaranteed overlay: gaps, full disks, nonsense from peers and clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.unconfirmed import Unconfirmed
from tidings.core.errors import StoreCorrupt, StoreFull
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SpillFailed,
)
from tidings.core.kernel import Node
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import (
    Forward,
    Greeting,
    Notified,
    Parked,
    Passed,
    Record,
    Records,
    Stamped,
    Taken,
)
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.core.store import Change, MemoryStore
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LOCAL, LinkSpec

S = 1_000_000_000
LABELS = {"b0": (0,), "b1": (0, 0), "b2": (0, 0, 0)}


class FullableStore(MemoryStore):
    """A disk that can be full for what is spilled."""

    full = False

    def write(self, changes: Sequence[Change]) -> None:
        if self.full and any(table == "spill" and value is not None for table, _, value in changes):
            raise StoreFull("cannot write b0.db: the disk is full")
        super().write(changes)


class Chain:
    """b0 - b1 - b2 with delta 1, a publisher at b0 and a subscriber at b2."""

    def __init__(self, limits: SpillLimits | None = None, window: int = 64) -> None:
        self.limits, self.window = limits, window
        self.network = SimulatedNetwork(1, self._spec, streams=True)
        self.facts: dict[str, list[object]] = {}
        self.stores: dict[str, FullableStore] = {}
        self.clients: dict[str, ReliableClient] = {}
        for name in LABELS:
            self.add(name, self._make_broker)
        for name, at in (("p", "b0"), ("s", "b2")):
            self.add(name, self._client_maker(at))
            self.network.attach(name, at)
        self.network.start()
        self.clients["s"].subscribe(Subscription("all", ("/a",)))
        self.run(3)

    def _spec(self, a: str, b: str) -> LinkSpec:
        return LOCAL

    def add(self, name: str, make: Callable[[SimulatedNode], Node]) -> None:
        facts = self.facts[name] = []
        self.network.add(name, make, facts.append)

    def _make_broker(self, node: SimulatedNode) -> Node:
        store = self.stores[node.node] = FullableStore(node.disk.setdefault("tables", {}))
        around = {name: (label, "") for name, label in LABELS.items() if name != node.node}
        return GuaranteedBroker(
            node,
            LABELS[node.node],
            around,
            store,
            delta=1,
            incarnation=node.now + 1,
            new=node.now == 0,
            limits=self.limits,
            window=self.window,
        )

    def _client_maker(self, at: str) -> Callable[[SimulatedNode], Node]:
        def make(node: SimulatedNode) -> Node:
            client = self.clients[node.node] = ReliableClient(node, at)
            return client

        return make

    def broker(self, name: str) -> GuaranteedBroker:
        node = self.network.nodes[name].protocol
        assert isinstance(node, GuaranteedBroker)
        return node

    def run(self, seconds: float) -> None:
        self.network.run(self.network.schedule.now + round(seconds * S))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.clients["p"].publish("/a", {}, b"", self.network.schedule.now)
            self.run(0.01)

    def crash(self, *names: str) -> None:
        for name in names:
            self.network.crash(name, keep_state=True)

    def restart(self, *names: str) -> None:
        for name in names:
            self.network.restart(name)

    def delivered(self) -> list[int]:
        return [fact.stretch.sequence for fact in self.facts["s"] if isinstance(fact, Delivered)]

    def missed(self) -> list[tuple[int, int]]:
        return [(fact.first, fact.last) for fact in self.facts["s"] if isinstance(fact, EventsGivenUp)]

    def confirmed(self) -> list[int]:
        return [fact.first for fact in self.facts["p"] if isinstance(fact, PublicationConfirmed)]

    def trouble(self, name: str) -> list[str]:
        return [fact.what for fact in self.facts[name] if isinstance(fact, Misbehaviour)]


# --- Bounds


def test_beyond_the_bound_the_subscriber_hears_of_a_gap() -> None:
    chain = Chain(SpillLimits(entries=5))
    chain.publish(2)
    chain.crash("b1", "b2")
    chain.run(4)
    chain.publish(10)
    chain.run(2)
    assert chain.confirmed() == list(range(1, 13))  # on disk, or given up and to be reported
    chain.restart("b1", "b2")
    chain.run(10)
    chain.publish(1)
    chain.run(1)
    assert chain.delivered() == [1, 2, 3, 4, 5, 6, 7, 13]
    assert chain.missed() == [(8, 12)]  # one gap for all in a row
    assert chain.broker("b0").delivery.gaps == 5
    assert not chain.broker("b0").delivery.queue


def test_a_bound_in_bytes_works_the_same() -> None:
    chain = Chain(SpillLimits(size_bytes=300))
    chain.crash("b1", "b2")
    chain.run(4)
    chain.publish(20)
    chain.run(2)
    chain.restart("b1", "b2")
    chain.run(10)
    (gap,) = chain.missed()
    assert chain.delivered() == list(range(1, gap[0]))
    assert gap[1] == 20
    assert chain.broker("b0").delivery.spilled_bytes == 0


def test_what_is_confirmed_while_nobody_can_be_reached_survives_the_publishers_broker() -> None:
    chain = Chain()
    chain.crash("b1", "b2")
    chain.run(4)
    chain.publish(5)
    chain.run(2)
    assert chain.confirmed() == [1, 2, 3, 4, 5]
    chain.network.crash("p", keep_state=False)  # the publisher will not send them again
    chain.crash("b0")
    chain.restart("b0", "b1", "b2")
    chain.run(10)
    assert chain.delivered() == [1, 2, 3, 4, 5]


def test_what_is_confirmed_survives_the_loss_of_the_disk_while_the_publisher_lives() -> None:
    chain = Chain()
    chain.crash("b1", "b2")
    chain.run(4)
    chain.publish(5)
    chain.run(2)
    assert chain.confirmed() == [1, 2, 3, 4, 5]
    chain.network.crash("b0", keep_state=False)
    chain.restart("b0", "b1", "b2")
    chain.run(15)
    assert chain.delivered() == [1, 2, 3, 4, 5]


def sent_again_once(patch: pytest.MonkeyPatch) -> None:
    """As it was: what was sent to a broker that lost its disk counts as on its new one."""
    attached = Unconfirmed.attached

    def once(self: Unconfirmed, window: int, disk: int) -> list[Stamped]:
        again = attached(self, window, disk)
        for first, _, kept in self._kept:
            self._kept.replace(first, kept._replace(disk=disk))
        return again

    patch.setattr(Unconfirmed, "attached", once)


def delivered_after_the_loss_and_a_crash() -> list[int]:
    """b0 loses its disk, is sent again what was only there, and crashes before any of it is on the new disk."""
    chain = Chain()
    chain.crash("b1", "b2")
    chain.run(4)
    chain.publish(5)
    chain.run(2)
    assert chain.confirmed() == [1, 2, 3, 4, 5]
    chain.network.crash("b0", keep_state=False)
    chain.restart("b0", "b1")  # b1 has the log
    while not chain.broker("b0").delivery.queue:
        chain.run(0.01)
    assert chain.broker("b0").delivery.spilled_bytes == 0
    chain.crash("b0", "b1")
    chain.restart("b0", "b1", "b2")
    chain.run(15)
    chain.publish(1)
    chain.run(1)
    assert chain.confirmed() == [1, 2, 3, 4, 5, 6]  # each once
    return chain.delivered()


def test_what_was_on_a_lost_disk_is_sent_until_it_is_on_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert delivered_after_the_loss_and_a_crash() == [1, 2, 3, 4, 5, 6]
    sent_again_once(monkeypatch)
    assert delivered_after_the_loss_and_a_crash() == [6]


def test_a_full_disk_holds_the_publisher_up_and_loses_nothing() -> None:
    chain = Chain()
    chain.crash("b1", "b2")
    chain.run(4)
    chain.stores["b0"].full = True
    chain.publish(5)
    chain.run(2)
    assert chain.confirmed() == []
    (failure,) = [fact for fact in chain.facts["b0"] if isinstance(fact, SpillFailed)]
    assert "the disk is full" in failure.reason
    chain.stores["b0"].full = False
    chain.run(1)
    assert chain.confirmed() == [1, 2, 3, 4, 5]
    chain.restart("b1", "b2")
    chain.run(10)
    assert chain.delivered() == [1, 2, 3, 4, 5]
    assert not chain.missed()


def test_a_sender_waits_while_too_much_of_its_own_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.core.overlay.guaranteed.hops.MAX_WAITING_PER_SENDER", 4)
    for patience in ("SLOW_NS", "PROMPT_NS"):
        monkeypatch.setattr(f"tidings.core.overlay.guaranteed.parking.{patience}", 3600 * S)
    chain = Chain(window=2)
    chain.clients["s"].session.acknowledges = False  # it takes nothing
    chain.publish(50)
    chain.run(5)
    queues = [len(chain.broker(name).delivery.queue) for name in LABELS]
    assert max(queues) <= 10
    finish(chain, "s")
    chain.run(5)
    assert chain.delivered() == list(range(1, 51))


def finish(chain: Chain, client: str) -> None:
    """It is done with all that it was shown, and with what it will be."""
    chain.clients[client].session.acknowledges = True
    for fact in chain.facts[client]:
        if isinstance(fact, Delivered) and fact.ticket is not None:
            fact.ticket.done()


def confirmed_within(chain: Chain, duration_s: float) -> bool:
    """Whether one more publication is."""
    before = len(chain.confirmed())
    chain.publish(1)
    chain.run(duration_s)
    return len(chain.confirmed()) == before + 1


@pytest.mark.parametrize("away", [False, True], ids=["slow", "away"])
def test_who_publishes_one_by_one_hardly_waits_for_a_subscriber_that_takes_nothing(away: bool) -> None:
    chain = Chain()
    chain.clients["s"].session.acknowledges = False
    if away:
        chain.crash("b2")
        chain.run(10)  # until its neighbours have noticed
    assert confirmed_within(chain, 0.6 if away else 0.1)
    assert all(confirmed_within(chain, 0.02) for _ in range(20))
    if away:
        chain.restart("b2")
        chain.run(10)
    finish(chain, "s")
    chain.run(1)
    assert chain.delivered() == list(range(1, 22))
    assert not chain.broker("b0").delivery.queue
    assert not chain.broker("b0").delivery._parking._away


# --- Nonsense


def send(chain: Chain, sender: str, to: str, message: object) -> None:
    chain.network.nodes[sender].send(to, message)  # type: ignore[arg-type]
    chain.run(0.1)


@pytest.mark.parametrize("kind", [Passed, Parked])
def test_a_confirmation_of_an_unknown_publication_is_reported_and_ignored(kind: type) -> None:
    chain = Chain()
    chain.publish(1)
    send(chain, "b1", "b0", kind(((99, 99),)))
    assert any("confirms publication 99" in text for text in chain.trouble("b0"))
    send(chain, "b1", "b0", Taken(99))
    chain.publish(1)
    assert chain.delivered() == [1, 2]


def test_sequences_from_the_past_are_confirmed_and_not_delivered_again() -> None:
    chain = Chain()
    chain.publish(3)
    old = make_publication("p", 0, 2, "/a", {}, b"other", 0)
    send(chain, "p", "b0", Stamped(chain.broker("b0").generation, 1, old))
    assert chain.delivered() == [1, 2, 3]
    assert not chain.broker("b0").delivery.queue


def test_sequences_from_the_far_future_and_stamps_beyond_the_log_are_refused() -> None:
    chain = Chain()
    chain.publish(1)
    generation = chain.broker("b0").generation
    far = make_publication("p", 0, 10**12, "/a", {}, b"", 0)
    send(chain, "p", "b0", Stamped(generation, 1, far))
    assert "too far ahead" in chain.trouble("b0")[-1]
    beyond = make_publication("p", 0, 2, "/a", {}, b"", 0)
    send(chain, "p", "b0", Stamped(generation, 10**6, beyond))
    assert "beyond the log" in chain.trouble("b0")[-1]
    other = make_publication("q", 0, 2, "/a", {}, b"", 0)
    send(chain, "p", "b0", Stamped(generation, 1, other))
    assert "may not publish as 'q'" in chain.trouble("b0")[-1]
    chain.publish(1)
    chain.run(1)
    assert chain.delivered() == [1, 2]
    assert not [fact for fact in chain.facts["p"] if isinstance(fact, PublicationFailed)]


def test_a_client_that_acknowledges_what_it_never_got_is_reported() -> None:
    chain = Chain()
    send(chain, "s", "b2", Notified(7))
    assert "never sent" in chain.trouble("b2")[-1]


def test_a_publication_before_synchronisation_is_not_taken() -> None:
    chain = Chain()
    publication = make_publication("x", 0, 1, "/a", {}, b"", 0)
    send(chain, "b0", "b2", Forward("b0", (0,), 1, 1, (), publication))
    assert chain.delivered() == []


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (Greeting((0, 0), 3, 1, 1), "has delta = 3"),
        (Greeting((0, 0, 0), 1, 1, 1), "is known at 0.0, not 0.0.0"),
    ],
    ids=["delta", "label"],
)
def test_a_greeting_that_does_not_fit_is_refused(greeting: Greeting, text: str) -> None:
    chain = Chain()
    chain.crash("b1")
    chain.run(5)
    sessions = chain.broker("b0").sessions
    sessions.on_link_up("b1")
    sessions.on_greeting("b1", greeting)
    assert text in chain.trouble("b0")[-1]
    assert not sessions.established("b1")


def test_two_brokers_with_one_label_do_not_both_get_in() -> None:
    chain = Chain()
    sessions = chain.broker("b0").sessions
    sessions.on_link_up("s")
    sessions.on_greeting("s", Greeting((0, 0), 1, 1, 1))
    assert "label 0.0 of broker 's' is taken by 'b1'" in chain.trouble("b0")[-1]


def test_a_filter_that_cannot_be_read_is_widened_and_reported() -> None:
    chain = Chain()
    record = Record("b1/1/7", "b1", (0, 0), ("/b",), "x >>> 3")
    send(chain, "b1", "b0", Records((record,)))
    assert "cannot read the filter of record" in chain.trouble("b0")[-1]
    assert chain.broker("b0").log.get("b1/1/7") is not None


@pytest.mark.parametrize("table", ["log", "clients", "spill", "identity"])
def test_what_does_not_decode_on_disk_is_said_and_nothing_is_touched(table: str) -> None:
    chain = Chain()
    chain.crash("b0")
    node = chain.network.nodes["b0"]
    tables = node.disk["tables"]
    key = b"broker" if table == "identity" else b"\x01"
    tables.setdefault(table, {})[key] = b"\xc1nonsense"
    with pytest.raises(StoreCorrupt):
        chain.restart("b0")
    assert tables[table][key] == b"\xc1nonsense"
