"""Gossip rounds: which digest goes to which partners, and how a broker handles one that arrives.

push            forwards each event or block to partners on arrival (polarized), or a digest of the cache every round
subscriber-pull solicits losses from subscribers, or advertises the cache to them
publisher-pull  solicits losses along the route back to the origin
combined        tosses a coin between the two pulls
push+pull       3PG: the top of the tree pushes, every broker pulls

Digests go directly to brokers of the directory, chosen by weight; with routing = "tree" they go along the tree towards
subscribers, as in the epidemic paper. Events that answer a digest go straight to the broker that lacks them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.epidemic.answers import Answers
from tidings.core.overlay.epidemic.blocks import Assembly
from tidings.core.overlay.epidemic.budget import Budget, data_bytes
from tidings.core.overlay.epidemic.cache import Cached
from tidings.core.overlay.epidemic.digest_cutter import DigestCutter
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners
from tidings.core.overlay.epidemic.messages import (
    Ask,
    Carried,
    Fragment,
    IdRanges,
    Offer,
    PatternNumbers,
    Solicit,
    later,
)
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.epidemic.pulls import DIGEST_BYTES, SUBSCRIBER_PULL, Pulls, closed, fit, want
from tidings.core.overlay.epidemic.recovery_state import RECEIVED_WINDOW, RecoveryState
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.recent_ids import RecentIds

MAX_OFFERED = 4_096
"""How many events of one offer we look at."""
MAX_ASKED = 16_384
MAX_RANGES_ASKED = 64
"""The limit per source: it must fit into a message."""
MAX_PUSHED = 4_096
"""Events in blocks whose partners are remembered; blocks of an older event are no longer pushed."""
FASTEST = 8
"""An adaptive interval shrinks to an eighth at most."""
PUSH = "push"

Identity = tuple[str, int, int]
Ids = Mapping[tuple[str, int], RangeSet]


class Gossip(Part):
    """Runs the rounds, pushes what arrives, and answers what other brokers ask for."""

    name = "gossip"
    handles = {Offer: "on_offer", Ask: "on_ask", Solicit: "on_solicit"}

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        settings: RecoverySettings,
        patterns: Patterns,
        recovery_state: RecoveryState,
        gossip_partners: GossipPartners,
    ) -> None:
        super().__init__(port)
        self.pushes = self.useful_pushes = self.pulls = self.useful_pulls = self.pushed = 0
        self._neighbours = frozenset(neighbours)
        self._settings = settings
        self._patterns = patterns
        self._recovery_state = recovery_state
        self._gossip_partners = gossip_partners
        self.budget = Budget(port, settings.gossip_bytes_per_s)
        self.answers = Answers(port, settings, recovery_state, self.budget)
        self.asking = Pulls(
            port, settings, patterns, recovery_state, gossip_partners, self._send, self._send_towards
        )
        self._interval_ns = settings.interval_ns
        self._round_at = 0
        self._busy = False
        """Something was recovered or requested since the last round."""
        self._fresh: list[dict[Identity, PatternNumbers]] = [{}]
        """New events to advertise: one entry per round, the current round last."""
        self._listed = RecentIds(RECEIVED_WINDOW)
        self._partners: OrderedDict[Identity, tuple[str, ...]] = OrderedDict()
        """Event in blocks -> the brokers to which we push its blocks."""
        self._asked: dict[Identity, int] = {}
        """Offered event that we asked for -> how long we wait for the answer."""
        self._cutter: DigestCutter[tuple[str, int]] = DigestCutter()

    # --- Rounds

    def start(self) -> None:
        if self._settings.algorithm != "none":
            # Random, so that brokers that start together do not gossip in step.
            first_ns = 1 + self.port.random.randrange(self._interval_ns)
            self._set_round(self.port.now + first_ns)

    def hasten(self) -> None:
        """Start the next round early, if the interval is adaptive, because something is missing."""
        soon = self.port.now + self._settings.interval_ns // FASTEST
        if self._settings.adaptive and soon < self._round_at:
            self._set_round(soon)

    def _set_round(self, at: int) -> None:
        self._round_at = at
        self.port.set_timer((self.name, "round"), at)

    def on_timer(self, name: TimerName) -> None:
        self.answers.begin_round()
        self._recovery_state.expire()
        self._asked = {event: until for event, until in self._asked.items() if until > self.port.now}
        settings = self._settings
        if settings.pushes_digests:
            self._push_digest()
        if settings.advertises:
            self._advertise()
        if settings.solicits and self.asking.ask():
            self._busy = True
        self._adapt()
        self._set_round(self.port.now + self._interval_ns)

    def _adapt(self) -> None:
        base_ns = self._settings.interval_ns
        if self._settings.adaptive:
            wish_ns = self._interval_ns // 2 if self._busy else self._interval_ns * 3 // 2
            self._interval_ns = min(max(wish_ns, base_ns // FASTEST), base_ns)
        self._busy = False

    # --- Push

    def on_gained(self, entry: Cached, sender: str, by: str) -> None:
        """Handle complete events that arrived for the first time, by that algorithm (empty: the tree)."""
        if by:
            self._busy = True
        elif entry.route:
            self.asking.learn_route(entry)
        if self._recovery_state.losses.lost:
            self.hasten()
        identity = entry.identity
        self._list(identity, entry.numbers, entry.stretch.count)
        if self._may_push(entry.origin) and identity not in self._partners:
            partners = self._draw(entry.numbers, (sender, entry.origin), by)
            messages = self.answers.messages(entry, PUSH) if partners else ()
            if len(messages) > 1:
                self._keep_partners(identity, partners)
            for partner in partners:
                self._push(partner, messages)

    def on_block(self, assembly: Assembly, message: Fragment, sender: str) -> None:
        """Handle a useful block: other brokers may need it, too."""
        identity = assembly.id
        self._list(identity, assembly.numbers)
        if not self._may_push(assembly.origin):
            return
        partners: Sequence[str] | None = self._partners.get(identity)
        if partners is None:
            partners = self._draw(assembly.numbers, (sender, assembly.origin), message.by)
            self._keep_partners(identity, partners)
        for partner in partners:
            self._push(partner, (self.answers.pushed_block(assembly, message, PUSH),))

    def _may_push(self, origin: str) -> bool:
        """Return True if we push. In 3PG: the window, and the origin, which is the root of the paper's tree."""
        if not self._settings.pushes_events:
            return False
        return (
            self._settings.algorithm == "push" or origin == self.port.node or self._gossip_partners.may_push()
        )

    def _draw(self, numbers: PatternNumbers, without: Sequence[str], by: str) -> Sequence[str]:
        patterns = tuple(pattern for pattern, _, _ in numbers)
        return self._gossip_partners.choose(patterns, self._settings.fanout, without=without, by_tree=not by)

    def _keep_partners(self, identity: Identity, partners: Sequence[str]) -> None:
        """Remember the partners, so that all blocks of an event go to the same brokers."""
        self._partners[identity] = tuple(partners)
        if len(self._partners) > MAX_PUSHED:
            self._partners.popitem(last=False)

    def _push(self, partner: str, messages: Sequence[Carried | Fragment]) -> None:
        if self.budget.spend(sum(map(data_bytes, messages))):
            self.pushed += len(messages)
            for message in messages:
                self.port.send(partner, message)

    @property
    def sent(self) -> int:
        """Events and blocks sent by gossip."""
        return self.pushed + self.answers.messages_sent

    def on_pushed(self, useful: bool) -> None:
        """Count an event or a block that was pushed to us."""
        self.pushes += 1
        self.useful_pushes += useful

    def _push_digest(self) -> None:
        # Only patterns with something to offer; the paper may pick one with an empty digest.
        patterns = list(self._recovery_state.cache.patterns())
        if not patterns:
            return
        pattern = self.port.random.choice(patterns)
        events = self._cut(self._recovery_state.cache.ids(pattern))
        if self._settings.routing == "tree":
            self._send_towards(pattern, Offer(self.port.node, pattern, events, PUSH))
            return
        for partner in self._gossip_partners.choose((pattern,), self._settings.fanout):
            self._send(partner, Offer(self.port.node, b"", events, PUSH))

    # --- Advertising

    def _list(self, first: Identity, numbers: PatternNumbers, count: int = 1) -> None:
        """Advertise these events in the next rounds; no more than the cache keeps for brokers that ask."""
        if not self._settings.advertises:
            return
        source, incarnation, sequence = first
        for place in range(count):
            if len(self._fresh[-1]) >= self._settings.buffer_events:
                return
            if self._listed.first_time(source, incarnation, sequence + place):
                self._fresh[-1][source, incarnation, sequence + place] = later(numbers, place)

    def _advertise(self) -> None:
        listed = {identity: numbers for known in self._fresh for identity, numbers in known.items()}
        self._fresh.append({})
        del self._fresh[: -self._settings.listed_rounds]
        if not listed:
            return
        patterns = tuple(dict.fromkeys(pattern for numbers in listed.values() for pattern, _, _ in numbers))
        for partner in self._gossip_partners.choose(patterns, self._settings.fanout, pulling=True):
            ids: dict[tuple[str, int], RangeSet] = {}
            for (source, incarnation, sequence), numbers in listed.items():
                if self._gossip_partners.wants(partner, numbers):
                    ids.setdefault((source, incarnation), RangeSet()).add(sequence)
            self._send(partner, Offer(self.port.node, b"", self._cut(ids), SUBSCRIBER_PULL))

    # --- Incoming digests

    def on_offer(self, sender: str, message: Offer) -> None:
        if not self._gossip_partners.known(message.initiator):
            self.port.emit(Misbehaviour(sender, "forwarded an offer of an unknown broker"))
            return
        self.pulls += 1
        subscribed = not message.pattern or self._patterns.subscribed(message.pattern)
        ask = self._missing(message) if subscribed else None
        if ask is not None:
            self.useful_pulls += 1
            self._send(message.initiator, ask)
        if message.pattern:
            self._pass_on(sender, message.pattern, subscribed, message)

    def _missing(self, message: Offer) -> Ask | None:
        events: list[IdRanges] = []
        partial: list[Assembly] = []
        left = MAX_OFFERED
        for source, incarnation, ranges in message.events:
            absent = RangeSet()
            for first, last in ranges:
                stop = min(last + 1, first + left)
                left -= max(0, stop - first)
                for sequence in range(first, stop):
                    if not self._may_ask((source, incarnation, sequence)):
                        continue
                    assembly = self._recovery_state.assemblies.get(source, incarnation, sequence)
                    if assembly is None:
                        absent.add(sequence)
                    else:
                        partial.append(assembly)
            if absent:
                events.append((source, incarnation, closed(absent)[:MAX_RANGES_ASKED]))
        if not events and not partial:
            return None
        return Ask(tuple(events), tuple(map(want, fit(partial, DIGEST_BYTES))), message.by)

    def _may_ask(self, event: Identity) -> bool:
        """Return False if we have the event or wait for an answer: several brokers may offer the same event."""
        if self._recovery_state.has(*event) or self._asked.get(event, 0) > self.port.now:
            return False
        if len(self._asked) < MAX_ASKED:
            self._asked[event] = self.port.now + self._settings.grace_ns
        return True

    def on_ask(self, sender: str, message: Ask) -> None:
        if not self._gossip_partners.known(sender):
            self.port.emit(Misbehaviour(sender, "asked for events but is not a known broker"))
            return
        self._busy = True
        self.answers.answer_ids(sender, message.events, message.by)
        self.answers.answer_partial(sender, message.partial, message.by)

    def on_solicit(self, sender: str, message: Solicit) -> None:
        to = message.initiator
        if to == self.port.node or not self._gossip_partners.known(to):
            self.port.emit(Misbehaviour(sender, "forwarded a request of an unknown broker"))
            return
        self._busy = True
        self.pulls += 1
        sent, lost = self.answers.answer_lost(to, message.lost, message.by)
        blocks_sent, partial = self.answers.answer_partial(to, message.partial, message.by)
        self.useful_pulls += bool(sent or blocks_sent)
        if not lost and not partial:
            return
        if message.route:
            onward = Solicit(to, b"", message.route[1:], lost, partial, message.by)
            self._walk_on(sender, onward, message.route[0])
        elif message.pattern:
            onward = Solicit(to, message.pattern, (), lost, partial, message.by)
            self._pass_on(sender, message.pattern, self._patterns.subscribed(message.pattern), onward)

    def _walk_on(self, sender: str, onward: Solicit, hop: str) -> None:
        """Follow a route. A forged one leads only to known brokers, and gets shorter with every step."""
        if hop not in (self.port.node, sender) and self._gossip_partners.known(hop):
            self._send(hop, onward)

    # --- Along the tree

    def _send_towards(self, pattern: bytes, message: Offer | Solicit, *, but: str = "") -> None:
        """Send to `fanout` neighbours on the way to subscribers of the pattern, never back to the previous hop."""
        open_hops = [hop for hop in self._patterns.hops(pattern) if hop != but]
        for hop in self.port.random.sample(open_hops, min(self._settings.fanout, len(open_hops))):
            self._send(hop, message)

    def _pass_on(self, sender: str, pattern: bytes, subscribed: bool, message: Offer | Solicit) -> None:
        """Forward a digest with the configured probability; always if we are no subscriber.

        Otherwise, as in the paper's push, gossip would die before it reaches a subscriber. `literal` keeps the paper's
        rule for experiments.
        """
        if sender not in self._neighbours:
            return
        always = not subscribed and not (self._settings.literal and isinstance(message, Offer))
        if always or self.port.random.random() < self._settings.forward_probability:
            self._send_towards(pattern, message, but=sender)

    # --- Shared

    def _cut(self, ids: Ids) -> tuple[IdRanges, ...]:
        cut = self._cutter.cut(ids, DIGEST_BYTES, lambda key: len(key[0]) + 16)
        return tuple((*key, ranges) for key, ranges in cut)

    def _send(self, to: str, message: Offer | Ask | Solicit) -> None:
        if self.budget.spend(DIGEST_BYTES):
            self.port.send(to, message)
