"""Large events in blocks: cutting, assembling and coding them.

A payload is cut into blocks of `block_bytes`, and the blocks into generations of at most 16, as equal as possible.
Each block travels in its own `Fragment`, plain or as a combination of its generation's blocks. The last plain block is
sent at its own length; in combinations it is padded with zeros, which are cut off at the end.

Every fragment carries what routes it, so the attributes are never cut: each fragment has all of them, and an event with
more than MAX_INLINE_ATTRIBUTES_BYTES of them cannot be cut.

Two checks guard delivery: a checksum per fragment, against damage in transit, and a digest of the whole payload,
against blocks that do not belong together: a wrong block spreads into every combination made of it.
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
from tidings.core.events.event import (
    MAX_EVENT_BYTES,
    EventId,
    Publication,
    rebuild_publication,
    separate_payload,
)
from tidings.core.events.run import Run, Stretch
from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.messages import Carried, Fragment, Lack, PatternNumbers
from tidings.core.overlay.epidemic.network_coding import Decoder

MAX_GENERATION_BLOCKS = 16
MAX_GENERATIONS = 1024
"""As many as one request can ask for."""
MAX_INLINE_ATTRIBUTES_BYTES = 32 * 1024
DIGEST_BYTES = 8
HEADER_BYTES = 80
"""An upper bound on what a fragment has apart from names, attributes, numbers, coefficients and data."""
SMALLEST_BLOCK_BYTES = 256

ASSEMBLY_OVERHEAD_BYTES = 2048
BLOCK_OVERHEAD_BYTES = 256
"""Roughly what Python needs apart from the data: an event of tiny blocks must not be free."""


class Header(NamedTuple):
    """The fields that all fragments of an event share."""

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
"""An EventId as a plain tuple, which is cheaper to create."""
Block = tuple[int, bytes, int, bytes]
"""(generation, coefficients, index, data), as in Fragment"""

header_of = attrgetter(*Header._fields)
"""Returns a fragment's header as a plain tuple."""
_encode = msgspec.msgpack.Encoder().encode
_place = Layout("<QHH").pack


def plan(payload_bytes: int, block_bytes: int) -> tuple[int, ...]:
    """Return how many blocks each generation has; an empty payload is one empty block."""
    blocks = max(1, -(-payload_bytes // block_bytes))
    generations = -(-blocks // MAX_GENERATION_BLOCKS)
    size, larger = divmod(blocks, generations)
    return (size + 1,) * larger + (size,) * (generations - larger)


def in_blocks(carried: Carried, block_bytes: int, datagram_bytes: int = 0) -> Assembly | None:
    """Return the event cut into blocks; None if it fits into one.

    All brokers must cut an event in the same way, so the cut depends only on what is the same at all of them.
    """
    publication = carried.stretch
    if isinstance(publication, Run):  # its origin made it fit
        return None
    if publication.size_bytes <= min(block_bytes, SMALLEST_BLOCK_BYTES):
        return None
    block_bytes = _room_bytes(carried, block_bytes, datagram_bytes, publication.packed_attributes)
    if publication.size_bytes <= block_bytes:
        return None
    whole = Assembly.of(carried, block_bytes)
    return whole if whole.blocks > 1 else None


def in_datagrams(carried: Carried, block_bytes: int, datagram_bytes: int = 0) -> list[Carried]:
    """Split a run into stretches no larger than the limit for a single event sent whole; a larger event is alone.

    IP cuts a larger datagram, and loses all of it with any part.
    """
    stretch = carried.stretch
    if not isinstance(stretch, Run):
        return [carried]
    limit_bytes = _room_bytes(carried, block_bytes, datagram_bytes)
    return [carried.part(piece) for piece in stretch.split(limit_bytes)]


def _room_bytes(carried: Carried, block_bytes: int, datagram_bytes: int, inline: Raw | bytes = b"") -> int:
    """Return what a datagram has left for data after `inline` and the rest of its header; at most `block_bytes`."""
    if not datagram_bytes:
        return block_bytes
    stretch = carried.stretch
    names = len(carried.origin) + len(stretch.source) + len(stretch.topic)
    header_bytes = len(memoryview(inline)) + 24 * len(carried.numbers) + 4 * names
    header_bytes += inline_header_bytes(stretch)
    room_bytes = datagram_bytes - header_bytes - HEADER_BYTES - MAX_GENERATION_BLOCKS
    return max(min(block_bytes, room_bytes), SMALLEST_BLOCK_BYTES)


def inline_header_bytes(stretch: Stretch) -> int:
    """Return the size of the header that each block repeats, with the details of the payload."""
    if isinstance(stretch, Publication) and stretch.has_typed_payload:
        return len(separate_payload(stretch)[1])
    return len(stretch.packed_header)


def checksum(fragment: Fragment) -> int:
    """Compute the checksum of all fields but `route` and `by`, which may change in transit."""
    header = crc32(_encode(header_of(fragment)))
    return _checksum(header, fragment.generation, fragment.coefficients, fragment.index, fragment.data)


def _checksum(header: int, generation: int, coefficients: bytes, index: int, data: bytes) -> int:
    place = _place(generation, index, len(coefficients))
    return crc32(data, crc32(place + coefficients, header))


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=128)
def _sizes_and_starts(payload_bytes: int, block_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, for each generation, the number of its blocks and of all blocks before it."""
    if not 0 <= payload_bytes <= MAX_EVENT_BYTES or block_bytes < 1:
        raise WireError(f"impossible sizes: a payload of {payload_bytes} bytes in blocks of {block_bytes}")
    if payload_bytes > block_bytes * MAX_GENERATION_BLOCKS * MAX_GENERATIONS:
        raise WireError(f"blocks of {block_bytes} bytes are too small for a payload of {payload_bytes}")
    sizes = plan(payload_bytes, block_bytes)
    return sizes, tuple(accumulate(sizes[:-1], initial=0))


class Assembly:
    """One event in blocks, complete or not."""

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
            raise WireError(f"a block has {len(header.attributes)} bytes of attributes, which is too many")
        self.header = header
        self._block_bytes = header.block_bytes
        self.heard_at = heard_at
        """When the last useful block came."""
        self.blocks = self._starts[-1] + self._sizes[-1]
        self.rank = 0
        """How many independent blocks are here; 0 <= rank <= blocks."""
        self.route: tuple[str, ...] = ()
        """The route of the first block that came."""
        self.held_bytes = ASSEMBLY_OVERHEAD_BYTES + len(header.attributes) + len(header.header)
        self.spoiled = False
        """Its blocks do not belong together, so it is useless."""
        self._header_checksum = crc32(_encode(tuple(header)))
        self._checksums: dict[tuple[int, int], int] = {}
        """(generation, index) -> checksum of the plain block"""
        self._decoders: dict[int, Decoder] = {}
        """For generations of which blocks are here, or that were cut from `_payload`."""
        self._payload: bytes | None = None
        self._publication: Publication | None = None

    @classmethod
    def of(cls, carried: Carried, block_bytes: int) -> Assembly:
        """Prepare a complete event for cutting; raise AttributeValueError if its attributes are too large."""
        publication = carried.stretch
        assert isinstance(publication, Publication)
        attributes = bytes(publication.packed_attributes)
        if len(attributes) > MAX_INLINE_ATTRIBUTES_BYTES:
            raise AttributeValueError(
                f"event {publication.id} has {len(attributes)} bytes of attributes; "
                f"an event in blocks may have at most {MAX_INLINE_ATTRIBUTES_BYTES}"
            )
        payload, own_header = separate_payload(publication)
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
            own_header,
        )
        assembly = cls(header, publication.published_at)
        assembly.rank = assembly.blocks
        assembly.route = carried.route
        assembly._payload = payload
        assembly._publication = publication
        return assembly

    @classmethod
    def begin(cls, fragment: Fragment, now: int) -> Assembly:
        """Start with the first block of an event that came; raise WireError if the block is invalid."""
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
        """Return how many blocks the generation has."""
        return self._sizes[generation]

    def holds(self, generation: int) -> bool:
        """Return True if the generation is complete."""
        decoder = self._decoder(generation)
        return decoder is not None and decoder.complete

    # --- Assembling

    def add(self, fragment: Fragment) -> bool:
        """Add a block; return True if it was useful, raise WireError if it is damaged or of another event."""
        if header_of(fragment) != self.header:
            raise WireError(f"a block of another event: its header is not that of event {self.id}")
        return self._take(fragment)

    def check(self, fragment: Fragment) -> int:
        """Return the checksum of a block with our header; raise WireError if it is damaged or cannot exist."""
        generation, coefficients = fragment.generation, fragment.coefficients
        index, data = fragment.index, fragment.data
        self._check_place(generation, coefficients, index, data)
        found = _checksum(self._header_checksum, generation, coefficients, index, data)
        if found != fragment.checksum:
            raise WireError(f"a block of event {self.id} is damaged: its checksum does not match")
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
            if useful:  # otherwise the block held under this index may have other data
                self._checksums[generation, index] = found
        if useful:
            self.rank += 1
            self.held_bytes += len(data) + len(coefficients) + BLOCK_OVERHEAD_BYTES
        return useful

    def _check_place(self, generation: int, coefficients: bytes, index: int, data: bytes) -> None:
        """Raise WireError unless the event can have such a block."""
        if generation >= len(self._sizes):
            raise WireError(f"event {self.id} has no generation {generation}, only {len(self._sizes)}")
        size = self._sizes[generation]
        if coefficients:
            if len(coefficients) != size or index or not any(coefficients):
                raise WireError(f"invalid coefficients for {size} blocks of event {self.id}")
            expected = self._block_bytes
        else:
            if index >= size:
                raise WireError(f"a generation of event {self.id} has no block {index}, only {size}")
            expected = self._plain_bytes(generation, index)
        if len(data) != expected:
            raise WireError(f"a block of event {self.id} has {len(data)} bytes instead of {expected}")

    def _plain_bytes(self, generation: int, index: int) -> int:
        width = self._block_bytes
        if self._starts[generation] + index + 1 < self.blocks:
            return width
        return self.header.payload_bytes - (self.blocks - 1) * width

    def lacks(self) -> tuple[Lack, ...]:
        """Return what a broker that has the event must send, for each incomplete generation."""
        lacking: list[Lack] = []
        for generation, size in enumerate(self._sizes):
            decoder = self._decoder(generation)
            if decoder is None:
                lacking.append((generation, size, b""))
            elif decoder.rank < size:
                lacking.append((generation, decoder.missing, decoder.settled_mask()))
        return tuple(lacking)

    def carried(self, by: str, route: tuple[str, ...] | None = None) -> Carried:
        """Return the complete event; if its blocks do not belong together, mark it as spoiled and raise WireError."""
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
        """Return all blocks that are here, or with `lacks` those that another broker lacks.

        Without `lacks`: the plain blocks, a new combination for each block that is here only in combinations, and
        `redundancy` more for each generation. With `lacks`: plain blocks or, with redundancy, new combinations, which
        are useful whatever the other broker has received meanwhile.
        """
        if lacks is None:
            parts = [self._held(generation, random, redundancy) for generation in range(len(self._sizes))]
        else:  # each generation once, however often the request names it
            asked = {lack[0]: lack for lack in lacks}
            parts = [self._answer(lack, random, coded=redundancy > 0) for lack in asked.values()]
        return [self._fragment(*block, route, by) for part in parts for block in part]

    def recoded(
        self, generation: int, random: RandomSource, *, route: tuple[str, ...], by: str
    ) -> Fragment | None:
        """Return one new combination of the generation's blocks that are here; None if there are none."""
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
                # A last block that was decoded still has its padding.
                blocks.append((generation, b"", index, data[: self._plain_bytes(generation, index)]))
        return blocks

    def _combinations(self, generation: int, count: int, random: RandomSource) -> list[Block]:
        decoder = self._decoder(generation)
        if decoder is None or not decoder.rank or count < 1:
            return []
        return [(generation, vector, 0, data) for vector, data in decoder.recode_many(count, random)]

    def _decoder(self, generation: int) -> Decoder | None:
        """Return what is here of the generation; None if nothing is."""
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
