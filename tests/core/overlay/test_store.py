"""The store in memory against a list of pairs; its dict outlives it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import StoreError
from tidings.core.store import TABLES, Change, MemoryStore, Store

changes = st.tuples(
    st.sampled_from(TABLES),
    st.sampled_from((b"", b"a", b"b", b"key")),
    st.one_of(st.none(), st.binary(max_size=4)),
)


def applied(pairs: list[tuple[str, bytes, bytes]], change: Change) -> list[tuple[str, bytes, bytes]]:
    """The dumb twin: all tables in one list, in order of insertion."""
    table, key, value = change
    if value is None:
        return [pair for pair in pairs if pair[:2] != (table, key)]
    if any(pair[:2] == (table, key) for pair in pairs):
        return [(table, key, value) if pair[:2] == (table, key) else pair for pair in pairs]
    return [*pairs, (table, key, value)]


def assert_holds(store: Store, pairs: list[tuple[str, bytes, bytes]]) -> None:
    for table in TABLES:
        expected = [(key, value) for name, key, value in pairs if name == table]
        assert store.read(table) == expected
        assert store.count(table) == len(expected)
        assert store.size_bytes(table) == sum(len(key) + len(value) for key, value in expected)
        assert [store.get(table, key) for key, _ in expected] == [value for _, value in expected]
        assert store.get(table, b"never written") is None


@given(st.lists(st.tuples(st.lists(changes, max_size=5), st.booleans()), max_size=15))
@settings(max_examples=examples(100))
def test_it_is_a_list_of_pairs_that_outlives_a_crash(steps: list[tuple[list[Change], bool]]) -> None:
    tables: dict[str, dict[bytes, bytes]] = {}
    store, pairs = MemoryStore(tables), list[tuple[str, bytes, bytes]]()
    for batch, crash in steps:
        store.write(batch)
        for change in batch:
            pairs = applied(pairs, change)
        if crash:
            store = MemoryStore(tables)
        assert_holds(store, pairs)


def test_a_batch_with_an_unknown_table_changes_nothing() -> None:
    store = MemoryStore()
    store.write([("log", b"a", b"1")])
    with pytest.raises(KeyError):
        store.write([("log", b"a", b"2"), ("nonsense", b"a", b"2")])
    assert_holds(store, [("log", b"a", b"1")])
    for use in (store.read, store.count, store.size_bytes):
        with pytest.raises(KeyError):
            use("nonsense")
    with pytest.raises(KeyError):
        store.get("nonsense", b"a")


def test_stores_of_their_own_share_nothing() -> None:
    one, other = MemoryStore(), MemoryStore()
    one.write([("log", b"a", b"1")])
    assert_holds(other, [])


def test_a_closed_store_leaves_its_tables_alone() -> None:
    tables: dict[str, dict[bytes, bytes]] = {}
    crashed = MemoryStore(tables)
    crashed.write([("log", b"a", b"1")])
    crashed.close()
    crashed.close()
    with pytest.raises(StoreError):
        crashed.write([("log", b"a", b"2")])
    with pytest.raises(StoreError):
        crashed.read("log")
    assert_holds(MemoryStore(tables), [("log", b"a", b"1")])
