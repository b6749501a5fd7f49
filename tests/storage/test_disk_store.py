"""The store on disk: it agrees with a plain dict through reopenings, kills, damage and full disks."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples, few
from tidings.core.errors import StoreCorrupt, StoreError, StoreFull
from tidings.core.store import TABLES, Change, MemoryStore, Store
from tidings.storage import disk_store
from tidings.storage.database import PAGE_BYTES, Database
from tidings.storage.disk_store import BROKER_KIND, LOG_PAGES, RECOVERY, DiskStore, set_aside

Content = dict[str, list[tuple[bytes, bytes]]]
KILLS = 15
"""Kills of a writing process in the crash test."""


class Twin:
    """Dicts keep the order of first insertion, so this is all that a store should be."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}

    def write(self, changes: Iterable[Change]) -> None:
        for table, key, value in changes:
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value

    @property
    def content(self) -> Content:
        return {table: list(entries.items()) for table, entries in self.tables.items()}


def content_of(store: Store) -> Content:
    return {table: store.read(table) for table in TABLES}


def opened(store: DiskStore) -> Database:
    assert store._database is not None
    return store._database


def assert_holds(store: Store, content: Content) -> None:
    assert content_of(store) == content
    for table, entries in content.items():
        assert store.count(table) == len(entries)
        assert store.size_bytes(table) == sum(len(key) + len(value) for key, value in entries)
        for key, value in entries:
            assert store.get(table, key) == value
        assert store.get(table, b"never written") is None


def batch(number: int) -> list[tuple[str, bytes, bytes | None]]:
    """The numbered batch of the crash tests: several keys in several tables, some replaced, some deleted."""
    draw = random.Random(number)
    changes: list[tuple[str, bytes, bytes | None]] = [("identity", b"number", str(number).encode())]
    for table in ("log", "clients", "spill"):
        changes += [
            (table, b"%d" % draw.randrange(60), draw.randbytes(draw.choice((4, 900)))) for _ in "1234"
        ]
        changes += [(table, b"%d" % draw.randrange(60), None) for _ in "12"]
    draw.shuffle(changes)
    return changes


def write_batches(path: Path, first: int, last: int) -> Twin:
    twin = Twin()
    with closing(DiskStore(path)) as store:
        for number in range(first, last + 1):
            store.write(batch(number))
            twin.write(batch(number))
    return twin


# Agreement with the twin

changes = st.tuples(
    st.sampled_from(TABLES),
    st.one_of(st.sampled_from((b"", b"a", b"b", b"a\0")), st.binary(max_size=2)),
    st.one_of(st.none(), st.binary(max_size=9), st.integers(0, 20_000).map(bytes)),
)
steps = st.lists(st.tuples(st.lists(changes, max_size=6), st.booleans()), max_size=12)


@given(steps)
@settings(max_examples=examples(60))
def test_disk_and_memory_agree_with_a_plain_dict(batches: list[tuple[list[Change], bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, tables, twin = Path(directory) / "store", dict[str, dict[bytes, bytes]](), Twin()
        disk, memory = DiskStore(path), MemoryStore(tables)
        for written, reopen in batches:
            for store in (disk, memory, twin):
                store.write(written)
            if reopen:
                disk.close()
                disk, memory = DiskStore(path), MemoryStore(tables)
            assert_holds(disk, twin.content)
            assert_holds(memory, twin.content)
        disk.close()


def test_unknown_tables_and_closed_stores(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "store")
    store.write([("log", b"a", b"1")])
    with pytest.raises(KeyError):
        store.write([("log", b"a", b"2"), ("nonsense", b"a", b"2")])
    for use in (store.read, store.count, store.size_bytes):
        with pytest.raises(KeyError):
            use("nonsense")
    with pytest.raises(KeyError):
        store.get("nonsense", b"a")
    assert store.read("log") == [(b"a", b"1")]
    store.close()
    store.close()
    for closed_use in (
        lambda: store.read("log"),
        lambda: store.get("log", b"a"),
        lambda: store.write([("log", b"a", b"2")]),
        lambda: store.count("log"),
        lambda: store.size_bytes("log"),
    ):
        with pytest.raises(StoreError, match="closed"):
            closed_use()


@pytest.mark.parametrize("at", ["BEGIN IMMEDIATE", "UPDATE seal SET checksum = ?", "COMMIT"])
def test_an_interrupt_on_either_side_of_the_commit_leaves_a_sound_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store = DiskStore(tmp_path / "store")
    store.write([("log", b"a", b"1"), ("log", b"b", b"1")])
    execute = Database.execute

    def interrupted(self: Database, sql: str, *values: object) -> object:
        result = execute(self, sql, *values)
        if sql == at:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Database, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.write([("log", b"a", b"22"), ("log", b"b", None)])
    twin = Twin()
    twin.write([("log", b"a", b"22")] if at == "COMMIT" else [("log", b"a", b"1"), ("log", b"b", b"1")])
    assert_holds(store, twin.content)
    store.write([("log", b"c", b"3")])
    twin.write([("log", b"c", b"3")])
    store.close()
    with closing(DiskStore(tmp_path / "store")) as again:
        assert_holds(again, twin.content)


def test_every_write_is_synchronised(tmp_path: Path) -> None:
    with closing(DiskStore(tmp_path / "store")) as store:
        assert opened(store).execute("PRAGMA journal_mode") == [("wal",)]
        assert opened(store).execute("PRAGMA synchronous") == [(2,)]  # FULL


def test_churn_leaves_the_files_small(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(DiskStore(path)) as store:
        for turn in range(150):
            keys = [b"%d" % (turn * 50 + number) for number in range(50)]
            store.write([("spill", key, bytes(1500)) for key in keys])
            store.write([("spill", key, None) for key in keys])
        largest_batch_pages = 100
        assert path.stat().st_size < 2 * largest_batch_pages * PAGE_BYTES
        assert wal_of(path).stat().st_size < (LOG_PAGES + 3 * largest_batch_pages) * PAGE_BYTES
    assert not wal_of(path).exists()


# One writer

OPEN_AND_WAIT = """
import sys
from tidings.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_object_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    first = DiskStore(tmp_path / "store")
    for _ in range(3):
        with pytest.raises(StoreError, match="store is in use by another broker"):
            DiskStore(tmp_path / "store")
        with pytest.raises(StoreError, match="store is in use by another broker"):
            set_aside(tmp_path / "store")
    first.write([("log", b"a", b"1")])
    first.close()
    with closing(DiskStore(tmp_path / "store")) as second:
        assert second.read("log") == [(b"a", b"1")]


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    arguments = [sys.executable, "-c", OPEN_AND_WAIT, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(StoreError, match="in use by another broker"):
            DiskStore(path)
        process.kill()
        process.wait()
    DiskStore(path).close()


def test_another_program_in_the_file_counts_as_another_broker(tmp_path: Path) -> None:
    path = tmp_path / "store"
    DiskStore(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="in use by another broker"):
            DiskStore(path)


# Killed while writing

WRITER = f"""
import random, sys
from tidings.storage.disk_store import DiskStore
from tidings.core.store import TABLES

{inspect.getsource(batch)}

class RowByRow(DiskStore):
    '''The planted bug: no transaction around a batch.'''
    def write(self, changes):
        for change in changes:
            super().write([change])

store = (RowByRow if sys.argv[2] == "planted" else DiskStore)(sys.argv[1])
number = int(store.get("identity", b"number") or 0)
print(number, flush=True)
while True:
    number += 1
    store.write(batch(number))
    print(number, flush=True)
"""


def last_written_before_kill(path: Path, kind: str, draw: random.Random) -> int | None:
    """Let a process write and kill it at a random moment; the last number it told, None if it told none."""
    arguments = [sys.executable, "-c", WRITER, str(path), kind]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = b""
        if draw.random() < 0.8:  # the others are killed while they start
            told = process.stdout.readline()
        time.sleep(draw.random() * 0.15)
        process.kill()
        told += process.stdout.read()
    lines = told.split(b"\n")[:-1]
    return int(lines[-1]) if lines else None


def mixture(path: Path, twin: Twin, done: int, told: int | None) -> tuple[int, str]:
    """How many batches the store holds, and what is wrong with it ('' if nothing).

    `twin` holds the first `done` batches and is brought up to date. A batch that was told must be there, and
    the one after it may be there as a whole.
    """
    with closing(DiskStore(path)) as store:
        found = content_of(store)
    last = done if told is None else told
    for number in range(done + 1, last + 1):
        twin.write(batch(number))
    if found == twin.content:
        return last, ""
    twin.write(batch(last + 1))
    if found == twin.content:
        return last + 1, ""
    return last, f"the store holds neither {last} nor {last + 1} whole batches"


def test_a_killed_writer_leaves_the_state_before_or_after_a_batch(tmp_path: Path) -> None:
    draw, twin, done = random.Random(8), Twin(), 0
    for _ in range(KILLS):
        told = last_written_before_kill(tmp_path / "store", "sound", draw)
        done, wrong = mixture(tmp_path / "store", twin, done, told)
        assert not wrong
    assert done > KILLS


def test_the_crash_test_catches_a_store_that_writes_row_by_row(tmp_path: Path) -> None:
    draw, twin, done = random.Random(8), Twin(), 0
    for _ in range(KILLS):
        told = last_written_before_kill(tmp_path / "store", "planted", draw)
        done, wrong = mixture(tmp_path / "store", twin, done, told)
        if wrong:
            return
    pytest.fail("the planted bug went unnoticed")


def test_a_file_that_was_not_finished_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(disk_store._SCHEMA, "seal", "CREATE TABLE")
        with pytest.raises(StoreError):
            DiskStore(tmp_path / "store")
    assert not (tmp_path / "store").exists()
    (tmp_path / "store.new").write_bytes(b"half a file")
    (tmp_path / "store.new-journal").write_bytes(b"half a journal")
    with closing(DiskStore(tmp_path / "store")) as store:
        assert_holds(store, Twin().content)


# Damage


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def copy_with_log(path: Path, to: Path) -> None:
    """As a crash would leave it: the file and its log, of a store that is open."""
    shutil.copy(path, to)
    shutil.copy(wal_of(path), wal_of(to))


MORE: list[Change] = [("clients", b"more%d" % number, bytes(9000)) for number in range(8)]


def outcome(path: Path) -> Content | None:
    """What the store holds; None if it says that it is damaged. Any other exception is a failed test.

    A store that opens must go on as well: it must not have damage that only a later write would meet.
    """
    try:
        store = DiskStore(path)
    except StoreCorrupt as error:
        assert_one_helpful_line(error, path)
        return None
    with closing(store):
        content = content_of(store)
        assert_holds(store, content)
        store.write(MORE)
    with closing(DiskStore(path)) as store:
        assert store.read("clients")[-len(MORE) :] == [(key, value) for _, key, value in MORE]
    return content


def assert_one_helpful_line(error: StoreCorrupt, path: Path) -> None:
    message = str(error)
    assert str(path) in message
    assert message.endswith(f"; {RECOVERY}")
    assert message.isprintable()
    assert len(message) < len(str(path)) + len(RECOVERY) + 300


@contextmanager
def damaged(whole: Path, change: Callable[[bytearray], None]) -> Iterator[Path]:
    """A changed copy of a store, with its log if it has one."""
    with tempfile.TemporaryDirectory(dir=whole.parent) as directory:
        copy = Path(directory) / "store"
        content = bytearray(whole.read_bytes())
        change(content)
        copy.write_bytes(content)
        if wal_of(whole).exists():
            shutil.copy(wal_of(whole), wal_of(copy))
        yield copy


def flip(offset: int, bit: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[offset] ^= 1 << bit

    return change


def overwrite(offset: int, garbage: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[offset : offset + len(garbage)] = garbage

    return change


def cut(length: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[length:]

    return change


@pytest.fixture(params=["closed", "crashed"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Content]:
    """A store with long values and free pages: closed, or as a crash left it, with newer pages in its log."""
    path, twin = tmp_path / "made", write_batches(tmp_path / "made", 1, 25)
    long: list[Change] = [
        ("spill", b"long%d" % number, random.Random(number).randbytes(9000)) for number in range(9)
    ]
    shorter: list[Change] = [("spill", b"long%d" % number, None) for number in range(0, 9, 2)]
    with closing(DiskStore(path)) as store:
        store.write(long)
    with closing(DiskStore(path)) as store:
        store.write(shorter)
        store.write(batch(26))
        if request.param == "crashed":
            copy_with_log(path, tmp_path / "whole")
    if request.param == "closed":
        shutil.copy(path, tmp_path / "whole")
    for changes_ in (long, shorter, batch(26)):
        twin.write(changes_)
    return tmp_path / "whole", twin.content


@pytest.mark.parametrize("seed", few([4, 5, 6], 1))
def test_damage_is_noticed_or_does_not_matter(whole: tuple[Path, Content], seed: int) -> None:
    path, content = whole
    draw, size = random.Random(seed), path.stat().st_size
    header = [flip(offset, draw.randrange(8)) for offset in range(100)]
    flips = [flip(draw.randrange(size), draw.randrange(8)) for _ in range(150)]
    sectors = [
        overwrite(512 * draw.randrange(size // 512), filled) for filled in (bytes(512), b"\xff" * 512) * 10
    ]
    pages = [
        overwrite(PAGE_BYTES * draw.randrange(size // PAGE_BYTES), draw.randbytes(PAGE_BYTES))
        for _ in range(10)
    ]
    cuts = [cut(draw.randrange(size)) for _ in range(15)]
    cuts += [cut(length) for length in (0, 1, 99, 100, PAGE_BYTES, size - PAGE_BYTES, size - 1)]
    noticed = 0
    for change in itertools.chain(header, flips, sectors, pages, cuts):
        with damaged(path, change) as copy:
            found = outcome(copy)
            assert found is None or found == content
            noticed += found is None
    assert noticed > 50


def test_a_page_from_before_is_noticed(tmp_path: Path) -> None:
    """A write that the disk forgot: every row of the page is sound by itself."""
    path = tmp_path / "store"
    write_batches(path, 1, 20)
    before = path.read_bytes()
    with closing(DiskStore(path)) as store:
        for table in ("log", "clients", "spill"):
            store.write([(table, key, value[::-1] + b"newer") for key, value in store.read(table)][::7])
        newer = content_of(store)
    after = path.read_bytes()
    starts = range(PAGE_BYTES, min(len(before), len(after)), PAGE_BYTES)
    stale = [
        start for start in starts if before[start : start + PAGE_BYTES] != after[start : start + PAGE_BYTES]
    ]
    assert len(stale) > 5
    for start in stale:
        with damaged(path, overwrite(start, before[start : start + PAGE_BYTES])) as copy:
            assert outcome(copy) in (None, newer)


def lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def test_a_log_that_lost_what_was_acknowledged_is_told(tmp_path: Path) -> None:
    """Damaged at any place, cut at any place, or gone; and nothing of it is touched."""
    path, twin, draw = tmp_path / "made", Twin(), random.Random(2)
    with closing(DiskStore(path)) as store:
        for number in range(1, 12):
            store.write(batch(number))
            twin.write(batch(number))
        copy_with_log(path, tmp_path / "whole")
        mark = lock_of(path).read_bytes()
    log = wal_of(tmp_path / "whole").read_bytes()

    def check(damage: Callable[[bytearray], None], expected: Content | None) -> None:
        changed = bytearray(log)
        damage(changed)
        with damaged(tmp_path / "whole", cut(sys.maxsize)) as copy:
            wal_of(copy).write_bytes(changed)
            lock_of(copy).write_bytes(mark)
            before = copy.read_bytes()
            assert outcome(copy) == expected
            if expected is None:
                assert (copy.read_bytes(), wal_of(copy).read_bytes()) == (before, changed)
                lock_of(copy).unlink()  # the way out
                assert outcome(copy) is not None

    places = [*range(24), *(draw.randrange(len(log)) for _ in range(60)), len(log) - 1]
    for at in places:
        check(flip(at, draw.randrange(8)), None)
    for length in (1, 10, 32, len(log) - 1, *(draw.randrange(len(log)) for _ in range(20))):
        check(cut(length), None)
    check(cut(sys.maxsize), twin.content)


def test_a_log_that_is_gone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(DiskStore(path)) as store:
        store.write(batch(1))
        copy_with_log(path, tmp_path / "crashed")
        shutil.copy(lock_of(path), lock_of(tmp_path / "crashed"))
    wal_of(tmp_path / "crashed").unlink()
    with pytest.raises(
        StoreCorrupt, match="ends with transaction 1, but transaction 2 was acknowledged"
    ) as told:
        DiskStore(tmp_path / "crashed")
    assert_one_helpful_line(told.value, tmp_path / "crashed")
    set_aside(tmp_path / "crashed")
    DiskStore(tmp_path / "crashed").close()


def test_a_store_of_before_has_no_mark_and_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_batches(path, 1, 3)
    before = path.read_bytes()
    lock_of(path).write_bytes(b"")
    write_batches(path, 4, 4)
    path.write_bytes(before)  # as from a copy
    with pytest.raises(StoreCorrupt, match="was acknowledged"):
        DiskStore(path)


def rewrite(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("PRAGMA user_version = 2", "it has format 2, this version reads format 1"),
        ("PRAGMA user_version = 0", "it has format 0"),
        ("PRAGMA application_id = 7", "it is not a store"),
        ("UPDATE entries SET value = x'00' WHERE name = 'log' AND key = x'30'", "'log' has a wrong checksum"),
        ("UPDATE entries SET place = place + 1 WHERE key = x'30'", "wrong checksum"),
        ("UPDATE entries SET name = 'spill' WHERE name = 'log' AND key = x'30'", "wrong checksum"),
        ("UPDATE entries SET value = 'text' WHERE name = 'log' AND key = x'30'", "wrong checksum"),
        ("UPDATE entries SET checksum = x'' WHERE name = 'log' AND key = x'30'", "wrong checksum"),
        ("DELETE FROM entries WHERE name = 'log' AND key = x'30'", "entries are missing"),
        ("DELETE FROM seal", "entries are missing"),
        ("DROP TABLE seal", "its tables are not those of a store"),
        ("CREATE INDEX more ON entries (value)", "its tables are not those of a store"),
        ("PRAGMA journal_mode = DELETE", "its header is damaged"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, statement: str, told: str) -> None:
    path = tmp_path / "store"
    with closing(DiskStore(path)) as store:
        store.write(
            [(table, b"%d" % number, b"value") for table in ("log", "clients") for number in range(9)]
        )
    rewrite(path, statement)
    with pytest.raises(StoreCorrupt, match=told) as raised:
        DiskStore(path)
    assert_one_helpful_line(raised.value, path)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"not ours" * 1000])
def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt) as raised:
        DiskStore(path)
    assert_one_helpful_line(raised.value, path)
    assert path.read_bytes() == content


def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    rewrite(path, "CREATE TABLE theirs (value)", "PRAGMA journal_mode = WAL")
    content = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="it is not a store"):
        DiskStore(path)
    assert path.read_bytes() == content
    assert int.from_bytes(content[68:72]) != BROKER_KIND.application_id


def test_damage_under_an_open_store_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(DiskStore(path)) as store:
        store.write([("log", b"a", b"1"), ("log", b"b", b"2")])
        opened(store).execute("UPDATE entries SET value = x'39' WHERE key = x'61'")
        for use in (
            lambda: store.get("log", b"a"),
            lambda: store.read("log"),
            lambda: store.write([("log", b"c", b"3"), ("log", b"a", None)]),
        ):
            with pytest.raises(StoreCorrupt, match="'log' has a wrong checksum"):
                use()
        assert store.get("log", b"b") == b"2"
        assert store.get("log", b"c") is None


# Setting aside


def test_set_aside_keeps_every_damaged_store_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for number in (1, 2, 3):
        with closing(DiskStore(path)) as store:
            store.write([("log", b"a", b"%d" % number)])
            copy_with_log(path, tmp_path / "crashed")
        (tmp_path / "crashed").rename(path)
        wal_of(tmp_path / "crashed").rename(wal_of(path))
        aside = set_aside(path)
        assert aside == tmp_path / f"store.damaged-{number}"
        assert not path.exists()
        assert not wal_of(path).exists()
    for number in (1, 2, 3):
        with closing(DiskStore(tmp_path / f"store.damaged-{number}")) as store:
            assert store.read("log") == [(b"a", b"%d" % number)]


def test_a_log_without_its_file_is_damage_and_can_be_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "store"
    wal_of(path).write_bytes(b"log")
    with pytest.raises(StoreCorrupt, match="the file is missing") as raised:
        DiskStore(path)
    assert_one_helpful_line(raised.value, path)
    aside = set_aside(path)
    assert wal_of(aside).read_bytes() == b"log"
    DiskStore(path).close()


def test_set_aside_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store to set aside"):
        set_aside(tmp_path / "store")
    with pytest.raises(StoreError, match="No such file or directory"):
        set_aside(tmp_path / "missing" / "store")


# Full, missing, forbidden


FILE_LIMIT = """
import resource, sys
from tidings.core.errors import StoreFull
from tidings.storage.disk_store import DiskStore

store = DiskStore(sys.argv[1])
store.write([("clients", b"old", b"")])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
number, refused = 0, 0
while refused < 3:
    try:
        store.write([("log", b"%d" % number, bytes(1000)), ("spill", b"last", b"%d" % number)])
        number += 1
    except StoreFull:
        refused += 1
        if refused == 1:  # the log is as long as it may be, the file is not: that is enough for this
            store.write([("clients", b"old", None)])
        assert store.count("log") == number and store.get("spill", b"last") == b"%d" % (number - 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.write([("log", b"after", b"room was made"), ("log", b"0", None)])
print(number)
store.close()
"""


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    number, twin = int(done.stdout), Twin()
    assert number > 20
    twin.write(("log", b"%d" % each, bytes(1000)) for each in range(1, number))
    twin.write([("log", b"after", b"room was made"), ("spill", b"last", b"%d" % (number - 1))])
    with closing(DiskStore(path)) as store:
        assert_holds(store, twin.content)


def test_a_full_disk_when_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFull, match="store: No space left on device"):
            DiskStore(tmp_path / "store")
    DiskStore(tmp_path / "store").close()


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    for path, reason in (
        (tmp_path / "missing" / "store", "No such file or directory"),
        (tmp_path / "file" / "store", "Not a directory"),
        (tmp_path / "directory", "Is a directory"),
    ):
        with pytest.raises(StoreError) as raised:
            DiskStore(path)
        assert not isinstance(raised.value, StoreCorrupt | StoreFull)
        assert str(raised.value) == f"cannot use {path}: {reason}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("forbidden", ["directory", "file"])
def test_without_permission(tmp_path: Path, forbidden: str) -> None:
    path = tmp_path / "directory" / "store"
    path.parent.mkdir()
    if forbidden == "file":
        DiskStore(path).close()
        path.chmod(0o400)
    else:
        path.parent.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        DiskStore(path)
    path.parent.chmod(0o700)


def test_odd_names_are_only_names(tmp_path: Path) -> None:
    path = tmp_path / "a store? 100%#&mode=ro"
    with closing(DiskStore(str(path))) as store:
        store.write([("log", b"a", b"1")])
    assert path.exists()
    with closing(DiskStore(path)) as store:
        assert store.read("log") == [(b"a", b"1")]


# Turns: one commit for several writes


def test_what_is_written_in_a_turn_is_there_after_its_commit(tmp_path: Path) -> None:
    path, told = tmp_path / "store", list[str]()
    store = DiskStore(path, on_pending=lambda: told.append("pending"))
    twin = Twin()
    for number in (1, 2, 3):
        store.write(batch(number))
        twin.write(batch(number))
    assert told == ["pending"]
    assert_holds(store, twin.content)
    for name, expected in (("before", Twin().content), ("after", twin.content)):
        if name == "after":
            store.commit()
        shutil.copy(path, tmp_path / name)
        if wal_of(path).exists():
            shutil.copy(wal_of(path), wal_of(tmp_path / name))
        shutil.copy(lock_of(path), lock_of(tmp_path / name))
        with closing(DiskStore(tmp_path / name)) as crashed:
            assert_holds(crashed, expected)
    store.write(batch(4))
    assert told == ["pending", "pending"]
    twin.write(batch(4))
    store.close()
    with closing(DiskStore(path)) as again:
        assert_holds(again, twin.content)


def test_a_full_disk_is_told_by_the_write_and_not_by_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "store", on_pending=lambda: None)
    store.write([("log", b"a", b"1")])
    store.commit()  # the disk is asked once a turn
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 3, *real[5:]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        with pytest.raises(StoreFull, match="no room to write"):
            store.write([("log", b"b", b"2")])
        store.write([("log", b"a", None)])  # what makes room is taken
        store.commit()
    assert store.read("log") == []
    store.write([("log", b"b", b"2")])
    store.close()


def test_a_commit_that_fails_is_told_and_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with closing(DiskStore(path)) as store:
        store.write([("log", b"a", b"1")])
    store = DiskStore(path, on_pending=lambda: None)
    store.write([("log", b"b", b"2")])
    execute = Database.execute

    def failing(self: Database, sql: str, *values: object) -> object:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return execute(self, sql, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "execute", failing)
        with pytest.raises(StoreError, match="disk I/O error"):
            store.commit()
    store.close()
    with closing(DiskStore(path)) as again:
        assert again.read("log") == [(b"a", b"1")]
