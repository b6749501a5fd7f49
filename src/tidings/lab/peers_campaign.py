"""Runs random processes without brokers by the hundred: each seed is one set of topics with its faults.

Partitions of two or three groups, links that are not transitive, losses up to 30 %, duplicates, reordering, crashes
with and without a new life, while everybody publishes. Once all is healed, every member that never crashed has every
event of publishers that never crashed, and every event that any of them has, exactly once; all report the same stable
views; and nobody keeps anything any more, unless a member is gone. A seed replays its run exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from tidings.lab.peers_network import Heal, PeersNetwork
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser

MODULE = "tidings.lab.peers_campaign"
BEGIN_S = 6.0
SETTLE_S, LOOK_S = 120.0, 3.0


class Published(NamedTuple):
    publisher: str
    topic: str


def replay_command(seed: int) -> str:
    return f"python -m {MODULE} --seeds {seed}:{seed + 1}"


def run_seed(seed: int) -> CampaignResult:
    """Run the network of that seed; whatever goes wrong is among the problems."""
    run = RandomPeers(Random(f"{seed}:peers"), seed)
    problems = problems_of(run.problems, AssertionError)
    shown = sum(map(len, run.network.shown.values()))
    return CampaignResult(
        seed, problems, len(run.published), shown, run.network.network.schedule.steps, replay_command(seed)
    )


class RandomPeers:
    """One random network."""

    def __init__(self, random: Random, seed: int) -> None:
        self._random = random
        count = random.randint(3, 12)
        names = [f"p{number}" for number in range(count)]
        topics = {
            f"/t{number}": sorted(random.sample(names, random.randint(2, count)))
            for number in range(random.randint(1, 3))
        }
        self.published: dict[str, Published] = {}
        self._crashed: dict[str, None] = {}
        self._heals: list[tuple[float, Heal]] = []
        self.network = PeersNetwork(
            names,
            topics,
            delay_ms=random.choice((1, 5, 50)),
            loss=random.choice((0.0, 0.0, 0.05, 0.2, 0.3)),
            duplicate=random.choice((0.0, 0.1)),
            reorder=random.choice((0.0, 0.1)),
            cut=self._cuts(names) if random.random() < 0.5 else (),
            seed=seed,
        )

    def _cuts(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return who never hears whom; the others connect everybody with everybody."""
        random = self._random
        order = random.sample(names, len(names))
        tree = {frozenset((order[place], order[random.randrange(place)])) for place in range(1, len(order))}
        share = random.choice((0.2, 0.6, 1.0))
        pairs = [(left, right) for place, left in enumerate(names) for right in names[:place]]
        return [pair for pair in pairs if frozenset(pair) not in tree and random.random() < share]

    def problems(self) -> Iterator[str]:
        random, network = self._random, self.network
        network.run(BEGIN_S)
        end_s = BEGIN_S + random.uniform(4.0, 15.0)
        acts = [self._publish] * random.randint(5, 40)
        acts += [self._split] * random.randint(0, 3) + [self._crash] * random.choice((0, 0, 1, 2))
        for at_s, number in sorted((random.uniform(BEGIN_S, end_s), number) for number in range(len(acts))):
            self._heal(at_s)
            network.run(at_s)
            acts[number]()
        self._heal(float("inf"))
        found = list(self._unsettled())
        while found and network.now_s < end_s + SETTLE_S:
            network.run(network.now_s + LOOK_S)
            found = list(self._unsettled())
        yield from found
        yield from network.complaints[:3]

    def _heal(self, until_s: float) -> None:
        for at_s, heal in sorted(self._heals, key=lambda each: each[0]):
            if at_s <= until_s:
                self.network.run(max(at_s, self.network.now_s))
                heal()
        self._heals = [each for each in self._heals if each[0] > until_s]

    # --- What happens

    def _publish(self) -> None:
        name = self._random.choice(self.network.names)
        topic = self._random.choice(list(self.network.topics))
        for _ in range(self._random.choice((1, 1, 1, 5)) if name not in self._crashed else 0):
            size_bytes = self._random.choice((10, 10, 3_000))
            self.published[self.network.publish(name, topic, bytes(size_bytes))] = Published(name, topic)

    def _split(self) -> None:
        groups: list[list[str]] = [[] for _ in range(self._random.randint(2, 3))]
        for name in self.network.names:
            self._random.choice(groups).append(name)
        self._heals.append((self.network.now_s + self._random.uniform(0.3, 8.0), self.network.split(*groups)))

    def _crash(self) -> None:
        name = self._random.choice(self.network.names)
        if name not in self._crashed:
            self._crashed[name] = None
            self.network.network.crash(name, keep_state=False)
            if self._random.random() < 0.5:
                restart = partial(self.network.network.restart, name)
                self._heals.append((self.network.now_s + self._random.uniform(0.1, 6.0), restart))

    # --- What must hold

    def _unsettled(self) -> Iterator[str]:
        if self._is_whole():
            yield from self._lost_or_repeated()
            yield from self._unequal_views()
            yield from self._left_over()

    def _is_whole(self) -> bool:
        """Return whether all who are up can reach each other: without a process that has crashed, some may not."""
        up = [name for name in self.network.names if self.network.is_up(name)]
        links = self.network.network.link
        reached, waiting = {up[0]}, [up[0]]
        while waiting:
            name = waiting.pop()
            near = [each for each in up if each not in reached and not links(name, each).cuts]
            reached.update(near)
            waiting += near
        return len(reached) == len(up)

    def _lost_or_repeated(self) -> Iterator[str]:
        network = self.network
        correct = [name for name in network.names if name not in self._crashed]
        for name in correct:
            shown = network.shown[name]
            if len(set(shown)) < len(shown):
                yield f"{name} was shown {next(each for each in shown if shown.count(each) > 1)} twice"
        for event, (publisher, topic) in self.published.items():
            members = [name for name in network.topics[topic] if name in correct and name != publisher]
            without = [name for name in members if event not in network.shown[name]]
            if without and (publisher in correct or len(without) < len(members)):
                yield f"{event} on {topic} was never shown to {', '.join(without)}"

    def _unequal_views(self) -> Iterator[str]:
        for topic, names in self.network.topics.items():
            up = tuple(name for name in names if self.network.is_up(name))
            for name in up:
                members, stable = self.network.view(name, topic)
                if (members, stable) != (up, True):
                    yield f"{name} has {'a stable' if stable else 'an unstable'} view of {topic}: {members}"

    def _left_over(self) -> Iterator[str]:
        if all(map(self.network.is_up, self.network.names)):
            for name in self.network.names:
                if name not in self._crashed and self.network.kept_bytes(name):
                    yield f"{name} still keeps {self.network.kept_bytes(name)} bytes"


def main(arguments: Sequence[str] | None = None) -> int:
    options = seeds_parser(MODULE, __doc__).parse_args(arguments)
    return run_command(options, run_seed, replay_command)


if __name__ == "__main__":
    raise SystemExit(main())
