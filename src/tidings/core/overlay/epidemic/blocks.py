"""Large events in blocks: cutting, putting together, coding, and the bounds on what is being put together.

A payload is cut into blocks of `block_bytes`, and the blocks into generations of at most 16, as equal as possible.
Each block travels in a `Fragment` of its own, plain or as a combination of its generation's blocks. The last plain
block travels as short as it is; in combinations it has zeros behind it, which are cut off in the end.

Every fragment carries what routes it, so the attributes are never cut: they are in each fragment, and an event with
more than MAX_INLINE_ATTRIBUTES_BYTES of them cannot be cut.

Two checks guard what is delivered: a checksum per fragment, against damage on the way, and a digest of the whole
payload, against blocks that do not belong together: combinations spread a wrong block into all that is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from operator import attrgetter
from struct import Struct as Layout
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw

from tidings.core.errors import AttributeValueError, WireError
from tidings.core.events.event import MAX_EVENT_BYTES, EventId, Publication, rebuild_publication
from tidings.core.events.run import Run
from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.messages import Carried, Fragment, Lack, PatternNumbers
from tidings.core.overlay.epidemic.network_coding import Decoder

MAX_GENERATION_BLOCKS = 16
MAX_GENERATIONS = 1024
"""So many can be asked for at once."""
MAX_INLINE_ATTRIBUTES_BYTES = 32 * 1024
DIGEST_BYTES = 8
HEADER_BYTES = 80
"""At most what a fragment has beside names, attributes, numbers, coefficients and data."""
SMALLEST_BLOCK_BYTES = 256

ASSEMBLY_OVERHEAD_BYTES = 2048
BLOCK_OVERHEAD_BYTES = 256
"""About what Python needs beside the data: an event of tiny blocks must not be free."""


class Header(NamedTuple):
    """What all fragments of an event have in common."""

    origin: str
    numbers: PatternNumbers
    source: str
    incarnation: int
    sequence: int
    topic: str
    published_at: int
    attributes: bytes
    payload_bytes: int
    digest: bytes
    block_bytes: int
    header: bytes


Identity = tuple[str, int, int]
"""An EventId, as a tuple that is cheaper to make."""
Block = tuple[int, bytes, int, bytes]
"""(generation, coefficients, index, data), as in Fragment"""

header_of = attrgetter(*Header._fields)
"""What a fragment says of its event, as a plain tuple."""
_encode = msgspec.msgpack.Encoder().encode
_decode_payload = msgspec.msgpack.Decoder(bytes).decode
_place = Layout("<QHH").pack


def plan(payload_bytes: int, block_bytes: int) -> tuple[int, ...]:
    """How many blocks each generation has; an empty payload is one empty block."""
    blocks = max(1, -(-payload_bytes // block_bytes))
    generations = -(-blocks // MAX_GENERATION_BLOCKS)
    size, larger = divmod(blocks, generations)
    return (size + 1,) * larger + (size,) * (generations - larger)


def in_blocks(carried: Carried, block_bytes: int, datagram_bytes: int = 0) -> Assembly | None:
    """An event to be sent in blocks; None if it fits into one.

    Every broker must cut an event in the same way, so what it goes by is the same in all of them.
    """
    publication = carried.stretch
    if isinstance(publication, Run):  # its origin has seen to that
        return None
    if publication.size_bytes <= min(block_bytes, SMALLEST_BLOCK_BYTES):
        return None
    block_bytes = _room_bytes(carried, block_bytes, datagram_bytes, publication.packed_attributes)
    if publication.size_bytes <= block_bytes:
        return None
    whole = Assembly.of(carried, block_bytes)
    return whole if whole.blocks > 1 else None


def in_datagrams(carried: Carried, block_bytes: int, datagram_bytes: int = 0) -> list[Carried]:
    """Events in stretches that are no longer than what is sent whole of one event; a longer event is alone.

    A larger datagram is cut by IP, and lost as a whole with any part of it.
    """
    stretch = carried.stretch
    if not isinstance(stretch, Run):
        return [carried]
    limit_bytes = _room_bytes(carried, block_bytes, datagram_bytes)
    return [carried.part(piece) for piece in stretch.split(limit_bytes)]


def _room_bytes(carried: Carried, block_bytes: int, datagram_bytes: int, inline: Raw | bytes = b"") -> int:
    """What a datagram has for data, `inline` and the rest of the header apart; `block_bytes` at most."""
    if not datagram_bytes:
        return block_bytes
    stretch = carried.stretch
    names = len(carried.origin) + len(stretch.source) + len(stretch.topic)
    header_bytes = len(memoryview(inline)) + 24 * len(carried.numbers) + 4 * names
    header_bytes += len(stretch.packed_header)
    room_bytes = datagram_bytes - header_bytes - HEADER_BYTES - MAX_GENERATION_BLOCKS
    return max(min(block_bytes, room_bytes), SMALLEST_BLOCK_BYTES)


def checksum(fragment: Fragment) -> int:
    """Over all of the fragment that says what it is; its way (`route`, `by`) may change."""
    header = crc32(_encode(header_of(fragment)))
    return _checksum(header, fragment.generation, fragment.coefficients, fragment.index, fragment.data)


def _checksum(header: int, generation: int, coefficients: bytes, index: int, data: bytes) -> int:
    place = _place(generation, index, len(coefficients))
    return crc32(data, crc32(place + coefficients, header))


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=128)
def _sizes_and_starts(payload_bytes: int, block_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each generation the number of its blocks, and of all blocks before it."""
    if not 0 <= payload_bytes <= MAX_EVENT_BYTES or block_bytes < 1:
        raise WireError(f"a payload of {payload_bytes} bytes in blocks of {block_bytes}")
    if payload_bytes > block_bytes * MAX_GENERATION_BLOCKS * MAX_GENERATIONS:
        raise WireError(f"blocks of {block_bytes} bytes are too small for a payload of {payload_bytes}")
    sizes = plan(payload_bytes, block_bytes)
    return sizes, tuple(accumulate(sizes[:-1], initial=0))


class Assembly:
    """One event in blocks: being put together, or complete."""

    __slots__ = (
        "_block_bytes",
        "_checksums",
        "_decoders",
        "_header_checksum",
        "_payload",
        "_publication",
        "_sizes",
        "_starts",
        "blocks",
        "header",
        "heard_at",
        "held_bytes",
        "rank",
        "route",
        "spoiled",
    )

    def __init__(self, header: Header, heard_at: int) -> None:
        self._sizes, self._starts = _sizes_and_starts(header.payload_bytes, header.block_bytes)
        if len(header.attributes) + len(header.header) > MAX_INLINE_ATTRIBUTES_BYTES:
            raise WireError(f"{len(header.attributes)} bytes of attributes in a block of an event")
        self.header = header
        self._block_bytes = header.block_bytes
        self.heard_at = heard_at
        """When the latest block came that was of use."""
        self.blocks = self._starts[-1] + self._sizes[-1]
        self.rank = 0
        """How many independent blocks are here."""
        self.route: tuple[str, ...] = ()
        """Of the block that came first."""
        self.held_bytes = ASSEMBLY_OVERHEAD_BYTES + len(header.attributes) + len(header.header)
        self.spoiled = False
        """Its blocks do not belong together: it is of no use any more."""
        self._header_checksum = crc32(_encode(tuple(header)))
        self._checksums: dict[tuple[int, int], int] = {}
        """Of plain blocks by (generation, index)"""
        self._decoders: dict[int, Decoder] = {}
        """Of generations of which there are blocks, or that were cut out of `_payload`"""
        self._payload: bytes | None = None
        self._publication: Publication | None = None

    @classmethod
    def of(cls, carried: Carried, block_bytes: int) -> Assembly:
        """A whole event, to be cut; AttributeValueError if its attributes are too large for that."""
        publication = carried.stretch
        assert isinstance(publication, Publication)
        attributes = bytes(publication.packed_attributes)
        if len(attributes) > MAX_INLINE_ATTRIBUTES_BYTES:
            raise AttributeValueError(
                f"event {publication.id} has {len(attributes)} bytes of attributes; "
                f"one that is sent in blocks may have {MAX_INLINE_ATTRIBUTES_BYTES}"
            )
        try:
            payload = _decode_payload(publication.packed_payload)
        except msgspec.MsgspecError as error:
            raise WireError(f"event {publication.id}: its payload does not decode: {error}") from None
        header = Header(
            carried.origin,
            carried.numbers,
            publication.source,
            publication.incarnation,
            publication.sequence,
            publication.topic,
            publication.published_at,
            attributes,
            len(payload),
            _digest(payload),
            block_bytes,
            publication.packed_header,
        )
        assembly = cls(header, publication.published_at)
        assembly.rank = assembly.blocks
        assembly.route = carried.route
        assembly._payload = payload
        assembly._publication = publication
        return assembly

    @classmethod
    def begin(cls, fragment: Fragment, now: int) -> Assembly:
        """With the first block that came of an event; WireError if it makes no sense."""
        assembly = cls(Header._make(header_of(fragment)), now)
        assembly.route = fragment.route
        assembly._take(fragment)
        return assembly

    @property
    def id(self) -> EventId:
        return EventId(*self.header[2:5])

    @property
    def origin(self) -> str:
        return self.header.origin

    @property
    def numbers(self) -> PatternNumbers:
        return self.header.numbers

    @property
    def complete(self) -> bool:
        return self.rank == self.blocks

    def size(self, generation: int) -> int:
        """How many blocks the generation has."""
        return self._sizes[generation]

    def holds(self, generation: int) -> bool:
        """Is the generation complete?"""
        decoder = self._decoder(generation)
        return decoder is not None and decoder.complete

    # --- Putting together

    def add(self, fragment: Fragment) -> bool:
        """True if the block was of use; WireError if it is damaged or does not belong to the others."""
        if header_of(fragment) != self.header:
            raise WireError(f"a block of another event that calls itself {self.id}")
        return self._take(fragment)

    def check(self, fragment: Fragment) -> int:
        """The checksum of a block with our header; WireError if it is damaged, or there can be no such block."""
        generation, coefficients = fragment.generation, fragment.coefficients
        index, data = fragment.index, fragment.data
        self._check_place(generation, coefficients, index, data)
        found = _checksum(self._header_checksum, generation, coefficients, index, data)
        if found != fragment.checksum:
            raise WireError(f"a damaged block of event {self.id}")
        return found

    def _take(self, fragment: Fragment) -> bool:
        found = self.check(fragment)
        if self.rank == self.blocks:
            return False
        generation, coefficients = fragment.generation, fragment.coefficients
        index, data = fragment.index, fragment.data
        decoder = self._decoders.get(generation)
        if decoder is None:
            decoder = self._decoders[generation] = Decoder(self._sizes[generation], self._block_bytes)
        if coefficients:
            useful = decoder.add_coded(coefficients, data)
        else:
            useful = decoder.add_plain(index, data)
            if useful:  # else other data may be held in its place
                self._checksums[generation, index] = found
        if useful:
            self.rank += 1
            self.held_bytes += len(data) + len(coefficients) + BLOCK_OVERHEAD_BYTES
        return useful

    def _check_place(self, generation: int, coefficients: bytes, index: int, data: bytes) -> None:
        """WireError unless there can be such a block."""
        if generation >= len(self._sizes):
            raise WireError(f"generation {generation} of event {self.id}, which has {len(self._sizes)}")
        size = self._sizes[generation]
        if coefficients:
            if len(coefficients) != size or index or not any(coefficients):
                raise WireError(f"wrong coefficients for {size} blocks of event {self.id}")
            expected = self._block_bytes
        else:
            if index >= size:
                raise WireError(f"block {index} of event {self.id}, whose generation has {size}")
            expected = self._plain_bytes(generation, index)
        if len(data) != expected:
            raise WireError(f"a block of {len(data)} bytes of event {self.id}, not of {expected}")

    def _plain_bytes(self, generation: int, index: int) -> int:
        width = self._block_bytes
        if self._starts[generation] + index + 1 < self.blocks:
            return width
        return self.header.payload_bytes - (self.blocks - 1) * width

    def lacks(self) -> tuple[Lack, ...]:
        """What a broker that has the event must send, for each generation that is not complete."""
        lacking: list[Lack] = []
        for generation, size in enumerate(self._sizes):
            decoder = self._decoder(generation)
            if decoder is None:
                lacking.append((generation, size, b""))
            elif decoder.rank < size:
                lacking.append((generation, decoder.missing, decoder.settled_mask()))
        return tuple(lacking)

    def carried(self, by: str, route: tuple[str, ...] | None = None) -> Carried:
        """The event, complete; WireError if the blocks do not belong together: it is spoiled then."""
        if self._publication is None:
            self._publication = self._rebuilt()
        header = self.header
        way = self.route if route is None else route
        return Carried(header.origin, header.numbers, way, by, self._publication)

    def _rebuilt(self) -> Publication:
        if self.rank < self.blocks:
            raise ValueError(f"event {self.id} is not complete")
        header = self.header
        decoders = (self._decoders[generation] for generation in range(len(self._sizes)))
        payload = b"".join([block for decoder in decoders for block in decoder.blocks()])
        payload = payload[: header.payload_bytes]
        try:
            if _digest(payload) != header.digest:
                raise WireError(f"the blocks of event {self.id} do not belong together")
            return rebuild_publication(*header[2:8], payload, header.header)
        except WireError:
            self.spoiled = True
            raise

    # --- Sending

    def fragments(
        self,
        random: RandomSource,
        *,
        redundancy: int = 0,
        lacks: Sequence[Lack] | None = None,
        route: tuple[str, ...],
        by: str,
    ) -> list[Fragment]:
        """All that is here of the event in blocks, or what is here of what another lacks.

        All: the plain blocks, and in place of those that are only in combinations as many fresh combinations;
        and `redundancy` more for each generation. Lacking: plain blocks, or with redundancy fresh combinations,
        which are of use whatever the other has got meanwhile.
        """
        if lacks is None:
            parts = [self._held(generation, random, redundancy) for generation in range(len(self._sizes))]
        else:  # each generation once, however often it is asked for
            asked = {lack[0]: lack for lack in lacks}
            parts = [self._answer(lack, random, coded=redundancy > 0) for lack in asked.values()]
        return [self._fragment(*block, route, by) for part in parts for block in part]

    def recoded(
        self, generation: int, random: RandomSource, *, route: tuple[str, ...], by: str
    ) -> Fragment | None:
        """One fresh combination of what is here of the generation, None if nothing is."""
        for block in self._combinations(generation, 1, random):
            return self._fragment(*block, route, by)
        return None

    def _held(self, generation: int, random: RandomSource, redundancy: int) -> list[Block]:
        decoder = self._decoder(generation)
        if decoder is None:
            return []
        plain = self._plain(generation, decoder)
        spare = redundancy if decoder.rank > 1 else 0
        return plain + self._combinations(generation, decoder.rank - len(plain) + spare, random)

    def _answer(self, lack: Lack, random: RandomSource, *, coded: bool) -> list[Block]:
        generation, needed, mask = lack
        decoder = self._decoder(generation)
        if decoder is None:
            return []
        if coded and decoder.size > 1:
            return self._combinations(generation, min(needed, decoder.rank), random)
        has = int.from_bytes(mask, "little")
        plain = self._plain(generation, decoder)
        chosen = [block for block in plain if not has >> block[2] & 1][:needed]
        hidden = min(needed - len(chosen), decoder.rank - len(plain))
        return chosen + self._combinations(generation, hidden, random)

    def _plain(self, generation: int, decoder: Decoder) -> list[Block]:
        blocks: list[Block] = []
        for index in range(decoder.size):
            data = decoder.plain(index)
            if data is not None:
                # A decoded last block comes with its zeros.
                blocks.append((generation, b"", index, data[: self._plain_bytes(generation, index)]))
        return blocks

    def _combinations(self, generation: int, count: int, random: RandomSource) -> list[Block]:
        decoder = self._decoder(generation)
        if decoder is None or not decoder.rank or count < 1:
            return []
        return [(generation, vector, 0, data) for vector, data in decoder.recode_many(count, random)]

    def _decoder(self, generation: int) -> Decoder | None:
        """What is here of the generation, None if nothing is."""
        decoder = self._decoders.get(generation)
        if decoder is None and self._payload is not None and generation < len(self._sizes):
            size, width = self._sizes[generation], self._block_bytes
            decoder = self._decoders[generation] = Decoder(size, width)
            start = self._starts[generation] * width
            for index in range(size):
                decoder.add_plain(index, self._payload[start : start + width])
                start += width
        return decoder

    def _fragment(
        self, generation: int, coefficients: bytes, index: int, data: bytes, route: tuple[str, ...], by: str
    ) -> Fragment:
        known = None if coefficients else self._checksums.get((generation, index))
        if known is None:
            known = _checksum(self._header_checksum, generation, coefficients, index, data)
            if not coefficients:
                self._checksums[generation, index] = known
        header = self.header
        return Fragment(
            header.origin,
            header.numbers,
            route,
            by,
            *header[2:-1],
            generation,
            coefficients,
            index,
            data,
            known,
            header.header,
        )
