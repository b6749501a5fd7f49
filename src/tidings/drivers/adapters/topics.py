"""Maps topics to the names of existing brokers, one to one: each level is escaped.

A character that the broker reserves, and `%` itself, becomes `%` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidings.core.events.topics import TopicPattern

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
