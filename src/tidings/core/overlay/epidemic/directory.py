"""The directory: every broker knows every broker's label in the tree, address, loss rate and clients' patterns.

Gossip needs partners anywhere in the network, chosen by interest, position in the tree and loss (epidemic, section 3;
polarized, section III: 'a proper peer sampling service'). Only a broker itself changes its entry. Changes are flooded
along the tree, and neighbours compare digests now and then to repair what floods lose.

Brokers get labels when they join (polarized, section III.A): a parent adds the next digit for each child. Only a
broker's neighbour towards the root can have a label before the broker has one, so no two brokers get the same label.
After a restart that neighbour may have forgotten which labels it gave. So a label follows its parent's, and of two
brokers with the same label, the one later by name asks for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from tidings.core.events.event import INT_MAX
from tidings.core.facts import BrokerKnown, Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.epidemic.messages import (
    MAX_ENTRY_PATTERNS,
    Announce,
    BrokerEntry,
    DirectoryDigest,
    DirectoryVersions,
    LabelAsk,
    LabelGiven,
)
from tidings.core.overlay.epidemic.roster import Roster, announces, standing, version_parts
from tidings.core.overlay.labels import MAX_LABEL_ITEMS, Label

MAX_BROKERS = 100_000
MAX_VERSION = INT_MAX // 2
"""Unreachable by counting: a peer that claims we did is lying."""

GATHER_NS = 20_000_000
"""Changes within this time are announced together."""
ASK_NS = 1_000_000_000
FIRST_DIGEST_NS = 500_000_000
LAST_DIGEST_NS = 16_000_000_000
MIN_ANSWER_NS = 250_000_000
"""The shortest time between answers to a neighbour's digests: an answer is far larger than a digest."""
MAX_BURST = 64
"""Messages per answer: the buffer of a datagram socket should hold them."""


class DirectoryListener:
    """Hears of changes in the directory; for other parts of this broker."""

    def entry_changed(self, entry: BrokerEntry) -> None:
        """Called when an entry is new or has changed, including our own."""


class Directory(Part):
    """Keeps the entries of all brokers up to date, and gives labels to neighbours."""

    name = "directory"
    handles = {
        Announce: "on_announce",
        DirectoryDigest: "on_directory_digest",
        DirectoryVersions: "on_directory_versions",
        LabelAsk: "on_label_ask",
        LabelGiven: "on_label_given",
    }

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        *,
        incarnation: int,
        label: Label | None,
        address: str = "",
    ) -> None:
        """Without a `label`, ask the neighbours for one."""
        super().__init__(port)
        self._neighbours = dict.fromkeys(neighbours)
        self._label_is_given = label is None
        own = BrokerEntry(port.node, incarnation, 1, label or (), address, 0, (), False)
        self._roster = Roster(own)
        self.others: Mapping[str, BrokerEntry] = self._roster.others
        self.ignored = 0
        """Entries ignored because there are MAX_BROKERS already."""
        self.listeners: list[DirectoryListener] = []

        self._changed: dict[str, str] = {own.broker: ""}
        """Brokers whose entries we must announce -> the neighbour that already knows."""
        self._gathering = True
        """The timer that ends the gathering is set. True before the start, so that nothing is sent."""
        self._digest_ns = FIRST_DIGEST_NS
        self._uncompared: list[str] = []
        """Neighbours that got no digest yet in this round."""
        self._unsettled = True
        """In this round our directory changed or differed from a neighbour's, or this is the first round."""
        self._answered_at: dict[str, int] = {}

        self.parent: str | None = None
        """The neighbour towards the root, once known."""
        self._digits: dict[str, int] = {}
        self._next_digit = 0
        self._asking: dict[str, None] = {}
        """Neighbours that asked for a label before we had one."""

    # --- For the other parts of this broker

    @property
    def entry(self) -> BrokerEntry:
        """Our own entry."""
        return self._roster.own

    @property
    def label(self) -> Label | None:
        return self._roster.own.label or None

    def set_patterns(self, patterns: Collection[bytes]) -> None:
        """Set the patterns of our clients; if they are too many to list, claim all patterns."""
        distinct = tuple(sorted(frozenset(patterns)))
        everything = len(distinct) > MAX_ENTRY_PATTERNS
        self._change(patterns=() if everything else distinct, everything=everything)

    def set_loss_ppm(self, loss_ppm: int) -> None:
        """Set the share of messages that the link from our parent loses."""
        self._change(loss_ppm=min(max(loss_ppm, 0), 1_000_000))

    def set_link_loss(self, peer: str, rate: float) -> None:
        """Announce the loss if it is on the link from our parent; each broker announces only that link."""
        if peer == self.parent:
            self.set_loss_ppm(round(rate * 1_000_000))

    def subscribers(self, patterns: Sequence[bytes]) -> Sequence[str]:
        """Return the other brokers with clients that subscribe to one of the patterns, sorted by name."""
        return self._roster.subscribers(patterns)

    def labelled(self) -> Sequence[Label]:
        """Return all labels, including our own, sorted."""
        return self._roster.labelled()

    def rates(self) -> Mapping[Label, float]:
        """Return the share lost on the link from the parent, by label, including our own."""
        return self._roster.rates()

    # --- Start, links and timers

    def start(self) -> None:
        self._gather()
        self._set_digest_timer()
        if self.label is None:
            self._ask()

    def on_link_up(self, peer: str) -> None:
        if peer in self._neighbours:
            self._send_digest(peer)
            if self.label is None:
                self.port.send(peer, LabelAsk())

    def on_timer(self, name: TimerName) -> None:
        match name[1]:
            case "announce":
                self._flood()
            case "digest":
                self._compare()
            case "label":
                self._ask()
            case _:
                super().on_timer(name)

    # --- Changes, flooded along the tree

    def on_announce(self, sender: str, message: Announce) -> None:
        if self._is_neighbour(sender):
            for entry in message.entries:
                self._take(sender, entry)

    def _take(self, sender: str, entry: BrokerEntry) -> None:
        if entry.broker == self.port.node:
            self._take_about_us(sender, entry)
            return
        known = self.others.get(entry.broker)
        if known is not None and standing(entry) <= standing(known):
            return
        if entry.label and entry.label[0] != 0:
            self.port.emit(Misbehaviour(sender, f"announced an invalid label of broker {entry.broker!r}"))
            return
        if known is None and len(self._roster) >= MAX_BROKERS:
            self.ignored += 1
            return
        self._roster.put(entry)
        self._announce_later(entry.broker, sender)
        self._notice_label(entry)
        if entry.broker in self._neighbours and (known is None or known.incarnation != entry.incarnation):
            self._send_digest(entry.broker)  # it has just started and knows no other broker
        if entry.address != (known.address if known is not None else ""):
            self.port.emit(BrokerKnown(entry.broker, entry.address))
        self._tell(entry)

    def _take_about_us(self, sender: str, entry: BrokerEntry) -> None:
        """Skip a version of our entry that others know and we do not: they would ignore a lower one from us."""
        mine = self.entry
        if standing(entry) < standing(mine) or entry == mine:
            return
        if entry.incarnation != mine.incarnation or entry.version > MAX_VERSION:
            self.port.emit(Misbehaviour(sender, "announced an entry of ours that we never made"))
            return
        self._put_own(replace(mine, version=entry.version + 1))

    def _change(self, **changes: Any) -> None:
        mine = self.entry
        changed = replace(mine, **changes)
        if changed != mine:
            self._put_own(replace(changed, version=mine.version + 1))

    def _put_own(self, entry: BrokerEntry) -> None:
        self._roster.put(entry)
        self._announce_later(entry.broker, "")
        self._tell(entry)

    def _tell(self, entry: BrokerEntry) -> None:
        for listener in self.listeners:
            listener.entry_changed(entry)

    def _announce_later(self, broker: str, known_to: str) -> None:
        self._changed[broker] = known_to
        if not self._gathering:
            self._gather()
        self._hasten()

    def _gather(self) -> None:
        self._gathering = True
        self.port.set_timer((self.name, "announce"), self.port.now + GATHER_NS)

    def _flood(self) -> None:
        self._gathering = False
        changed, self._changed = self._changed, {}
        entries = [(self._roster.get(broker), known_to) for broker, known_to in changed.items()]
        for peer in self._neighbours:
            news = [entry for entry, known_to in entries if entry is not None and known_to != peer]
            for message in announces(news):
                self.port.send(peer, message)

    # --- Digests, compared with a neighbour now and then

    def on_directory_digest(self, sender: str, message: DirectoryDigest) -> None:
        if not self._is_neighbour(sender) or message.digest == self._digest():
            return
        self._hasten()
        answered_at = self._answered_at.get(sender)
        if answered_at is not None and self.port.now - answered_at < MIN_ANSWER_NS:
            return
        self._answered_at[sender] = self.port.now
        self._send_versions(sender, *self._roster.stretch(self.port.random), answer_wanted=True)

    def on_directory_versions(self, sender: str, message: DirectoryVersions) -> None:
        if not self._is_neighbour(sender):
            return
        theirs = {broker: (incarnation, version) for broker, incarnation, version in message.versions}
        entries = self._roster.between(message.first, message.last)
        newer = [entry for entry in entries if standing(entry) > theirs.get(entry.broker, (-1, -1))]
        for announce in islice(announces(newer), MAX_BURST):
            self.port.send(sender, announce)
        if message.answer_wanted:
            self._hasten()
            if any(self._lacks(broker, known) for broker, known in theirs.items()):
                self._send_versions(sender, message.first, message.last, answer_wanted=False)

    def _lacks(self, broker: str, known: tuple[int, int]) -> bool:
        entry = self._roster.get(broker)
        return entry is None or standing(entry) < known

    def _send_versions(self, peer: str, first: str, last: str, *, answer_wanted: bool) -> None:
        entries = self._roster.between(first, last)
        parts = version_parts(entries, first, last, answer_wanted=answer_wanted)
        for part in islice(parts, MAX_BURST):
            self.port.send(peer, part)

    def _digest(self) -> bytes:
        return self._roster.fingerprint.to_bytes(8, "big")

    def _send_digest(self, peer: str) -> None:
        self.port.send(peer, DirectoryDigest(self._digest()))

    def _compare(self) -> None:
        """Send a digest to the next neighbour, in random order. When all agree, the next round is slower."""
        if not self._uncompared:
            self._uncompared = list(self._neighbours)
            self.port.random.shuffle(self._uncompared)
            self._digest_ns = FIRST_DIGEST_NS if self._unsettled else min(2 * self._digest_ns, LAST_DIGEST_NS)
            self._unsettled = False
        if self._uncompared:
            self._send_digest(self._uncompared.pop())
        self._set_digest_timer()

    def _hasten(self) -> None:
        """Compare with all neighbours soon, because something changed or differs."""
        self._unsettled = True
        if self._digest_ns != FIRST_DIGEST_NS:
            self._digest_ns = FIRST_DIGEST_NS
            self._set_digest_timer()

    def _set_digest_timer(self) -> None:
        delay_ns = round(self._digest_ns * (0.75 + 0.5 * self.port.random.random()))
        self.port.set_timer((self.name, "digest"), self.port.now + delay_ns)

    # --- Labels

    def on_label_ask(self, sender: str, message: LabelAsk) -> None:
        if not self._is_neighbour(sender):
            return
        if self.label is None:
            self._asking[sender] = None
        else:
            self._give_label(sender, self.label)

    def on_label_given(self, sender: str, message: LabelGiven) -> None:
        """Take the first label given, unless another broker has it, which the giver will learn soon."""
        if not self._is_neighbour(sender) or self.label is not None:
            return
        if len(message.label) < 2 or message.label[0] != 0:
            self.port.emit(Misbehaviour(sender, "gave us an invalid label"))
            return
        if self._roster.held_by_another(message.label, self.port.node):
            return
        self.parent = sender
        self.port.cancel_timer((self.name, "label"))
        self._change(label=message.label)
        for peer in self._neighbours:
            entry = self.others.get(peer)
            if entry is not None:
                self._notice_child(entry, message.label)
        asking, self._asking = self._asking, {}
        for peer in asking:
            self._give_label(peer, message.label)

    def _ask(self) -> None:
        for peer in self._neighbours:
            self.port.send(peer, LabelAsk())
        self.port.set_timer((self.name, "label"), self.port.now + ASK_NS)

    def _give_label(self, child: str, mine: Label) -> None:
        if child == self.parent or len(mine) >= MAX_LABEL_ITEMS:
            return
        digit = self._digits.get(child)
        if digit is None or self._roster.held_by_another((*mine, digit), child):
            digit = self._digits[child] = self._free_digit(child, mine)
        self.port.send(child, LabelGiven((*mine, digit)))

    def _free_digit(self, child: str, mine: Label) -> int:
        given = frozenset(self._digits.values())
        digit = self._next_digit
        while digit in given or self._roster.held_by_another((*mine, digit), child):
            digit += 1
        self._next_digit = digit + 1
        return digit

    def _notice_label(self, entry: BrokerEntry) -> None:
        """Update our label, and the labels we give, after another broker's entry changed."""
        mine = self.label
        if mine is None or not entry.label:
            return
        if entry.broker in self._neighbours:
            if entry.label == mine[:-1]:
                self.parent = entry.broker
            self._notice_child(entry, mine)
        moved = entry.broker == self.parent and entry.label != mine[:-1]
        rival = entry.label == mine and entry.broker < self.port.node
        if self._label_is_given and (moved or rival):
            self._drop_label()

    def _notice_child(self, entry: BrokerEntry, mine: Label) -> None:
        """Remember a child's digit: it keeps it even if it restarts and forgets it, or if we do."""
        if entry.label and entry.label[:-1] == mine:
            self._digits[entry.broker] = entry.label[-1]

    def _drop_label(self) -> None:
        self._digits.clear()
        self._next_digit = 0
        self._change(label=())
        self._ask()

    def _is_neighbour(self, sender: str) -> bool:
        if sender in self._neighbours:
            return True
        self.port.emit(Misbehaviour(sender, "sent a directory message but is not a neighbour"))
        return False
