"""The entries of the directory, indexed so that queries are cheap, and their division into messages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.messages import Announce, BrokerEntry, DirectoryVersions
from tidings.core.overlay.labels import Label

MAX_MESSAGE_BYTES = 1_200
MAX_MESSAGE_ITEMS = 1024
ENVELOPE_BYTES = 8
"""An upper bound on what such a message has apart from its items and names."""
MAX_STRETCH = 2_000
"""How many names one answer covers."""
PATTERN_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode


def standing(entry: BrokerEntry) -> tuple[int, int]:
    """Return what orders the entries of a broker: the greater replaces the other."""
    return entry.incarnation, entry.version


def fingerprint(entry: BrokerEntry) -> int:
    """Return the entry's hash; the digest of a directory is the exclusive or of all of them."""
    key = _encode((entry.broker, entry.incarnation, entry.version))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def announces(entries: Iterable[BrokerEntry]) -> Iterator[Announce]:
    """Pack the entries into messages of bounded size; an entry that exceeds it gets its own message."""
    run: list[BrokerEntry] = []
    size_bytes = ENVELOPE_BYTES
    for entry in entries:
        entry_bytes = len(_encode(entry))
        if run and (size_bytes + entry_bytes > MAX_MESSAGE_BYTES or len(run) == MAX_MESSAGE_ITEMS):
            yield Announce(tuple(run))
            run, size_bytes = [], ENVELOPE_BYTES
        run.append(entry)
        size_bytes += entry_bytes
    if run:
        yield Announce(tuple(run))


def version_parts(
    entries: Sequence[BrokerEntry], first: str, last: str, *, answer_wanted: bool
) -> Iterator[DirectoryVersions]:
    """List the versions of the names from `first` to before `last`, in messages of bounded size, without gaps."""
    following = [*(entry.broker for entry in entries[1:]), last]
    run: list[tuple[str, int, int]] = []
    size_bytes = ENVELOPE_BYTES + len(_encode(first))
    for entry, end in zip(entries, following, strict=False):
        version = (entry.broker, entry.incarnation, entry.version)
        version_bytes = len(_encode(version))
        full = size_bytes + version_bytes + len(_encode(end)) > MAX_MESSAGE_BYTES
        if run and (full or len(run) == MAX_MESSAGE_ITEMS):
            yield DirectoryVersions(tuple(run), answer_wanted, first, entry.broker)
            run, first = [], entry.broker
            size_bytes = ENVELOPE_BYTES + len(_encode(first))
        run.append(version)
        size_bytes += version_bytes
    yield DirectoryVersions(tuple(run), answer_wanted, first, last)


class Roster:
    """Holds all entries, including our own, and updates its indexes entry by entry."""

    def __init__(self, own: BrokerEntry) -> None:
        self.own = own
        self.others: dict[str, BrokerEntry] = {}
        self.fingerprint = fingerprint(own)
        self._names = [own.broker]
        self._subscribed: dict[bytes, dict[str, None]] = {}
        """First bytes of a pattern -> other brokers that subscribe. These bytes nearly always suffice: brokers may
        differ in how many they use, and a partner too many does no harm. Excludes us, as does the next one."""
        self._to_everything: dict[str, None] = {}
        self._holders: dict[Label, dict[str, None]] = {}
        self._labels: tuple[Label, ...] | None = None
        self._rates: dict[Label, float] | None = None
        self._add_label(own)

    def __len__(self) -> int:
        return len(self._names)

    def get(self, broker: str) -> BrokerEntry | None:
        return self.own if broker == self.own.broker else self.others.get(broker)

    def put(self, entry: BrokerEntry) -> None:
        """Add the entry, or replace the broker's earlier one."""
        previous = self.get(entry.broker)
        if previous is None:
            insort(self._names, entry.broker)
        else:
            self.fingerprint ^= fingerprint(previous)
            _discard(self._holders, previous.label, previous.broker)
        self.fingerprint ^= fingerprint(entry)
        if previous is None or (previous.label, previous.loss_ppm) != (entry.label, entry.loss_ppm):
            self._labels = self._rates = None
        self._add_label(entry)
        if entry.broker == self.own.broker:
            self.own = entry
            return
        if previous is not None:
            self._drop_patterns(previous)
        self.others[entry.broker] = entry
        self._add_patterns(entry)

    def between(self, first: str, last: str) -> list[BrokerEntry]:
        """Return the entries by name, from `first` to before `last`, or to the end if `last` is empty."""
        end = bisect_left(self._names, last) if last else len(self._names)
        names = self._names[bisect_left(self._names, first) : end]
        return [entry for name in names if (entry := self.get(name)) is not None]

    def stretch(self, random: RandomSource) -> tuple[str, str]:
        """Draw a part of bounded size and return its ends; for a small directory, it is nearly always everything.

        It may start anywhere, since the sender may stop in the middle of a part.
        """
        start = max(0, random.randrange(len(self._names) + MAX_STRETCH) - MAX_STRETCH)
        end = start + MAX_STRETCH
        first = self._names[start] if start else ""
        return first, self._names[end] if end < len(self._names) else ""

    def subscribers(self, patterns: Iterable[bytes]) -> list[str]:
        found = dict(self._to_everything)
        for pattern in patterns:
            found.update(self._subscribed.get(pattern[:PATTERN_BYTES], ()))
        return sorted(found)

    def held_by_another(self, label: Label, broker: str) -> bool:
        return any(holder != broker for holder in self._holders.get(label, ()))

    def labelled(self) -> Sequence[Label]:
        if self._labels is None:
            self._labels = tuple(sorted(self._holders))
        return self._labels

    def rates(self) -> Mapping[Label, float]:
        if self._rates is None:
            self._rates = {label: self._rate(holders) for label, holders in self._holders.items()}
        return self._rates

    def _rate(self, holders: Iterable[str]) -> float:
        """Return the loss rate of a label. Two brokers share one only briefly; the first by name counts everywhere."""
        entry = self.get(min(holders))
        return entry.loss_ppm / 1e6 if entry is not None else 0.0

    def _add_label(self, entry: BrokerEntry) -> None:
        if entry.label:
            self._holders.setdefault(entry.label, {})[entry.broker] = None

    def _add_patterns(self, entry: BrokerEntry) -> None:
        if entry.everything:
            self._to_everything[entry.broker] = None
        for pattern in entry.patterns:
            self._subscribed.setdefault(pattern[:PATTERN_BYTES], {})[entry.broker] = None

    def _drop_patterns(self, entry: BrokerEntry) -> None:
        self._to_everything.pop(entry.broker, None)
        for pattern in entry.patterns:
            _discard(self._subscribed, pattern[:PATTERN_BYTES], entry.broker)


def _discard(index: dict[Any, dict[str, None]], key: Any, broker: str) -> None:
    brokers = index.get(key)
    if brokers is not None:
        brokers.pop(broker, None)
        if not brokers:
            del index[key]
