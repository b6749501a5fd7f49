"""The entries of the directory, kept so that what is asked of them costs little, and cut into messages."""

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
"""At most what such a message has beside its items and names."""
MAX_STRETCH = 2_000
"""Names that one answer is about."""
PATTERN_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode


def standing(entry: BrokerEntry) -> tuple[int, int]:
    """The greater one of two entries of a broker replaces the other."""
    return entry.incarnation, entry.version


def fingerprint(entry: BrokerEntry) -> int:
    """The entry's share in the digest of a directory, which is the exclusive or of all of them."""
    key = _encode((entry.broker, entry.incarnation, entry.version))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def announces(entries: Iterable[BrokerEntry]) -> Iterator[Announce]:
    """The entries in messages of bounded size; an entry that alone is larger has one for itself."""
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
    """What is known of the names from `first` to before `last`, in parts of bounded size without gaps between."""
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
    """The entries, our own among them, with all that is asked of them kept up to date entry by entry."""

    def __init__(self, own: BrokerEntry) -> None:
        self.own = own
        self.others: dict[str, BrokerEntry] = {}
        self.fingerprint = fingerprint(own)
        self._names = [own.broker]
        self._subscribed: dict[bytes, dict[str, None]] = {}
        """By the first bytes of a pattern, which name it nearly always: brokers may differ in how many they use,
        and one partner too many does no harm. Without ourselves, as the next one."""
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
        """Take the entry in, in the place of an earlier one of that broker."""
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
        """By name, from `first` to before `last`; an empty `last` has no end."""
        end = bisect_left(self._names, last) if last else len(self._names)
        names = self._names[bisect_left(self._names, first) : end]
        return [entry for name in names if (entry := self.get(name)) is not None]

    def stretch(self, random: RandomSource) -> tuple[str, str]:
        """The ends of a part of bounded size that is drawn at random: nearly always all of a small directory.

        It may begin anywhere, since whoever tells of it may stop in the middle.
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
        """Two brokers have one label for a moment at most; the first by name counts, for all who compute it."""
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
