"""Topics are paths (`/news/bbc`). Topic patterns select them: exactly, by any level (`*`), or as a subtree (`/**`).

`/a/**` selects `/a` and everything below it. `*` matches exactly one level and may be anywhere; `**` may only be at the
end.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tidings.core.errors import TopicError

MAX_TOPIC_BYTES = 1024
MAX_TOPIC_LEVELS = 64


def _split(path: str, what: str) -> tuple[str, ...]:
    if not isinstance(path, str):
        raise TopicError(f"{what} {path!r} is not a string")
    if not path.startswith("/") or path == "/":
        raise TopicError(f"{what} {path!r} must start with '/' and name at least one level")
    if len(path.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise TopicError(f"{what} {path[:40]!r}... is longer than {MAX_TOPIC_BYTES} bytes")
    levels = tuple(path[1:].split("/"))
    if len(levels) > MAX_TOPIC_LEVELS:
        raise TopicError(f"{what} {path[:40]!r}... has more than {MAX_TOPIC_LEVELS} levels")
    for level in levels:
        if not level:
            raise TopicError(f"{what} {path!r} has an empty level")
        if not level.isprintable():
            raise TopicError(f"{what} {path!r} has an unprintable character")
    return levels


@lru_cache(maxsize=65_536)
def check_topic(topic: str) -> str:
    """Return `topic` if one can publish on it; raise TopicError otherwise."""
    for level in _split(topic, "topic"):
        if "*" in level:
            raise TopicError(f"topic {topic!r} has a wildcard; only topic patterns may have one")
    return topic


class TopicPattern:
    """A parsed topic pattern. Patterns with equal text are equal."""

    __slots__ = ("_below", "exact", "levels", "subtree", "text")

    def __init__(self, text: str) -> None:
        levels = _split(text, "topic pattern")
        self.text = text
        self.subtree = levels[-1] == "**"
        self.levels = levels[:-1] if self.subtree else levels
        wild = "*" in self.levels
        self.exact = not self.subtree and not wild
        self._below = text[:-2] if self.subtree and not wild else None
        """For a subtree without wildcards: what all topics below it start with, including the slash."""
        for level in self.levels:
            if "*" in level and level != "*":
                raise TopicError(
                    f"topic pattern {text!r}: '*' must be a whole level, '**' may only be at the end"
                )

    @property
    def prefix(self) -> str:
        """The text that every selected topic starts with."""
        fixed = []
        for level in self.levels:
            if level == "*":
                break
            fixed.append("/" + level)
        return "".join(fixed)

    def matches(self, topic: str) -> bool:
        """Return True if the pattern selects this topic."""
        if self.exact:
            return topic == self.text
        below = self._below
        if below is not None:
            return topic.startswith(below) or topic == below[:-1]
        parts = topic[1:].split("/")
        if len(parts) < len(self.levels) or (not self.subtree and len(parts) != len(self.levels)):
            return False
        return all(level in ("*", part) for level, part in zip(self.levels, parts, strict=False))

    def covers(self, other: TopicPattern) -> bool:
        """Return True if and only if every topic that `other` selects is selected here."""
        if self.subtree:
            if len(other.levels) < len(self.levels):
                return False
        elif other.subtree or len(other.levels) != len(self.levels):
            return False
        return all(mine in ("*", theirs) for mine, theirs in zip(self.levels, other.levels, strict=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"TopicPattern({self.text!r})"


EVERYTHING = TopicPattern("/**")
NAME_TOPIC = "/~share/"
"""Before the name of a durable subscription or group: a topic that carries no events. A subscription with such a topic
always has a record of its own: every broker must see it in its log, and it must bring nothing that is older than it."""


def canonical_topics(patterns: Iterable[str | TopicPattern]) -> tuple[TopicPattern, ...]:
    """Return the smallest equivalent set of patterns, sorted; no patterns mean all topics. Names stay, whatever covers
    them."""
    parsed = {p if isinstance(p, TopicPattern) else TopicPattern(p) for p in patterns} or {EVERYTHING}
    covering = _Covering(p for p in parsed if not p.exact)
    kept = (p for p in parsed if p.text.startswith(NAME_TOPIC) or not covering.has_another(p))
    return tuple(sorted(kept, key=lambda p: p.text))


class _Covering:
    """Patterns by shape, that is by where their wildcards are: one lookup per shape finds a cover for a pattern."""

    def __init__(self, patterns: Iterable[TopicPattern]) -> None:
        self._shapes: dict[tuple[int, bool, tuple[int, ...]], set[tuple[str, ...]]] = {}
        for pattern in patterns:
            fixed = tuple(place for place, level in enumerate(pattern.levels) if level != "*")
            names = tuple(pattern.levels[place] for place in fixed)
            self._shapes.setdefault((len(pattern.levels), pattern.subtree, fixed), set()).add(names)

    def has_another(self, pattern: TopicPattern) -> bool:
        """Return True if another pattern covers this one."""
        levels = pattern.levels
        count = len(levels)
        own = (count, pattern.subtree, tuple(place for place in range(count) if levels[place] != "*"))
        for shape, names in self._shapes.items():
            length, subtree, fixed = shape
            if shape == own or (count < length if subtree else pattern.subtree or count != length):
                continue
            if tuple(levels[place] for place in fixed) in names:
                return True
        return False
