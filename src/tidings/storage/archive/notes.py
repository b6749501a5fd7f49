"""Marks, gaps and consumers: small tables in which a wrong row loses events as surely as a wrong event does.

Each row has a checksum. A damaged page can also hide rows or duplicate them, so `about` has the sum of each table's
rows. It changes in the same transaction as the rows, at a cost that depends only on the rows changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import index
from typing import Any, NamedTuple

from tidings.core.errors import ArchiveCorrupt
from tidings.storage.archive.database import fields_checksum
from tidings.storage.archive.facts import ArchiveGap
from tidings.storage.archive.listing import read_about, write_about
from tidings.storage.database import Database

LOOKUP_ROWS = 500
"""Keys looked up at once: SQLite limits the number of values in a statement."""

Fields = tuple[Any, ...]
"""The fields of a row, its key first."""
Row = tuple[Any, ...]
"""The fields and their checksum."""


class _Table(NamedTuple):
    name: str
    """The name of the table, and of the column of `about` that has its sum."""
    columns: str

    @property
    def key(self) -> str:
        return self.columns.partition(",")[0]


_CONSUMERS = _Table("consumers", "name, offset, committed_ns")
_GAPS = _Table("gaps", "id, offset, noted_ns, reason, missing")
_MARKS = _Table("marks", "name, value")


def read_marks(database: Database) -> dict[str, int]:
    return {name: value for name, value, _ in _read(database, _MARKS)}


def write_marks(database: Database, marks: Mapping[str, int | None]) -> None:
    """Write marks; None removes one."""
    old = _look_up(database, _MARKS, list(marks))
    _change(database, _MARKS, old, [(name, value) for name, value in marks.items() if value is not None])


def read_gaps(database: Database) -> list[ArchiveGap]:
    return [_gap(row) for row in _read(database, _GAPS)]


def add_gap(database: Database, gap: ArchiveGap, max_gaps: int) -> None:
    """Add a gap; if there are `max_gaps` already, merge it with the last one."""
    ((count,),) = database.execute("SELECT COUNT(*) FROM gaps")
    last = _checked(database, _GAPS, _rows(database, _GAPS, "ORDER BY id DESC LIMIT 1"))
    last_id, missing = last[0][0] if last else 0, gap.missing
    if count < max_gaps or not last:
        last_id, last = last_id + 1, []
    elif missing is not None:
        before = _gap(last[0]).missing
        missing = None if before is None else missing + before
    _change(database, _GAPS, last, [(last_id, gap.offset, gap.noted_ns, gap.reason, missing)])


def read_consumers(database: Database) -> dict[str, int]:
    return {name: offset for name, offset, _, _ in _read(database, _CONSUMERS)}


def write_consumer(database: Database, name: str, offset: int, committed_ns: int) -> None:
    """Write a consumer's offset, which never goes back."""
    old = _look_up(database, _CONSUMERS, [name])
    offset = max([offset, *(row[1] for row in old)])
    _change(database, _CONSUMERS, old, [(name, offset, committed_ns)])


def forget_consumers(database: Database, before_ns: int) -> None:
    """Delete consumers whose last commit is older."""
    old = [row for row in _read(database, _CONSUMERS) if row[2] < before_ns]
    if old:
        _change(database, _CONSUMERS, old, [])


def check_notes(database: Database) -> None:
    for problem in note_problems(database):
        raise ArchiveCorrupt(problem)


def note_problems(database: Database) -> Iterator[str]:
    """Yield all problems of the three tables."""
    for table in (_CONSUMERS, _GAPS, _MARKS):
        yield from _problems(database, table, _rows(database, table))


def _gap(row: Row) -> ArchiveGap:
    _, offset, noted_ns, reason, missing, _ = row
    return ArchiveGap(offset, noted_ns, reason, missing)


def _read(database: Database, table: _Table) -> list[Row]:
    """Return all rows; ArchiveCorrupt if the table is damaged."""
    rows = _rows(database, table)
    for problem in _problems(database, table, rows):
        raise ArchiveCorrupt(problem)
    return rows


def _look_up(database: Database, table: _Table, keys: list[Any]) -> list[Row]:
    """Return the existing rows with these keys; ArchiveCorrupt if one is damaged."""
    found: list[Row] = []
    for start in range(0, len(keys), LOOKUP_ROWS):
        some = keys[start : start + LOOKUP_ROWS]
        wanted = f"WHERE {table.key} IN ({', '.join('?' * len(some))})"
        found += _checked(database, table, _rows(database, table, wanted, *some))
    return found


def _rows(database: Database, table: _Table, which: str = "ORDER BY 1", *values: object) -> list[Row]:
    return database.execute(f"SELECT {table.columns}, checksum FROM {table.name} {which}", *values)  # noqa: S608


def _checked(database: Database, table: _Table, rows: list[Row]) -> list[Row]:
    for problem in _row_problems(database, table, rows):
        raise ArchiveCorrupt(problem)
    return rows


def _change(database: Database, table: _Table, old: Collection[Row], new: Collection[Fields]) -> None:
    """Replace the rows `old`, which were read and checked, by `new`."""
    new = [tuple(map(_plain, fields)) for fields in new]
    kept = {fields[0] for fields in new}
    gone = ((row[0],) for row in old if row[0] not in kept)
    database.insert(f"DELETE FROM {table.name} WHERE {table.key} = ?", gone)  # noqa: S608
    rows = [(*fields, fields_checksum(fields)) for fields in new]
    values = ", ".join("?" * (table.columns.count(",") + 2))
    database.insert(f"REPLACE INTO {table.name} VALUES ({values})", rows)  # noqa: S608
    about = read_about(database)
    total = getattr(about, table.name) - _sum(old) + _sum(rows)
    write_about(database, about._replace(**{table.name: total}))


def _plain(value: Any) -> str | int | None:
    """Return the value as SQLite will return it: a bool or an Enum would then have another checksum."""
    if value is None:
        return None
    return str.__str__(value) if isinstance(value, str) else index(value)


def _problems(database: Database, table: _Table, rows: Collection[Row]) -> Iterator[str]:
    damaged = False
    for problem in _row_problems(database, table, rows):
        damaged = True
        yield problem
    if not damaged and _sum(rows) != getattr(read_about(database), table.name):
        yield f"{database.path} is damaged: its table {table.name} has lost rows or has extra ones"


def _row_problems(database: Database, table: _Table, rows: Iterable[Row]) -> Iterator[str]:
    for *fields, checksum in rows:
        if fields_checksum(fields) != checksum:
            yield f"{database.path} is damaged: row {fields[0]!r} of its table {table.name} has a wrong checksum"


def _sum(rows: Collection[Row]) -> int:
    """Return the sum, which includes the number of rows, so that losing one whose checksum is 0 is noticed."""
    return (len(rows) << 32) + sum(int(row[-1]) for row in rows)
