"""The brokers near this one in the primary tree (partitions, section I: neighbourhoods of distance delta + 1).

A broker knows every other one within reach, so that it can bypass up to delta unreachable ones in a row. It
learns them when it joins and keeps them on disk. This module computes what follows from that list.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidings.core.overlay.labels import Label, distance, label_text, step

MAX_CACHED_TARGETS = 4096


class Neighbourhood:
    """Names, labels and addresses of the brokers within `reach` (= delta + 1) of this one in the primary tree.

    This broker itself is not part of it.
    """

    def __init__(self, name: str, label: Label, reach: int) -> None:
        if reach < 1:
            raise ValueError(f"reach is {reach}, but must be at least 1 (delta + 1)")
        self.name = name
        self.label = label
        self.reach = reach
        self.primary: tuple[str, ...] = ()
        """The direct neighbours in the primary tree, ordered by label."""
        self._labels: dict[str, Label] = {}
        self._names: dict[Label, str] = {}
        self._addresses: dict[str, str] = {}
        self._towards: dict[Label, tuple[str, ...]] = {}
        self._behind: dict[str, list[str]] | None = None  # a cache; None: outdated

    def add(self, name: str, label: Label, address: str = "") -> bool:
        """Add a broker, or update its address. Return True if that is news. An empty address keeps the known one."""
        known_label = self._labels.get(name)
        if known_label is None:
            self._check_newcomer(name, label)
            self._labels[name] = label
            self._names[label] = name
            self._addresses[name] = address
            self._changed(label)
            return True
        if known_label != label:
            raise ValueError(
                f"broker {name!r} is known at {label_text(known_label)}, not {label_text(label)}"
            )
        if not address or address == self._addresses[name]:
            return False
        self._addresses[name] = address
        return True

    def remove(self, name: str) -> None:
        """Remove a broker. Raise KeyError if it is unknown."""
        label = self._labels.pop(name)
        del self._names[label], self._addresses[name]
        self._changed(label)

    def __contains__(self, name: str) -> bool:
        return name in self._labels

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order in which they were added."""
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def label_of(self, name: str) -> Label:
        return self._labels[name]

    def name_of(self, label: Label) -> str | None:
        """Return the known broker with this label; None if there is none within reach, or it is this one."""
        return self._names.get(label)

    def address_of(self, name: str) -> str:
        """Return the address where the broker listens; empty if unknown."""
        return self._addresses[name]

    def behind(self, name: str) -> tuple[str, ...]:
        """Return the known brokers one step beyond `name` as seen from here, by label: whom to bypass it to."""
        if name not in self._labels:
            raise KeyError(name)
        if self._behind is None:
            self._behind = {}
            for label in sorted(self._names):
                before = self._names.get(step(label, self.label))
                if before is not None:
                    self._behind.setdefault(before, []).append(self._names[label])
        return tuple(self._behind.get(name, ()))

    def towards(self, target: Label) -> tuple[str, ...]:
        """Return the known brokers within reach on the path from here to `target`, nearest first."""
        found = self._towards.get(target)
        if found is None:
            if len(self._towards) >= MAX_CACHED_TARGETS:
                self._towards.clear()
            found = self._towards[target] = tuple(self._walk(target))
        return found

    def _walk(self, target: Label) -> Iterator[str]:
        at = self.label
        for _ in range(self.reach):
            if at == target:
                return
            at = step(at, target)
            name = self._names.get(at)
            if name is not None:
                yield name

    def _check_newcomer(self, name: str, label: Label) -> None:
        if name == self.name:
            raise ValueError(f"{name!r} is this broker's own name")
        if label == self.label:
            raise ValueError(f"{label_text(label)} is this broker's own label, not that of {name!r}")
        holder = self._names.get(label)
        if holder is not None:
            raise ValueError(f"label {label_text(label)} of broker {name!r} is taken by {holder!r}")
        far = distance(self.label, label)
        if far > self.reach:
            raise ValueError(f"broker {name!r} is at distance {far}, beyond the reach of {self.reach}")

    def _changed(self, label: Label) -> None:
        """Clear caches, because the broker at `label` was added or removed."""
        self._towards.clear()
        self._behind = None
        if distance(self.label, label) == 1:
            near = sorted(other for other in self._names if distance(self.label, other) == 1)
            self.primary = tuple(self._names[other] for other in near)
