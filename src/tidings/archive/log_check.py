"""Looks at SQLite's log before SQLite does, which replays it up to the first frame that does not verify.

The rest is dropped in silence. For what a crash left unfinished that is right; but with one flipped bit transactions go
that were acknowledged, and their offsets are given out again. (Formats: sqlite.org/fileformat2.html, section 4, and
sqlite.org/walformat.html, section 2.)

A frame's checksum continues that of the frame before it. Salts tell which frames are of this log: behind its end there
may be frames of an older one, for it starts over in the same file. A frame behind a bad one that has the log's salts
and ends a transaction means

- damage, if the index (-shm) says that it was acknowledged. The index is written when a transaction is on disk, and
  outlives its process; what is behind the last frame that it knows was not acknowledged.
- damage, if there is another such frame: the second transaction began when the first was done. This counts where the
  index is older than the log, as a power cut leaves it.
- else the last transaction, which a crash may have cut off: SQLite writes the header of a frame before its page. Where
  there is no index at all, no crash left the log as it is, and it is damage too.
"""

from __future__ import annotations

import fcntl
import struct
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidings.archive.errors import told_as_archive_error
from tidings.model.errors import ArchiveCorrupt

CHUNK_FRAMES = 512
"""Read at once."""
_MAGIC = 0x377F0682
"""With 1 more, checksums are made of words in the other order of bytes."""
_HEADER = struct.Struct(">8I")  # magic, version, size of pages, checkpoints, two salts, checksum of two words
_HEADER_SUMMED_BYTES = 24
_MIN_PAGE_BYTES, _MAX_PAGE_BYTES = 512, 65_536
_FRAME_WORDS = 6  # page, size of the database if it ends a transaction, two salts, checksum of two words
_SUMMED_WORDS = 2
"""Of a frame's header; and its page."""
_INDEX = struct.Struct("=12xBxHIIII8sII")  # is it initialised, .., frames, .., salts, checksum; in two copies
_INDEX_SUMMED = struct.Struct("=10I")
_CONNECTED_AT = 128
"""Whoever is connected keeps a lock on this byte of the index."""

Words = NDArray[np.uint32]


class _Log(NamedTuple):
    page_bytes: int
    order: str
    salts: tuple[int, int]
    sums: tuple[int, int]

    @property
    def frame_bytes(self) -> int:
        return _FRAME_WORDS * 4 + self.page_bytes


class _Walk(NamedTuple):
    frames: int
    """Whole ones."""
    valid: int
    """Before the first that does not verify."""
    kept: int
    """What SQLite will replay: up to the last end of a transaction before that."""
    ends: int
    """Of transactions, of this log, from that on."""


def check_log(database: Path, page_bytes: int, *, has_index: bool = True) -> None:
    """ArchiveCorrupt if SQLite would drop what was acknowledged.

    Without `has_index` its writer keeps none: then one transaction behind the damage is one that a crash cut off.

    Not to be asked in a process that is connected: closing the index ends the locks that it has. Where another
    process is, the log was replayed long ago, and is being written.
    """
    log, index = (database.with_name(f"{database.name}-{end}") for end in ("wal", "shm"))
    before = ""
    with told_as_archive_error(log):
        while not _is_connected(index):
            problem = _problem(log, index, page_bytes, 1 if has_index else 2)
            if not problem:
                return
            if problem == before:
                raise ArchiveCorrupt(f"{log} is damaged: {problem}")
            before = problem  # and once more: somebody may have come, and have written while it was read


def _problem(log: Path, index: Path, page_bytes: int, ends_without_index: int) -> str:
    acknowledged = _acknowledged(index)  # first, for the log may grow
    try:
        file = log.open("rb")
    except FileNotFoundError:
        return ""
    with file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not any(header):
            return ""
        parsed = _parsed(header)
        if parsed is None:
            ends = _count_ends(file, _FRAME_WORDS * 4 + page_bytes)
            return _told("its header has a wrong checksum", ends) if ends >= ends_without_index else ""
        walk = _walk(file, parsed)
    known = None if acknowledged is None else acknowledged.get(parsed.salts)
    if walk.kept == known:
        return ""
    if (known is None or walk.kept > known) and walk.ends < (
        ends_without_index if acknowledged is None else 2
    ):
        return ""
    at = _HEADER.size + walk.valid * parsed.frame_bytes
    what = "has a wrong checksum" if walk.valid < walk.frames else "is missing"
    return _told(f"frame {walk.valid + 1} (at byte {at}) {what}", max(walk.ends, 1))


def _told(what: str, ends: int) -> str:
    return f"{what}, and transactions that were acknowledged (at least {ends}) lie behind it"


def _parsed(header: bytes) -> _Log | None:
    """None where SQLite takes it for no log."""
    magic, _, page_bytes, _, *salts_and_sums = _HEADER.unpack(header)
    salt, other_salt, *sums = salts_and_sums
    order = ">" if magic & 1 else "<"
    words = struct.unpack(f"{order}6I", header[:_HEADER_SUMMED_BYTES])
    if magic & ~1 != _MAGIC or _sum(words) != tuple(sums):
        return None
    if page_bytes & (page_bytes - 1) or not _MIN_PAGE_BYTES <= page_bytes <= _MAX_PAGE_BYTES:
        return None
    return _Log(page_bytes, order, (salt, other_salt), (sums[0], sums[1]))


def _walk(file: BinaryIO, log: _Log) -> _Walk:
    weights, continued = _weights(log.page_bytes)
    salts = np.array(log.salts, np.uint32)
    sums = np.array([log.sums], np.uint32)
    ours = np.array([True])
    frames = valid = kept = ends = 0
    for content in _chunks(file, log.frame_bytes):
        heads = _heads(content, log.frame_bytes)
        words = np.frombuffer(content, f"{log.order}u4").reshape(len(heads), -1)
        sums = np.concatenate([sums[-1:], heads[:, 4:6]])
        verified = (words @ weights + sums[:-1] @ continued == sums[1:]).all(axis=1)
        ours = np.concatenate([ours[-1:], (heads[:, 2:4] == salts).all(axis=1)])
        good = ours[1:] & verified & (heads[:, 0] != 0)
        is_end = heads[:, 1] != 0
        count = int(np.argmin(np.append(good, False))) if valid == frames else 0
        if is_end[:count].any():
            kept = frames + 1 + int(np.flatnonzero(is_end[:count])[-1])
        # With damaged salts it verifies after one of ours, as no frame of an older log does.
        ends += int((is_end & (ours[1:] | verified & ours[:-1]))[count:].sum())
        valid += count
        frames += len(heads)
    return _Walk(frames, valid, kept, ends)


def _count_ends(file: BinaryIO, frame_bytes: int) -> int:
    """Of transactions, in a log without its header: by the salts of its first frame."""
    salts: Words | None = None
    ends = 0
    for content in _chunks(file, frame_bytes):
        heads = _heads(content, frame_bytes)
        salts = heads[0, 2:4] if salts is None else salts
        ends += int(((heads[:, 1] != 0) & (heads[:, 2:4] == salts).all(axis=1)).sum())
    return ends


def _chunks(file: BinaryIO, frame_bytes: int) -> Iterator[bytes]:
    """Whole frames."""
    while len(content := file.read(frame_bytes * CHUNK_FRAMES)) >= frame_bytes:
        yield content[: len(content) // frame_bytes * frame_bytes]


def _heads(content: bytes, frame_bytes: int) -> Words:
    words = np.frombuffer(content, ">u4").reshape(-1, frame_bytes // 4)
    return words[:, :_FRAME_WORDS].astype(np.uint32)


def _sum(words: Iterable[int]) -> tuple[int, int]:
    """SQLite's checksum."""
    one = other = 0
    pairs = iter(words)
    for first, second in zip(pairs, pairs, strict=True):
        one = (one + first + other) % (1 << 32)
        other = (other + second + one) % (1 << 32)
    return one, other


@cache
def _weights(page_bytes: int) -> tuple[Words, Words]:
    """The checksum is linear: by what each word of a frame counts, and each of the checksum that it continues.

    A pair of words multiplies what was before it with the matrix (1 1; 1 2); `a b; b d` is its power.
    """
    a, b, d = 1, 0, 1
    rows: list[tuple[int, int]] = []
    for _ in range((_SUMMED_WORDS + page_bytes // 4) // 2):
        rows += [(b, d), (a + b, b + d)]
        a, b, d = ((number % (1 << 32)) for number in (a + b, b + d, b + 2 * d))
    rows.reverse()
    unsummed = [(0, 0)] * (_FRAME_WORDS - _SUMMED_WORDS)
    rows[_SUMMED_WORDS:_SUMMED_WORDS] = unsummed
    weights = np.array(rows, np.uint64).astype(np.uint32)
    return weights, np.array([[a, b], [b, d]], np.uint32)


def _acknowledged(index: Path) -> dict[tuple[int, int], int] | None:
    """How many frames of a log with which salts; None if there is no index."""
    try:
        with index.open("rb") as file:
            copies = [file.read(_INDEX.size) for _ in range(2)]
    except FileNotFoundError:
        return None
    found: dict[tuple[int, int], int] = {}
    for copy in copies:
        if len(copy) < _INDEX.size:
            continue
        initialised, _, frames, _, _, _, salts, *sums = _INDEX.unpack(copy)
        if initialised and _sum(_INDEX_SUMMED.unpack_from(copy)) == tuple(sums):
            salt, other_salt = struct.unpack(">II", salts)
            found[salt, other_salt] = max(frames, found.get((salt, other_salt), 0))
    return found


def _is_connected(index: Path) -> bool:
    """Whether another process is; where that cannot be asked, looking twice has to do."""
    if sys.platform != "linux":
        return False
    lock = struct.Struct("hhqqi")  # kind, counted from where, start, length, whose
    try:
        with index.open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, lock.pack(fcntl.F_WRLCK, 0, _CONNECTED_AT, 1, 0))
    except FileNotFoundError:
        return False
    return bool(lock.unpack_from(answer)[0] != fcntl.F_UNLCK)
