"""Asks for missing events: where negative digests go, and what they contain (epidemic, figure 3).

There are three ways: to subscribers and the origin, chosen by weight; along the tree towards subscribers of one
pattern; along the route back to one origin. If some blocks of an event are here, we ask only for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.blocks import Assembly
from tidings.core.overlay.epidemic.cache import Cached
from tidings.core.overlay.epidemic.digest_cutter import DigestCutter
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners
from tidings.core.overlay.epidemic.messages import Lost, Range, Solicit, Want
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.epidemic.recovery_state import LostKey, RecoveryState
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.structures.range_set import RangeSet

DIGEST_BYTES = 1_200
"""A digest fits into one datagram."""
MAX_ROUTES = 4_096
STRAIGHT = 0.2
"""The share of publisher pulls that go straight to the origin instead of along the route."""

SUBSCRIBER_PULL, PUBLISHER_PULL = "subscriber-pull", "publisher-pull"

Send = Callable[[str, Solicit], None]
SendTowards = Callable[[bytes, Solicit], None]


class Pulls:
    """Solicits losses. `send` sends to a broker, `send_towards` along the tree towards subscribers of a pattern."""

    def __init__(
        self,
        port: Port,
        settings: RecoverySettings,
        patterns: Patterns,
        recovery_state: RecoveryState,
        gossip_partners: GossipPartners,
        send: Send,
        send_towards: SendTowards,
    ) -> None:
        self._port = port
        self._settings = settings
        self._patterns = patterns
        self._recovery_state = recovery_state
        self._gossip_partners = gossip_partners
        self._send = send
        self._send_towards = send_towards
        self._cutter: DigestCutter[LostKey] = DigestCutter()
        self._routes: dict[str, tuple[str, ...]] = {}
        """Origin -> the brokers on the way back to it, the nearest first."""

    def learn_route(self, entry: Cached) -> None:
        """Remember the way back to the origin; only for events from the tree: gossip takes other paths."""
        self._routes.pop(entry.origin, None)
        self._routes[entry.origin] = entry.route[::-1]
        if len(self._routes) > MAX_ROUTES:
            del self._routes[next(iter(self._routes))]

    def ask(self) -> bool:
        """Ask for what is missing, once per round; return False if nothing is."""
        wanted = [
            assembly
            for assembly in self._recovery_state.incomplete()  # some are here only to be recoded and forwarded
            if any(map(self._patterns.subscribed, _patterns(assembly)))
        ]
        missing = self._recovery_state.lost(), wanted
        if not any(missing):
            return False
        algorithm: str = self._settings.algorithm
        if algorithm == "combined":
            algorithm = PUBLISHER_PULL if self._port.random.random() < 0.5 else SUBSCRIBER_PULL
        if algorithm == PUBLISHER_PULL:
            self._ask_origin(*missing)
        elif self._settings.routing == "tree":
            self._ask_along_tree(*missing)
        else:
            self._ask_partners(*missing)
        return True

    def _ask_origin(self, lost: Mapping[LostKey, RangeSet], incomplete: Sequence[Assembly]) -> None:
        origins = dict.fromkeys([key[0] for key in lost] + [assembly.origin for assembly in incomplete])
        origin = self._port.random.choice(list(origins))
        mine = {key: ranges for key, ranges in lost.items() if key[0] == origin}
        partial = [assembly for assembly in incomplete if assembly.origin == origin]
        route = self._routes.get(origin)
        if route is None or self._port.random.random() < STRAIGHT:
            route = (origin,)  # no route is known, or the known one may be broken by now
        lost_digest, wants = self._digest(mine, partial)
        self._send(route[0], Solicit(self._port.node, b"", route[1:], lost_digest, wants, PUBLISHER_PULL))

    def _ask_along_tree(self, lost: Mapping[LostKey, RangeSet], incomplete: Sequence[Assembly]) -> None:
        patterns = dict.fromkeys([key[1] for key in lost])
        for assembly in incomplete:
            patterns |= dict.fromkeys(_patterns(assembly))
        # Only patterns with losses; the paper may pick others, too.
        pattern = self._port.random.choice(list(patterns))
        mine = {key: ranges for key, ranges in lost.items() if key[1] == pattern}
        partial = [assembly for assembly in incomplete if pattern in _patterns(assembly)]
        lost_digest, wants = self._digest(mine, partial)
        self._send_towards(
            pattern, Solicit(self._port.node, pattern, (), lost_digest, wants, SUBSCRIBER_PULL)
        )

    def _ask_partners(self, lost: Mapping[LostKey, RangeSet], incomplete: Sequence[Assembly]) -> None:
        """Choose partners for each pattern and origin with losses; send each partner one message."""
        lost_of: dict[str, dict[LostKey, RangeSet]] = {}
        partial_of: dict[str, list[Assembly]] = {}
        groups: dict[tuple[str, bytes], list[LostKey]] = {}
        for key in lost:
            groups.setdefault(key[:2], []).append(key)
        for (origin, pattern), keys in groups.items():
            for partner in self._partners((pattern,), origin):
                lost_of.setdefault(partner, {}).update({key: lost[key] for key in keys})
        for assembly in incomplete:
            for partner in self._partners(_patterns(assembly), assembly.origin):
                partial_of.setdefault(partner, []).append(assembly)
        for partner in dict.fromkeys((*lost_of, *partial_of)):
            lost_digest, wants = self._digest(lost_of.get(partner, {}), partial_of.get(partner, []))
            self._send(partner, Solicit(self._port.node, b"", (), lost_digest, wants, SUBSCRIBER_PULL))

    def _partners(self, patterns: tuple[bytes, ...], origin: str) -> list[str]:
        """Choose partners; with an adaptive interval only one, since the next attempt soon follows.

        That one is the origin half of the time, as in the combined pull: few others have what was lost near it.
        """
        if not self._settings.adaptive:
            return self._gossip_partners.choose(patterns, self._settings.fanout, pulling=True, also=origin)
        if self._gossip_partners.known(origin) and self._port.random.random() < 0.5:
            return [origin]
        return self._gossip_partners.choose(patterns, 1, pulling=True, also=origin)

    def _digest(
        self, lost: Mapping[LostKey, RangeSet], incomplete: Sequence[Assembly]
    ) -> tuple[tuple[Lost, ...], tuple[Want, ...]]:
        """Return as much as fits into a datagram; the rest waits for another round."""
        fitting = fit(incomplete, DIGEST_BYTES)
        cut = self._cutter.cut(lost, DIGEST_BYTES, lambda key: len(key[0]) + len(key[1]) + 16)
        self._recovery_state.asked(cut, fitting)
        return tuple((*key, ranges) for key, ranges in cut), tuple(map(want, fitting))


def want(assembly: Assembly) -> Want:
    return (*assembly.id, assembly.lacks())


def fit(assemblies: Iterable[Assembly], limit_bytes: int) -> list[Assembly]:
    """Return as many of the first assemblies as fit into a digest of that size, but at least one."""
    fitting: list[Assembly] = []
    for assembly in assemblies:
        source, _, _, lacks = want(assembly)
        limit_bytes -= len(source) + 16 + sum(8 + len(mask) for _, _, mask in lacks)
        if limit_bytes < 0 and fitting:
            break
        fitting.append(assembly)
    return fitting


def closed(ranges: RangeSet) -> tuple[Range, ...]:
    return tuple((start, stop - 1) for start, stop in ranges)


def _patterns(assembly: Assembly) -> tuple[bytes, ...]:
    return tuple(pattern for pattern, _, _ in assembly.numbers)
