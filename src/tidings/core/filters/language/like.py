"""Normalises SQL LIKE patterns and matches them in near-linear time.

A pattern is split at each `%` into segments. The first is anchored at the start of the text, the last at its end, and
each one between goes to the leftmost place where it fits, which is right because a later place never leaves more
room. `str.find` searches for segments of plain text. Segments that contain `_` are searched for with one bit per
position of the text: n characters cost n / 64 machine words per character of the segment, plus one pass over the
text for each distinct character. Regular expressions are never used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidings.core.errors import FilterError
from tidings.core.filters.language.steps import Steps

ESCAPE = "\\"

Token = tuple[str, bool]
"""A character, and whether it is a wildcard (`%` or `_`) rather than literal."""

_ANY: Token = ("%", True)
_ONE: Token = ("_", True)
_GAP = "\ud800"
"""Represents a wildcard in `_solid`: an unpaired surrogate, which no filter's text contains."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """The part between two `%`: `length` characters, with the given texts at the given offsets."""

    length: int
    chunks: tuple[tuple[int, str], ...]

    @property
    def solid(self) -> str | None:
        """The segment's text, or None if it contains `_`."""
        if len(self.chunks) == 1 and len(self.chunks[0][1]) == self.length:
            return self.chunks[0][1]
        return None

    def fits(self, text: str, start: int) -> bool:
        return all(text.startswith(chunk, start + offset) for offset, chunk in self.chunks)


@dataclass(frozen=True, slots=True, order=True, init=False)
class Like:
    """A LIKE pattern in canonical form: no consecutive `%`, `_` before `%`, backslash as the escape."""

    pattern: str
    prefix: str = field(compare=False)
    """The text before the first wildcard."""
    literal: str | None = field(compare=False)
    """The only text that matches, or None if the pattern has a wildcard."""
    is_prefix: bool = field(compare=False)
    """True if the pattern is exactly `prefix` and one `%`."""
    _tokens: tuple[Token, ...] = field(compare=False, repr=False)
    _segments: tuple[_Segment, ...] = field(compare=False, repr=False)
    _shortest: int = field(compare=False, repr=False)
    _solid: str = field(compare=False, repr=False)
    """The pattern with `_GAP` in place of each wildcard."""
    _longest: str = field(compare=False, repr=False)
    """The longest text between two wildcards."""
    _suffix: str = field(compare=False, repr=False)
    """The text after the last wildcard."""
    _is_one_chunk: bool = field(compare=False, repr=False)
    """True if the only wildcards are a `%` before or after a single text."""

    def __init__(self, pattern: str, escape: str = ESCAPE) -> None:
        tokens = _canonical(_tokenise(pattern, escape))
        first_wild = next((place for place, token in enumerate(tokens) if token[1]), len(tokens))
        prefix = "".join(character for character, _ in tokens[:first_wild])
        assign = object.__setattr__
        assign(self, "pattern", _spell(tokens))
        assign(self, "prefix", prefix)
        assign(self, "literal", prefix if first_wild == len(tokens) else None)
        assign(self, "is_prefix", first_wild == len(tokens) - 1 and tokens[-1] == _ANY)
        segments = _cut(tokens)
        chunks = [chunk for segment in segments for _, chunk in segment.chunks]
        last_wild = next((place for place in range(len(tokens), 0, -1) if tokens[place - 1][1]), 0)
        assign(self, "_tokens", tokens)
        assign(self, "_segments", segments)
        assign(self, "_shortest", sum(token != _ANY for token in tokens))
        assign(self, "_solid", "".join(_GAP if wild else character for character, wild in tokens))
        assign(self, "_longest", max(chunks, key=len, default=""))
        assign(self, "_suffix", "".join(character for character, _ in tokens[last_wild:]))
        assign(self, "_is_one_chunk", len(chunks) < 2 and _ONE not in tokens and _GAP not in self.pattern)

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches; `_` is one code point, and wildcards also match line breaks."""
        if self.literal is not None:
            return text == self.literal
        if len(text) < self._shortest:
            return False
        first, last = self._segments[0], self._segments[-1]
        if len(self._segments) == 1:
            return len(text) == first.length and first.fits(text, 0)
        end = len(text) - last.length
        if not (first.fits(text, 0) and last.fits(text, end)):
            return False
        return len(self._segments) == 2 or self._middle_fits(text, first.length, end)

    def _middle_fits(self, text: str, position: int, end: int) -> bool:
        places: dict[str, int] = {}
        for segment in self._segments[1:-1]:
            solid = segment.solid
            if solid is not None:
                position = text.find(solid, position, end)
            else:
                position = _find(segment, text, position, end, places)
            if position < 0:
                return False
            position += segment.length
        return True

    def to_sql(self) -> str:
        """Return the pattern as LIKE reads it with the default escape, not yet quoted as a string literal."""
        return self.pattern

    def covers(self, other: Like, steps: Steps) -> bool:
        """Return True only if this pattern matches every text that `other` matches.

        `other` is treated as a text in which only `%` matches `%`, and only `_` or `%` matches `_`. So each text
        between two of our wildcards must occur between two of its wildcards, which decides most pairs.
        """
        if self.pattern == other.pattern:
            return True
        steps.spend(1 + (len(self._longest) * len(other._solid) >> 10))
        if other.literal is not None:
            steps.spend(self.match_steps(len(other.literal)))
            return self.matches(other.literal)
        if self.literal is not None or self._shortest > other._shortest:
            return False
        if not (other.prefix.startswith(self.prefix) and other._solid.endswith(self._suffix)):
            return False
        if self._longest not in other._solid:
            return False
        return self._is_one_chunk or _tokens_cover(self._tokens, other._tokens, steps)

    def match_steps(self, length: int) -> int:
        """Return the most steps that matching a text of this length can take."""
        signs = len(self._tokens)
        return 3 + (signs + length >> 3) + (signs * length >> 10)

    def __str__(self) -> str:
        return self.pattern


def _tokenise(pattern: str, escape: str) -> list[Token]:
    if len(escape) != 1:
        raise FilterError(f"the escape of LIKE must be one character, not {escape!r}")
    tokens: list[Token] = []
    characters = iter(pattern)
    for character in characters:
        if character != escape:
            tokens.append((character, character in "%_"))
            continue
        escaped = next(characters, None)
        if escaped is None:
            raise FilterError(f"the LIKE pattern {pattern!r} ends with its escape character {escape!r}")
        if escaped not in ("%", "_", escape):
            raise FilterError(
                f"in the LIKE pattern {pattern!r} the escape character {escape!r} comes before {escaped!r}; "
                f"it is allowed only before %, _ and itself"
            )
        tokens.append((escaped, False))
    return tokens


def _canonical(tokens: list[Token]) -> tuple[Token, ...]:
    """Return an equivalent pattern where each run of wildcards is its `_`s, then at most one `%`."""
    kept: list[Token] = []
    pending = False
    for token in tokens:
        if token == _ANY:
            pending = True
            continue
        if pending and token != _ONE:
            kept.append(_ANY)
            pending = False
        kept.append(token)
    if pending:
        kept.append(_ANY)
    return tuple(kept)


def _spell(tokens: tuple[Token, ...]) -> str:
    return "".join(
        character if wild or character not in ("%", "_", ESCAPE) else ESCAPE + character
        for character, wild in tokens
    )


def _cut(tokens: tuple[Token, ...]) -> tuple[_Segment, ...]:
    segments: list[_Segment] = []
    length, chunks, text = 0, [], ""
    for token in (*tokens, _ANY):
        if token[1] and text:
            chunks.append((length - len(text), text))
            text = ""
        if token == _ANY:
            segments.append(_Segment(length, tuple(chunks)))
            length, chunks = 0, []
            continue
        length += 1
        if token != _ONE:
            text += token[0]
    # the added % closes the last segment; a pattern that ends in % has an empty last one
    return tuple(segments)


def _find(segment: _Segment, text: str, start: int, end: int, places: dict[str, int]) -> int:
    """Return the leftmost place in text[start:end] where a segment with `_` fits, or -1."""
    room = end - start - segment.length + 1
    if room <= 0:
        return -1
    candidates = (1 << room) - 1
    for offset, chunk in segment.chunks:
        for index, character in enumerate(chunk, offset):
            if character not in places:
                places[character] = _positions(character, text)
            candidates &= places[character] >> (start + index)
            if not candidates:
                return -1
    return start + (candidates & -candidates).bit_length() - 1


def _positions(character: str, text: str) -> int:
    """Return the positions of the character in the text as bits."""
    bits = bytearray(len(text) // 8 + 1)
    position = text.find(character)
    while position >= 0:
        bits[position >> 3] |= 1 << (position & 7)
        position = text.find(character, position + 1)
    return int.from_bytes(bits, "little")


def _token_covers(mine: Token, theirs: Token) -> bool:
    return theirs != _ANY if mine == _ONE else mine == theirs


def _with_gaps(tokens: tuple[Token, ...]) -> list[Token | int]:
    """Return the tokens with each `_`..`_%` replaced by a gap: the least number of characters it matches."""
    items: list[Token | int] = []
    for token in tokens:
        if token != _ANY:
            items.append(token)
            continue
        ones = 0
        while items and items[-1] == _ONE:
            items.pop()
            ones += 1
        items.append(ones)
    return items


def _tokens_cover(mine: tuple[Token, ...], theirs: tuple[Token, ...], steps: Steps) -> bool:
    """Match with one point to backtrack to: after a mismatch, the last gap takes one more token."""
    steps.spend(len(mine) + len(theirs))
    items = _with_gaps(mine)
    here = there = 0
    retry_here = retry_there = -1
    while here < len(items) or there < len(theirs):
        item = items[here] if here < len(items) else None
        if isinstance(item, int):
            there = _after(theirs, there, item)
            if there < 0:
                return False
            here += 1
            retry_here, retry_there = here, there
        elif item is not None and there < len(theirs) and _token_covers(item, theirs[there]):
            here, there = here + 1, there + 1
        elif 0 <= retry_there < len(theirs):
            steps.spend(1 + (here - retry_here >> 1))
            retry_there += 1
            here, there = retry_here, retry_there
        else:
            return False
    return True


def _after(tokens: tuple[Token, ...], position: int, count: int) -> int:
    """Return the position after `count` more tokens other than `%`, or -1."""
    while count:
        if position == len(tokens):
            return -1
        count -= tokens[position] != _ANY
        position += 1
    return position
