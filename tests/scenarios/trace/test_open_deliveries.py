"""Deliveries that wait for their acknowledgement: when they count as done, in which order whatever is heard."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import TraceError
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter


def done_of(trace: Trace) -> dict[tuple[str, int], tuple[int, int | None]]:
    return {
        (row["subscriber"], row["position"]): (row["attempt"], row["done_ns"])
        for row in trace.delivered.to_pylist()
    }


def two_holders() -> MemoryWriter:
    writer = MemoryWriter()
    for subscriber in ("a", "b"):
        writer.subscribed(subscriber, "x", ["/t"], None, "none", 0, 1, durable="billing")
    writer.handed("a", "x", 0, "p:1", 10, 1)
    return writer


def test_an_accepted_acknowledgement_is_done_when_the_application_gave_it() -> None:
    writer = two_holders()
    writer.acknowledged("a", 0, 12)
    writer.answered("a", 0)
    assert done_of(writer.trace()) == {("a", 0): (1, 12)}
    writer.answered("a", 0, accepted=False)  # too late
    writer.acknowledged("a", 0, 99)
    assert done_of(writer.trace()) == {("a", 0): (1, 12)}


def test_a_refused_acknowledgement_is_not_done() -> None:
    writer = two_holders()
    writer.acknowledged("a", 0, 12)
    writer.answered("a", 0, accepted=False)
    assert done_of(writer.trace()) == {("a", 0): (1, None)}


def test_without_an_answer_it_is_done_unless_the_event_comes_again() -> None:
    writer = two_holders()
    writer.acknowledged("a", 0, 12)
    assert done_of(writer.trace()) == {("a", 0): (1, 12)}
    writer.handed("b", "x", 0, "p:1", 20, 2)
    assert done_of(writer.trace()) == {("a", 0): (1, None), ("b", 0): (2, None)}
    writer.acknowledged("b", 0, 22)
    assert done_of(writer.trace()) == {("a", 0): (1, None), ("b", 0): (2, 22)}


def test_what_the_broker_accepts_twice_stays_visible() -> None:
    writer = two_holders()
    writer.acknowledged("a", 0, 12)
    writer.handed("b", "x", 0, "p:1", 20, 2)
    for subscriber in ("a", "b"):
        writer.acknowledged(subscriber, 0, 22)
        writer.answered(subscriber, 0)
    assert done_of(writer.trace()) == {("a", 0): (1, 12), ("b", 0): (2, 22)}


def test_a_repetition_without_a_mark_takes_nothing_back() -> None:
    writer = two_holders()
    writer.acknowledged("a", 0, 12)
    writer.handed("b", "x", 0, "p:1", 20, 1)
    assert done_of(writer.trace())["a", 0] == (1, 12)


def test_another_share_is_another_matter() -> None:
    writer = two_holders()
    writer.subscribed("c", "x", ["/t"], None, "none", 0, 1, share_of="billing")
    writer.acknowledged("a", 0, 12)
    writer.handed("c", "x", 0, "p:1", 20, 2)
    assert done_of(writer.trace())["a", 0] == (1, 12)


def test_only_who_subscribed_is_handed_something() -> None:
    with pytest.raises(TraceError, match="'z' has no subscription 'x'"):
        two_holders().handed("z", "x", 0, "p:1", 1, 1)


def play(writer: TraceWriter, random: Random) -> None:
    """Some deliveries, acknowledgements and answers, in any order that can happen."""
    for name in "ab":
        writer.subscribed(name, "x", [], None, "none", 0, 0, share_of="g", group_by="k", start="earliest")
    handed: list[tuple[str, int]] = []
    for at_ns in range(60):
        match random.randrange(4):
            case 0:
                subscriber = random.choice("ab")
                position = sum(name == subscriber for name, _ in handed)
                writer.handed(
                    subscriber, "x", position, f"p:{random.randrange(5)}", at_ns, random.randrange(1, 4)
                )
                handed.append((subscriber, position))
            case 1 if handed:
                writer.acknowledged(*random.choice(handed), at_ns)
            case 2 if handed:
                writer.answered(*random.choice(handed), accepted=random.random() < 0.7)
            case _:
                writer.delivered("c", "y", at_ns, "p:0", at_ns)
    writer.detached("a", "x", 60)


@settings(max_examples=examples(60))
@given(st.randoms(use_true_random=False))
def test_files_and_memory_have_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    directory = tmp_path_factory.mktemp("trace")
    seed = random.randrange(2**32)
    memory = MemoryWriter()
    play(memory, Random(seed))
    with TraceWriter(directory, rows_per_group=random.randrange(1, 9)) as writer:
        play(writer, Random(seed))
    assert Trace.read(directory) == memory.trace()


def test_the_oldest_goes_when_too_many_are_open(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, max_pending=2) as writer:
        writer.subscribed("a", "x", [], None, "none", 0, 0, durable="d")
        for position in range(4):
            writer.handed("a", "x", position, f"p:{position}", position, 1)
        for position in range(4):
            writer.acknowledged("a", position, 10)
            writer.answered("a", position)
    done = [done for _, done in done_of(Trace.read(tmp_path)).values()]
    assert done == [None, None, 10, 10]


def test_a_row_that_says_nothing_new_has_the_hash_of_an_old_trace(tmp_path: Path) -> None:
    """Wherever groups end, and beside rows that do say something."""

    def digest(name: str, size: int, marked: bool) -> str:
        with TraceWriter(tmp_path / name, rows_per_group=size) as writer:
            writer.subscribed("a", "x", [], None, "none", 0, 0, durable="d")
            for number in range(9):
                writer.delivered("s", "y", number, f"p:{number}", number)
            if marked:
                writer.handed("a", "x", 0, "p:1", 3, 2)
        return writer.table_sha256["delivered"]

    plain, marked = ({digest(f"{size}-{mark}", size, mark) for size in (1, 4, 100)} for mark in (False, True))
    assert len(plain) == len(marked) == 1
    assert plain != marked


def test_older_traces_have_the_defaults(tmp_path: Path) -> None:
    with TraceWriter(tmp_path) as writer:
        writer.subscribed("s", "y", ["/t"], None, "none", 0, 0)
        writer.published("p:0", "p", 0, "/t", {}, 1, 1)
        writer.delivered("s", "y", 0, "p:0", 2)
    whole = Trace.read(tmp_path)
    for name, columns in (
        ("subscribed", ("share_of", "durable", "group_by", "start", "detached_ns")),
        ("delivered", ("attempt", "done_ns")),
    ):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pq.read_table(path).drop_columns(list(columns)), path)
    assert Trace.read(tmp_path) == whole
