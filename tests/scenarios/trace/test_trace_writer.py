"""The trace writer: the six files, the late columns, the hash, constant memory, one line for each failure."""

import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import TraceError
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import SCHEMAS, TABLES
from tidings.scenarios.trace.writer import TraceWriter

# Spelled out here a second time: outside checks rely on these names, orders and types.
COLUMNS = {
    "published": "event_id string, source string, sequence int64, topic string, "
    "attributes map<string, string?>, size_bytes int64, at_ns int64, confirmed_ns int64?, expires_ns int64?",
    "subscribed": "subscriber string, subscription string, topics list<element: string not null>, "
    "filter string?, order string, requested_ns int64, accepted_ns int64?, cancelled_ns int64?, "
    "share_of string?, durable string?, group_by string?, start string?, detached_ns int64?, "
    "keep_for_ns int64?, life string?",
    "delivered": "subscriber string, subscription string, position int64, event_id string, at_ns int64, "
    "out_of_order bool, recovered_by string?, attempt int64, done_ns int64?",
    "traffic": "kind string, from string, to string, messages int64, bytes int64, dropped int64",
    "faults": "kind string, target string, at_ns int64, until_ns int64?",
    "nodes": "node string, kind string, parent string?, label string?, site string?",
}


def described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {named(field.type)}{'?' if field.nullable else ''}" for field in schema)


def named(kind: pa.DataType) -> str:
    if not pa.types.is_map(kind):
        return str(kind)
    return f"map<{kind.key_type}, {kind.item_type}{'?' if kind.item_field.nullable else ''}>"


def write_sample(directory: Path, **options: int) -> TraceWriter:
    writer = TraceWriter(directory, **options)
    writer.nodes("b0", "broker", None, "0", "eu")
    writer.nodes("p0", "publisher", "b0")
    writer.faults("crash", "b0", 5, 9)
    writer.faults("loss", "*", 6)
    writer.subscribed("s0", "a", ["/t/**"], "x > 3", "total", 1)
    writer.subscribed("s1", "a", (), None, "none", 2, 3, 4)
    for sequence in range(7):
        values = {"x": sequence, "name": "BBC", "odd": "12", "none": None, "raw": b"\x01"}
        writer.published(f"p0:{sequence}", "p0", sequence, "/t/a", values, 128, 10 * sequence)
        writer.delivered("s0", "a", sequence, f"p0:{sequence}", 10 * sequence + 3, sequence == 2, "push")
    writer.confirmed("p0:1", 12)
    writer.accepted("s0", "a", 7)
    writer.cancelled("s0", "a", 90)
    writer.traffic("event", "p0", "b0", 7, 900, 1)
    writer.close()
    return writer


def test_files_have_exactly_the_columns_of_the_design(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.parquet" for name in COLUMNS)
    assert list(TABLES) == list(COLUMNS)
    for name, columns in COLUMNS.items():
        written = pq.read_schema(tmp_path / f"{name}.parquet")
        assert described(written) == columns
        assert written.equals(SCHEMAS[name])
        assert pq.read_metadata(tmp_path / f"{name}.parquet").num_rows == 0


def test_rows_come_back_with_what_became_known_late(tmp_path: Path) -> None:
    write_sample(tmp_path)
    trace = Trace.read(tmp_path)
    attributes = [("name", "BBC"), ("none", None), ("odd", '"12"'), ("raw", "X'01'"), ("x", "1")]
    published = trace.published.to_pylist()
    assert [row["confirmed_ns"] for row in published] == [None, 12, None, None, None, None, None]
    assert list(published[1].values()) == ["p0:1", "p0", 1, "/t/a", attributes, 128, 10, 12, None]
    assert [list(row.values()) for row in trace.subscribed.to_pylist()] == [
        ["s0", "a", ["/t/**"], "x > 3", "total", 1, 7, 90, *[None] * 7],
        ["s1", "a", [], None, "none", 2, 3, 4, *[None] * 7],
    ]
    assert list(trace.delivered.to_pylist()[2].values()) == ["s0", "a", 2, "p0:2", 23, True, "push", 1, None]
    assert [list(row.values()) for row in trace.traffic.to_pylist()] == [["event", "p0", "b0", 7, 900, 1]]
    assert [list(row.values()) for row in trace.faults.to_pylist()] == [
        ["crash", "b0", 5, 9],
        ["loss", "*", 6, None],
    ]
    assert [list(row.values()) for row in trace.nodes.to_pylist()] == [
        ["b0", "broker", None, "0", "eu"],
        ["p0", "publisher", "b0", None, None],
    ]


@settings(max_examples=examples(60))
@given(
    confirmations=st.lists(st.integers(0, 30), max_size=40),
    max_pending=st.integers(0, 35),
    rows_per_group=st.integers(1, 10),
)
def test_publications_keep_their_order_and_late_confirmations_are_dropped(
    tmp_path_factory: pytest.TempPathFactory, confirmations: list[int], max_pending: int, rows_per_group: int
) -> None:
    """Event n is published, then the n-th confirmation comes; the twin keeps everything in a list."""
    directory = tmp_path_factory.mktemp("trace")
    expected: list[int | None] = []
    with TraceWriter(directory, rows_per_group=rows_per_group, max_pending=max_pending) as writer:
        for number in range(31):
            writer.published(f"p:{number}", "p", number, "/t", {}, 1, number)
            expected.append(None)
            for target in confirmations[number : number + 1]:
                writer.confirmed(f"p:{target}", 100 + number)
                # Held are the events that follow, and include, the oldest unconfirmed one, up to the bound.
                if target <= number and expected[target] is None and number - target < max_pending:
                    expected[target] = 100 + number
    rows = Trace.read(directory).published.to_pylist()
    assert [row["sequence"] for row in rows] == list(range(31))
    assert [row["confirmed_ns"] for row in rows] == expected


def test_a_full_group_is_written_at_once_and_groups_do_not_change_the_hash(tmp_path: Path) -> None:
    hashes = {write_sample(tmp_path / str(size), rows_per_group=size).sha256 for size in (1, 2, 3, 65_536)}
    assert len(hashes) == 1
    assert pq.read_metadata(tmp_path / "2" / "delivered.parquet").num_row_groups == 4


@pytest.mark.parametrize("rows", [1, 2, 3, 9_362, 9_363])
def test_the_hash_is_that_of_the_cells_one_after_the_other(tmp_path: Path, rows: int) -> None:
    """A group's list of cells has a header of another size from 16 and from 65,536 cells on."""
    hashes = []
    for size in (1, 65_536) if rows < 100 else (1_000, 65_536):
        with TraceWriter(tmp_path / str(size), rows_per_group=size) as writer:
            for number in range(rows):
                writer.delivered("s", "a", number, f"p:{number}", number)
        hashes.append(writer.sha256)
    assert hashes[0] == hashes[1]


def test_the_hash_sees_every_table_and_every_cell(tmp_path: Path) -> None:
    def with_rows(name: str, *rows: tuple[str, tuple[object, ...]]) -> str:
        with TraceWriter(tmp_path / name) as writer:
            for method, cells in rows:
                getattr(writer, method)(*cells)
        return writer.sha256

    delivery = ("s0", "a", 0, "p0:0", 5, False, None)
    changed = [
        (*delivery[:place], other, *delivery[place + 1 :])
        for place, other in enumerate(("s1", "b", 1, "p0:1", 6, True, "push"))
    ]
    published = ("p0:0", "p0", 0, "/t", {"x": 1}, 1, 1)
    variants = [
        (),
        *((("delivered", cells),) for cells in [delivery, *changed]),
        (("delivered", delivery), ("delivered", delivery)),
        (("published", published),),
        (("published", (*published[:4], {"x": "1"}, 1, 1)),),
        (("faults", ("a", "b", 1)),),
        (("faults", ("a", "b", 1, 2)),),
        (("nodes", ("a", "b")),),
        (("traffic", ("a", "b", "c", 1, 2, 3)),),
        (("subscribed", ("a", "b", [], None, "none", 1)),),
        (("subscribed", ("a", "b", [], "", "none", 1)),),
        *(
            (("subscribed", ("a", "b", [], "", "none", 1, None, None, *late)),)
            for late in (("n",), (None, "n"), (None, None, "n"), (None, None, None, "n"))
        ),
        (("subscribed", ("a", "b", [], "", "none", 1)), ("detached", ("a", "b", 1))),
    ]
    hashes = [with_rows(str(number), *rows) for number, rows in enumerate(variants)]
    assert len(set(hashes)) == len(variants)
    assert with_rows("again", *variants[1]) == hashes[1]


def test_attribute_order_does_not_matter_nor_does_the_topic_among_them(tmp_path: Path) -> None:
    hashes = []
    for number, values in enumerate(({"a": 1, "b": 2}, {"b": 2, "topic": "/t", "a": 1})):
        with TraceWriter(tmp_path / str(number)) as writer:
            writer.published("p:0", "p", 0, "/t", values, 1, 1)
        hashes.append(writer.sha256)
    assert hashes[0] == hashes[1]


SCRIPT = """
import sys
from pathlib import Path
from tidings.scenarios.trace.writer import TraceWriter
with TraceWriter(Path(sys.argv[1])) as writer:
    for number in range(500):
        values = {f"a{number % 5}": number, "b": "x", "c": 1.5}
        writer.published(f"p:{number}", "p", number, "/t", values, 1, number)
        writer.delivered(f"s{number % 7}", "a", number // 7, f"p:{number}", number + 1)
print(writer.sha256)
"""


@pytest.mark.slow
def test_the_same_rows_give_the_same_hash_and_files_in_any_process(tmp_path: Path) -> None:
    outputs = []
    for seed in ("0", "77"):
        directory = tmp_path / seed
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(directory)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        files = [(directory / f"{name}.parquet").read_bytes() for name in TABLES]
        outputs.append((run.stdout, files))
    assert outputs[0] == outputs[1]
    assert len(outputs[0][0].strip()) == 64


@pytest.mark.slow
def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def peak_bytes(rows: int) -> int:
        tracemalloc.start()
        with TraceWriter(tmp_path / str(rows), rows_per_group=2_000, max_pending=1_000) as writer:
            for number in range(rows):
                writer.delivered(f"s{number % 50}", "a", number, f"p:{number}", number + 1)
                if number % 4 == 0:  # never confirmed: held up to the bound
                    writer.published(f"p:{number}", "p", number, "/t", {"x": number}, 1, number)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(100)  # imports and caches
    small, large = peak_bytes(15_000), peak_bytes(90_000)
    assert large < 1.3 * small


def test_an_old_trace_is_replaced_as_a_whole_and_only_at_the_end(tmp_path: Path) -> None:
    write_sample(tmp_path)
    writer = TraceWriter(tmp_path)
    writer.delivered("s9", "a", 0, "p0:0", 1)
    assert Trace.read(tmp_path).delivered.num_rows == 7
    writer.close()
    writer.close()
    trace = Trace.read(tmp_path)
    assert (trace.delivered.num_rows, trace.published.num_rows, trace.nodes.num_rows) == (1, 0, 0)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_block_that_raises_leaves_the_old_trace(tmp_path: Path) -> None:
    write_sample(tmp_path)
    with pytest.raises(ZeroDivisionError), TraceWriter(tmp_path) as writer:
        writer.delivered("s9", "a", 0, "p0:0", 1 // 0)
    assert Trace.read(tmp_path).delivered.num_rows == 7
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(TraceError, match="once it is closed"):
        _ = writer.sha256


def one_line(raised: pytest.ExceptionInfo[TraceError]) -> str:
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TraceError, match="cannot write a trace to") as raised:
            TraceWriter(directory)
        assert str(directory) in one_line(raised)


def test_a_table_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "nodes.parquet.tmp").mkdir()
    with pytest.raises(TraceError, match=r"nodes\.parquet\.tmp") as raised:
        TraceWriter(tmp_path)
    one_line(raised)
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.parquet.tmp"]


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "delivered.parquet.tmp").symlink_to("/dev/full")
    with pytest.raises(TraceError, match=r"cannot write trace table .*delivered.*No space left") as raised:
        TraceWriter(tmp_path)
    one_line(raised)
    assert not list(tmp_path.glob("*.tmp"))
    assert Trace.read(tmp_path).delivered.num_rows == 7


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    write_sample(tmp_path)

    def fill() -> None:
        with TraceWriter(tmp_path, rows_per_group=1_000) as writer:
            for number in range(200_000):
                writer.delivered(f"s{number * 7919 % 10_007}", "a", number, f"p:{number * 31}", number)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(
            TraceError, match=r"cannot write trace table .*delivered.*File too large"
        ) as raised:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    one_line(raised)
    assert not list(tmp_path.glob("*.tmp"))
    assert Trace.read(tmp_path).delivered.num_rows == 7


def test_a_row_of_wrong_types_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="delivered") as raised, TraceWriter(tmp_path) as writer:
        writer.delivered("s0", "a", None, "p0:0", 1)
    one_line(raised)


def test_subscriptions_are_known_by_subscriber_and_name(tmp_path: Path) -> None:
    with TraceWriter(tmp_path) as writer:
        writer.subscribed("s0", "a", [], None, "none", 1)
        with pytest.raises(TraceError, match="'s0' already has a subscription 'a'"):
            writer.subscribed("s0", "a", [], None, "none", 2)
        with pytest.raises(TraceError, match="'s1' has no subscription 'a'"):
            writer.accepted("s1", "a", 2)
        with pytest.raises(TraceError, match="'s0' has no subscription 'b'"):
            writer.cancelled("s0", "b", 2)
