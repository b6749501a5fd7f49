"""Events that are published together fare in a guaranteed network as if each were published by itself.

The same random script, with crashes, cuts, windows, filters and subscriptions that come and go, is played twice: once
with the events of each call in runs, once one by one. What everybody is shown, and when, is the same. Where a window is
small, a run is told to be taken at once and single events by and by: then what is shown is the same, not when, and all
subscriptions stand before the first event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from breadth import few
from overlay_network import OverlayNetwork, events
from tidings.core.events.run import Run, RunMaker, Stretch
from tidings.core.facts import Delivered
from tidings.core.overlay.guaranteed.hops import Hops
from tidings.core.overlay.guaranteed.messages import Forward
from tidings.core.overlay.guaranteed.queued import Queued
from tidings.core.overlay.guaranteed.spill import Spill, SpillLimits

Step = tuple[float, Callable[[OverlayNetwork], None]]
FILTERS = (None, "x = 1", "x < 2", "x <> 0", "x = 0 OR x = 2")


class Script:
    """What happens in one random run; `together` says how events are published."""

    def __init__(self, seed: int) -> None:
        random = Random(f"runs {seed}")
        self.edges = random.choice(
            ["b0-b1", "b0-b1-b2", "b0-b1-b2-b3", "b0-b1-b2 b1-b3", "b0-b1-b2-b3 b1-b4"]
        )
        brokers = sorted(set(self.edges.replace("-", " ").split()))
        self.delta = random.choice([0, 1, 2])
        self.window = random.choice([1, 2, 3, 5, 8, 64, 64, 64])
        self.publishers = {name: random.choice(brokers) for name in ("p", "q")}
        self.subscribers = {name: random.choice(brokers) for name in ("s", "t", "u", "v")}
        self.limit = random.choice([2, 5, 100_000])
        self.steps: list[Step] = sorted(self._steps(random, brokers), key=lambda step: step[0])

    @property
    def has_times(self) -> bool:
        """When events come can be compared, too."""
        return self.window == 64

    @property
    def first_at(self) -> float:
        """When it begins; else all subscriptions stand by then."""
        return 0.2 if self.has_times else 6.0

    def _steps(self, random: Random, brokers: list[str]) -> Iterator[Step]:
        for name in self.subscribers:
            yield self._subscribe(name, random.uniform(0.5, 4.0), random.choice(FILTERS))
        for name in random.sample(sorted(self.subscribers), random.randint(0, 2) if self.has_times else 0):
            yield random.uniform(5.0, 9.0), lambda network, name=name: network.unsubscribe(name)  # type: ignore[misc]
        for _ in range(random.randint(3, 12)):
            yield self._publish(random)
        for name in random.sample([*brokers, *self.subscribers], random.randint(0, 3)):
            at = random.uniform(self.first_at, 8.0)
            yield at, lambda network, name=name: network.crash(name)  # type: ignore[misc]
            yield at + random.choice([0.3, 2.0, 6.0]), lambda network, name=name: network.restart(name)  # type: ignore[misc]
        for link in random.sample(self.edges.split()[0].split("-")[:-1], random.randint(0, 1)):
            other = f"b{int(link[1]) + 1}"
            at = random.uniform(self.first_at, 8.0)
            yield at, lambda network, link=link, other=other: network.cut(f"{link}-{other}")  # type: ignore[misc]
            yield at + 3.0, lambda network, link=link, other=other: network.heal(f"{link}-{other}")  # type: ignore[misc]

    @staticmethod
    def _subscribe(name: str, at: float, where: str | None) -> Step:
        return at, lambda network: network.subscribe(name, where)

    def _publish(self, random: Random) -> Step:
        name = random.choice(sorted(self.publishers))
        values = [random.randint(0, 2) for _ in range(random.randint(1, 12))]
        return random.uniform(self.first_at, 9.0), lambda network: network.publish_all(name, values)

    def play(self, *, together: bool) -> OverlayNetwork:
        clients = self.publishers | self.subscribers
        limits = SpillLimits(entries=self.limit)
        network = OverlayNetwork(
            self.edges, clients, delta=self.delta, window=self.window, together=together, limits=limits
        )
        for at, step in self.steps:
            step(network.at(at))
        return network.at(40.0)


def fates(network: OverlayNetwork, script: Script) -> dict[str, object]:
    """Of each source at each subscriber: what was shown, and when. A gap is spelt out, for runs end it elsewhere."""
    found: dict[str, object] = {"complaints": sorted(set(network.complaints))}
    for name in script.subscribers:
        for source in script.publishers:
            found[f"{name} of {source}"] = [
                (event, round(at_ms, 3) if script.has_times else None)
                for event, at_ms in network.shown_at(name)
                if event.startswith(f"{source}:")
            ]
    for source in script.publishers:
        found[f"{source} confirmed"] = sorted(network.confirmed(source), key=lambda event: int(event[2:]))
    return found


@pytest.mark.parametrize("seed", few(range(300), 40))
def test_together_or_one_by_one_is_the_same(seed: int) -> None:
    script = Script(seed)
    script.limit = 100_000
    runs, singles = (script.play(together=together) for together in (True, False))
    assert fates(runs, script) == fates(singles, script)
    assert runs.remains() == singles.remains() == []


@pytest.mark.parametrize("seed", few(range(100), 12))
def test_where_there_is_no_room_what_is_shown_and_what_is_missed_is_all(seed: int) -> None:
    """Limits count entries, so runs lose less; what is lost is reported, and nothing is shown twice."""
    script = Script(seed)
    script.limit = 2
    network = script.play(together=True)
    for name in script.subscribers:
        for source in script.publishers:
            shown = [event for event in network.shown(name) if event.startswith(f"{source}:")]
            assert shown == sorted(set(shown), key=lambda event: int(event[2:]))
    assert network.remains() == []


# --- Runs travel as such, and are cut where they must be


def forwards(network: OverlayNetwork) -> list[Stretch]:
    return [message.stretch for _, _, _, message in network.messages if isinstance(message, Forward)]


def line(**options: object) -> OverlayNetwork:
    network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2", "t": "b2"}, together=True, **options)  # type: ignore[arg-type]
    network.at(1.0).subscribe("s")
    return network


def test_a_run_stays_whole_on_its_way() -> None:
    network = line()
    network.at(3.0).publish_all("p", [0] * 50)
    assert network.at(5.0).shown("s") == events("p", 1, 50)
    assert [(stretch.first, stretch.last) for stretch in forwards(network)] == [(1, 50), (1, 50)]


def test_a_filter_cuts_a_run_and_others_get_it_whole() -> None:
    network = OverlayNetwork("b0-b1", {"p": "b0", "s": "b1", "t": "b0"}, together=True)
    network.at(1.0).subscribe("s", "x = 1")
    network.subscribe("t")
    network.at(3.0).publish_all("p", [1, 1, 0, 0, 1, 0])
    assert network.at(5.0).shown("s") == ["p:1", "p:2", "p:5"]
    assert network.shown("t") == events("p", 1, 6)
    assert [(stretch.first, stretch.last) for stretch in forwards(network)] == [(1, 2), (5, 5)]


def test_a_narrow_subscription_that_hangs_on_a_wide_one_gets_its_own() -> None:
    network = line()
    network.at(2.0).subscribe("t", "x = 1")
    network.at(3.0).publish_all("p", [1, 0, 0, 1])
    assert network.at(5.0).shown("s") == events("p", 1, 4)
    assert network.shown("t") == ["p:1", "p:4"]


def test_a_window_cuts_a_run() -> None:
    network = line(window=4)
    network.at(3.0).publish_all("p", [0] * 10)
    assert network.at(6.0).shown("s") == events("p", 1, 10)
    assert max(stretch.count for stretch in forwards(network)) == 4


def test_part_of_a_run_is_done_with_when_the_client_dies() -> None:
    """The rest comes again to its next life, and what was done with does not."""
    network = line()
    network.client("s").session.acknowledges = False
    network.at(3.0).publish_all("p", [0] * 9)
    undone = network.at(3.5).client("s").session._undone["s", "p", 0]
    undone.finish(1, 4)
    network.at(4.0).crash("s")
    network.network.nodes["s"].disk["resume_points"].clear()
    network.at(5.0).restart("s")
    assert network.at(8.0).shown("s") == [*events("p", 1, 9), *events("p", 5, 9)]
    assert network.remains() == []


def test_who_unsubscribes_while_it_is_shown_an_event_is_done_with_it() -> None:
    network = line()
    session, node = network.client("s").session, network.network.nodes["s"]
    session.acknowledges = False
    emit = node.emit

    def leave(fact: object) -> None:
        emit(fact)
        if isinstance(fact, Delivered):
            session.unsubscribe(fact.subscription)

    network.at(3.0).publish("p")
    assert [*network.at(3.5).client("s").session._undone] == [("s", "p", 0)]
    node.emit = leave
    network.at(4.0).publish("p")
    assert network.at(6.0).shown("s") == events("p", 1, 2)
    assert session._undone == {}
    assert network.remains() == []


def test_a_run_on_disk_is_rewritten_where_part_of_it_is_done_with() -> None:
    network = line()
    network.at(3.0).crash("s")
    network.at(4.0).publish_all("p", [0] * 9)
    spilled = network.at(8.0).broker("b0").delivery.spilled_bytes
    assert spilled > 0
    network.client("s").session.acknowledges = True
    network.restart("s")
    session = network.client("s").session
    session.acknowledges = False
    undone = network.at(9.0).client("s").session._undone["s", "p", 0]
    undone.finish(1, 7)
    assert 0 < network.at(11.0).broker("b0").delivery.spilled_bytes < spilled
    network.crash("b0", "s")
    network.network.nodes["s"].disk["resume_points"].clear()
    network.at(12.0).restart("b0", "s")
    assert network.at(30.0).shown("s") == [*events("p", 1, 9), *events("p", 8, 9)]
    assert network.broker("b0").delivery.spilled_bytes == 0


def test_of_a_run_that_is_known_in_part_the_rest_is_taken() -> None:
    network = line()
    sender = network.at(3.0).network.nodes["b0"]
    for at, (first, last) in enumerate(((1, 6), (3, 9), (2, 9), (8, 12)), 31):
        maker = RunMaker("p", 0)
        for sequence in range(first, last + 1):
            maker.add(sequence, "/t", {}, b"", 0)
        [run] = maker.take_all()
        sender.send("b1", Forward("b0", (0,), 1, 1, (), run))
        network.at(at / 10)
    assert network.at(5.0).shown("s") == events("p", 1, 12)
    passed_on = [
        (message.stretch.first, message.stretch.last)
        for _, source, _, message in network.messages
        if source == "b1" and isinstance(message, Forward)
    ]
    assert passed_on == [(1, 6), (7, 9), (10, 12)]


# --- What is broken on purpose is found


def forget_the_rest_of_a_split(patch: pytest.MonkeyPatch) -> None:
    def split(self: Hops, queued: Queued, at: int) -> Queued:
        return self._queue.split(queued, at)  # no hop hears of it

    patch.setattr(Hops, "split", split)


def confirm_a_run_with_its_first_event(patch: pytest.MonkeyPatch) -> None:
    def exactly(self: Hops, hop: object, first: int, last: int) -> list[Queued]:
        outgoing = self._outgoing.get(hop)  # type: ignore[call-overload]
        return [] if outgoing is None else [queued for _, _, queued in outgoing.sent.overlapping(first, last)]

    patch.setattr(Hops, "_exactly", exactly)


def route_a_run_by_its_first_event(patch: pytest.MonkeyPatch) -> None:
    from tidings.core.overlay.matching import Matcher

    def cut(self: Matcher, run: Run, complain: object) -> list[Stretch]:
        first = run.publications()[0]
        return [self._remember(run, self.select(first))]

    patch.setattr(Matcher, "cut", cut)


def count_a_run_as_one(patch: pytest.MonkeyPatch) -> None:
    from tidings.core.overlay.guaranteed.hops import Senders

    count = Senders.count
    patch.setattr(Senders, "count", lambda self, sender, many: count(self, sender, 1))


def take_a_run_whole_that_is_known_in_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tidings.core.overlay.guaranteed.delivery._from", lambda stretch, first: stretch)


def keep_the_row_as_it_was(patch: pytest.MonkeyPatch) -> None:
    def sweep(self: Spill) -> None:
        done = [key for key, row in self._outdated.items() if not row.pieces]
        self._store.write([("spill", key, None) for key in done])
        self._outdated = {}

    patch.setattr(Spill, "sweep", sweep)


def same_targets_for_a_whole_run(patch: pytest.MonkeyPatch) -> None:
    from tidings.core.overlay.guaranteed import local_subscriptions

    cut = local_subscriptions._cut
    patch.setattr(local_subscriptions, "_cut", lambda stretch, *rest: [(stretch, cut(stretch, *rest)[0][1])])


CHECKS: dict[str, Callable[[], None]] = {
    "twins": lambda: [test_together_or_one_by_one_is_the_same(seed) for seed in range(40)] and None,  # type: ignore[func-returns-value]
    "rows": test_a_run_on_disk_is_rewritten_where_part_of_it_is_done_with,
    "narrow": test_a_narrow_subscription_that_hangs_on_a_wide_one_gets_its_own,
    "overlap": test_of_a_run_that_is_known_in_part_the_rest_is_taken,
    "death": test_part_of_a_run_is_done_with_when_the_client_dies,
}


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (forget_the_rest_of_a_split, "twins"),
        (confirm_a_run_with_its_first_event, "death"),
        (route_a_run_by_its_first_event, "twins"),
        (count_a_run_as_one, "twins"),
        (take_a_run_whole_that_is_known_in_part, "overlap"),
        (keep_the_row_as_it_was, "rows"),
        (same_targets_for_a_whole_run, "narrow"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_is_broken_on_purpose_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - it may break anywhere
        CHECKS[check]()
