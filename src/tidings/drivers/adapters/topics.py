"""Maps topics to the names of existing brokers, one to one: each level is escaped.

A character that the broker reserves, and `%` itself, becomes `%` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidings.core.events.topics import TopicPattern

MAX_COMPARISONS = 50_000
"""The most comparisons of patterns to see whether they overlap; beyond that, they count as overlapping."""

_ESCAPED = re.compile("%([0-9A-F]{2})")


class TopicNames:
    """The topic names of one kind of broker: a prefix, then levels between separators."""

    def __init__(self, separator: str, reserved: str, any_level: str) -> None:
        self._separator = separator
        self._any_level = any_level
        self._escapes = str.maketrans({character: f"%{ord(character):02X}" for character in f"%{reserved}"})

    def name(self, prefix: str, topic: str) -> str:
        """Return the broker's name of a topic."""
        return self._join(prefix, topic[1:].split("/"))

    def topic(self, prefix: str, name: str) -> str | None:
        """Return the topic of a name; None if the name was not made by `name`."""
        head = prefix + self._separator
        if not name.startswith(head):
            return None
        levels = (_unescape(level) for level in name[len(head) :].split(self._separator))
        topic = "/" + "/".join(levels)
        return topic if self.name(prefix, topic) == name else None

    def pattern(self, prefix: str, pattern: TopicPattern) -> str:
        """Return the broker's name of a pattern, without its `**` if it has one."""
        return self._join(prefix, pattern.levels)

    def _join(self, prefix: str, levels: Iterable[str]) -> str:
        names = (self._any_level if level == "*" else level.translate(self._escapes) for level in levels)
        return self._separator.join((prefix, *names))


def _unescape(level: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), level)


def overlap(patterns: Sequence[TopicPattern]) -> bool:
    """Return True if some topic may match two of these different patterns: a broker would deliver it twice."""
    wild = [each for each in patterns if not each.exact]
    if len(wild) * len(patterns) > MAX_COMPARISONS:
        return True
    return any(_meet(one, other) for one in wild for other in patterns if one is not other)


def _meet(one: TopicPattern, other: TopicPattern) -> bool:
    pairs = zip(one.levels, other.levels, strict=False)
    if any(mine != theirs and "*" not in (mine, theirs) for mine, theirs in pairs):
        return False
    shorter, longer = sorted((one, other), key=lambda pattern: len(pattern.levels))
    return len(shorter.levels) == len(longer.levels) or shorter.subtree
